"""Runs, requests, and greedy decoding without a cache, for the tests of lm-eval's model."""

import numpy as np

from configs.masked_diffusion import VARIANTS
from tests.evaluation.test_likelihood import apply, fields, ids
from tests.train.tiny_experiments import PREFIX_LM, SPANS, tiny_experiment

MASS = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0, "inputs": "sentinels"}
LAYOUTS = {
    "clm": ("clm", "decoder_only", {}),
    "ul2": ("ul2", "encoder_decoder", {}),
    "prefix_lm": (PREFIX_LM, "decoder_only", {"positions": "learned", "num_layers": 2}),
    "spans": (SPANS, "encoder_decoder", {}),
    "mass": (MASS | {"targets": "full"}, "encoder_decoder", {}),
    "mlm": ("mlm", "encoder_only", {}),
    "diffusion": (VARIANTS["same"], "encoder_only", {}),
    "classification": ({"name": "classification", "classes": ("a", "b"), "pooling": "position"}, "decoder_only", {}),
}
TEXT = "def f(x): x = y"  # few lengths and numbers of rows, so that few programs are compiled
CONTEXTS = ["def f(x):", "a", TEXT, "def f(x):"]


def experiment_of(name):
    objective, architecture, model = LAYOUTS[name]
    data = {"documents": "split", "source": "jsonl"} if name == "classification" else {}
    return tiny_experiment(objective, architecture, model=model, data=data)


def requests(kind, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, of_one, 0, metadata=("some_task", number, 1)) for number, of_one in enumerate(arguments)]


def loglikelihoods(model, *pairs):
    return [result[0] for result in model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)]


def generated(model, *contexts, **arguments):
    return model.generate_until(requests("generate_until", *((text, arguments) for text in contexts)), True)


def greedy(model, context, count):
    """The text of the likeliest `count` tokens after `context`, by the model without a cache, to a special token."""
    lm, vocab, denoiser = model.language_model, model.language_model.experiment.vocab, model.denoiser
    inputs, start, encoder = [], [*ids(context)], None
    if denoiser.objective.has_inputs:
        sentinel = [vocab.sentinel(0)] * (denoiser.mode == "[R]")
        inputs, start = [*start, *sentinel, vocab.eos], sentinel
    if lm.experiment.model.has_encoder:
        inputs, encoder = [], [vocab.mode(denoiser.mode), *inputs]
    tokens = [*inputs, *start]
    for _ in range(count):
        batch = fields("decoder", [vocab.pad, *tokens])
        if encoder is None:
            prefix = len(inputs) + 1 if inputs else 0
            batch["decoder_bidirectional_mask"] = (np.arange(48) < prefix)[None]
        else:
            batch |= fields("encoder", encoder)
        logits = np.array(apply(lm.experiment.model, lm.params, batch))[0, len(tokens)]
        logits[[vocab.pad, *range(vocab.size, len(logits))]] = -np.inf
        if not vocab.content_start <= logits.argmax() < vocab.content_end:
            break
        tokens.append(int(logits.argmax()))
    return lm.experiment.tokenizer.decode(np.array(tokens[len(inputs) + len(start) :], np.int32))
