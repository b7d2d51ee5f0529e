"""A run has the losses and the gradient norms of PyTorch: its AdamW trains the exported model of `transformers`.

Everything between the batches and the logged metrics is another implementation: the model and its gradients, the
weighted loss, clipping, AdamW with its decayed parameters, and the schedule.
"""

import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import torch
import transformers

import cloze
from tests.huggingface.exported_runs import RUNS, run_export
from tests.table import small_config

STEPS, WARMUP, FINAL = 8, 3, 0.1
OPTIMIZER = {
    "name": "adamw",
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup_steps": WARMUP,
    "final_learning_rate_fraction": FINAL,
    "b1": 0.9,
    "b2": 0.95,
    "eps": 1e-8,
    "weight_decay": 1.0,
    "clip_norm": 0.5,
}
AUTO = {
    "bart": transformers.AutoModelForSeq2SeqLM,
    "bert": transformers.AutoModelForMaskedLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
}
NOT_DECAYED = ("embed", "shared", "wte", "wpe", "relative_attention_bias")  # and vectors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("gpt2", 1e-5), ("llama", 1e-5), ("bert", 1e-5), ("bart", 1e-5), ("t5", 5e-4)],  # T5's first logits are large
)
def test_losses_and_gradient_norms_are_those_of_pytorch(tmp_path, name, tolerance):
    config, architecture, shape = RUNS[name]
    length = {"steps": STEPS, "eval_every": STEPS, "checkpoint_every": STEPS}
    fields = {f"optimizer__{field}": value for field, value in OPTIMIZER.items()}
    fields |= {f"train__{field}": value for field, value in length.items()} | {"model__dropout_rate": 0.0}
    experiment = small_config(config, architecture, **shape | fields)
    start = cloze.new(experiment)
    start.save(tmp_path / "start", start.params)
    run_export(f"--workdir={tmp_path / 'start'}", f"--out={tmp_path / 'exported'}")
    model = AUTO.get(name, transformers.AutoModelForCausalLM).from_pretrained(tmp_path / "exported")
    expected = trained_by_pytorch(model, start.batches())
    found = cloze.train(experiment, tmp_path / "run").metrics("train")
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.3
    for metric in ("loss", "grad_norm"):
        np.testing.assert_allclose([row[metric] for row in found], [row[metric] for row in expected], rtol=tolerance)


def trained_by_pytorch(model, batches):
    """The loss and the gradients' norm of each update of `model`."""
    model.train()
    for module in model.modules():  # rows of padding would have no gradient
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    parameters = {
        name: value for name, value in model.named_parameters() if "token_type" not in name
    }  # no sentence types
    decayed = {
        name for name, value in parameters.items() if value.ndim > 1 and not any(part in name for part in NOT_DECAYED)
    }
    assert 0 < len(decayed) < len(parameters)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [value for name, value in parameters.items() if name in decayed],
                "weight_decay": OPTIMIZER["weight_decay"],
            },
            {"params": [value for name, value in parameters.items() if name not in decayed], "weight_decay": 0.0},
        ],
        lr=OPTIMIZER["learning_rate"],
        betas=(OPTIMIZER["b1"], OPTIMIZER["b2"]),
        eps=OPTIMIZER["eps"],
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_the_rate)
    rows = []
    for _ in range(STEPS):
        batch = {name: torch.as_tensor(np.asarray(array)) for name, array in next(batches).items()}
        side = "decoder" if "decoder_target_tokens" in batch else "encoder"
        weights = batch[f"{side}_loss_weights"].float()
        targets = batch[f"{side}_target_tokens"].long()
        nats = torch.nn.functional.cross_entropy(
            logits(model, batch).flatten(0, 1), targets.flatten(), reduction="none"
        )
        loss = (nats * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER["clip_norm"])
        optimizer.step()
        schedule.step()
        rows.append({"loss": loss.item(), "grad_norm": norm.item()})
    return rows


def logits(model, batch):
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_input_tokens" in batch]
    inputs = {}
    for stack, prefix in zip(stacks, ("", "decoder_"), strict=False):
        inputs[f"{prefix}input_ids"] = batch[f"{stack}_input_tokens"].long()
        inputs[f"{prefix}attention_mask"] = (batch[f"{stack}_segment_ids"] > 0).long()
    return model(**inputs).logits


def share_of_the_rate(step):
    if step < WARMUP:
        return step / WARMUP
    return FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
