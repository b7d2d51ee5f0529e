"""The model "cloze" and lm-eval's Hugging Face model on the same parameters."""

import sys

import numpy as np
import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # lm-eval's model imports it

from evaluation.lm_eval.model import ClozeLM
from experiment.experiment import make_experiment
from huggingface import export
from tests.evaluation.lm_eval.runs import loglikelihoods, requests
from tests.evaluation.test_likelihood import ids
from tests.table import small_config
from tests.train.small_runs import save_run
from tests.train.tiny_experiments import random_params

CLASSES = {
    "LlamaForCausalLM": ("clm", "decoder_only", {}),
    # lm-eval ties the tables of T5 with transformers 5, whether or not they are tied.
    "T5ForConditionalGeneration": (
        "prefix_lm", "encoder_decoder", {"model__tie_embeddings": True, "model__scale_logits": True}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_log_likelihoods_equal_those_of_lm_evals_hugging_face_model(name, tmp_path, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    config, architecture, fields = CLASSES[name]
    experiment = make_experiment(small_config(config, architecture, **fields))
    run, exported = tmp_path / "run", tmp_path / "exported"
    save_run(experiment, str(run), random_params(experiment))
    arguments = [f"--workdir={run}", f"--out={exported}"]
    monkeypatch.setattr(sys, "argv", ["train.export", *arguments])
    export.main()
    vocab, is_causal = experiment.vocab, architecture == "decoder_only"
    ours = ClozeLM(workdir=str(run))
    theirs = HFLM(
        pretrained=str(exported), backend="causal" if is_causal else "seq2seq", device="cpu", dtype="float32",
        batch_size=2, max_length=40, prefix_token_id=vocab.pad, add_bos_token=False,
    )  # fmt: skip
    assert type(theirs.model).__name__ == name
    pairs = [("def f(x):", " return"), ("a", "b c d"), ("", "def"), ("0123456789", "abcdef")]
    # The special tokens that training puts around a context.
    contexts = [[vocab.pad, *ids(text)] if is_causal else [*ids(text), vocab.eos] for text, _ in pairs]
    tokens = [
        (("", ""), [*map(int, before)], ids(text).tolist()) for before, (_, text) in zip(contexts, pairs, strict=True)
    ]
    expected = theirs._loglikelihood_tokens(tokens, disable_tqdm=True)
    np.testing.assert_allclose(loglikelihoods(ours, *pairs), [one[0] for one in expected], rtol=1e-5)
    if is_causal:  # lm-eval's encoder-decoders read the prefix token, ours an EOS
        rolling = requests("loglikelihood_rolling", ("hello wor",), ("x = 1",))
        found, expected = (model.loglikelihood_rolling(rolling, disable_tqdm=True) for model in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
