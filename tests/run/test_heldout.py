"""Evaluation: what it scores does not depend on how it is scored, and its sums and standard errors are right."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from experiment.experiment import make_experiment
from run.compiled_run import make_run
from run.evaluation import DocumentSums, evaluate, score_all
from tests.learners.row_learners import params_of
from tests.table import reads_corpus, small_config

# One objective of each learner whose loss of an example does not depend on the rest of its batch, and row layouts.
CASES = {
    "clm": ("decoder_only", {"data__documents": "pack"}),
    "ul2": ("encoder_decoder", {"data__examples_per_row": 2}),
    "nsp": ("encoder_only", {}),
    "classification": ("encoder_only", {}),
    "masked_diffusion:bernoulli": ("encoder_only", {}),
    "masked_diffusion:response": ("decoder_only", {}),
    "multi_token_prediction": ("decoder_only", {}),
}


def evaluated(corpus, name, architecture, **overrides):
    experiment = make_experiment(small_config(name, architecture, **(reads_corpus(name, corpus) | overrides)))
    run = make_run(experiment, show_progress=False)
    params = params_of(experiment.learner)
    return evaluate(run, params)


@pytest.mark.parametrize("name", CASES)
def test_metrics_do_not_depend_on_the_batch_size_or_the_runs_seed(name, corpus):
    architecture, overrides = CASES[name]
    overrides = {"data__heldout_fraction": 0.4, "train__eval_windows": 11} | overrides
    expected = evaluated(corpus, name, architecture, **overrides)
    other = evaluated(corpus, name, architecture, train__batch_size=4, seed=7, **overrides)
    assert other.keys() == expected.keys()
    for metric, value in expected.items():
        assert other[metric] == pytest.approx(value, rel=1e-5, nan_ok=True), metric


def test_packing_does_not_change_what_is_scored(corpus):
    overrides = {"data__heldout_fraction": 0.4, "data__examples_per_row": 2, "data__targets_length": 60}
    equal = evaluated(corpus, "ul2", "encoder_decoder", **overrides)
    planned = evaluated(corpus, "ul2", "encoder_decoder", data__packing="planned", **overrides)
    assert {name: pytest.approx(value, rel=1e-5) for name, value in equal.items()} == planned


def scored(groups, denoiser_ids, documents, shared=()):
    return SimpleNamespace(
        groups=np.array(groups),
        denoiser_ids=np.array(denoiser_ids),
        documents=np.array(documents),
        texts=np.ones(len(documents), int),
        shared_by=np.zeros(len(shared), int),
        shared=np.array(shared, int).reshape(-1, 2),
    )


class Heldout:
    """Two batches of four places: denoisers 0, 0, 1 and 0, 1; documents 7, 9, 7 and 9, 9. Place 1 is empty at first."""

    shares = np.array([0.75, 0.25])
    num_raw_tokens = np.array([3, 2])
    documents = np.array([7, 9])

    def documents_read(self, tasks):
        return 2 * len(tasks)

    def examples(self, n):
        groups, denoiser_ids, documents = [([0, 2, 3], [0, 0, 1], [7, 9, 7]), ([0, 3], [0, 1], [9, 9])][n]
        return scored(groups, denoiser_ids, documents)


def document_sums(groups, heldout=None, byte_metric="", dummy_bytes=0, in_text=np.ones_like):
    """Sums of documents whose tokens spell all bytes; by default of a tokenizer that adds no bytes to a text."""
    tokenizer = SimpleNamespace(dummy_bytes=dummy_bytes)
    experiment = SimpleNamespace(metric_groups=groups, byte_metric=byte_metric, tokenizer=tokenizer)
    documents = SimpleNamespace(bytes_covered=lambda: 1.0, in_text=in_text)
    return DocumentSums(experiment, heldout or Heldout(), documents)


def test_sums_by_denoiser_and_document_by_hand():
    sums = document_sums({"a": (0,), "b": (1,)})
    for n, (loss, weight) in enumerate([([1, 99, 2, 6], [2, 99, 2, 3]), ([6, 99, 99, 1], [4, 99, 99, 1])]):
        by_group = {"loss_sum_by_group": loss, "weight_sum_by_group": weight, "correct_sum_by_group": [0, 9, 1, 0]}
        sums.add(n, {name: np.array(values, np.float32) for name, values in by_group.items()})
    metrics = sums.metrics({"ratio": np.array([3.0, 4.0])})
    # a: document 7: loss 1 of 2 tokens, document 9: 2 + 6 of 2 + 4. b: 6 of 3, and 1 of 1.
    assert metrics["loss/a"] == pytest.approx(9 / 8) and metrics["loss/b"] == pytest.approx(7 / 4)
    assert metrics["accuracy/a"] == pytest.approx(1 / 8) and metrics["ratio"] == 0.75
    assert (metrics["tokens/a"], metrics["tokens/b"], metrics["documents/a"]) == (8, 4, 2)
    # Raw tokens of a count 0.75 / 3 each, those of b 0.25 / 2: a has three quarters of the raw tokens in training.
    loss = (9 * 0.25 + 7 * 0.125) / (8 * 0.25 + 4 * 0.125)
    assert metrics["loss"] == pytest.approx(loss)
    residuals = np.array([1 - 9 / 8 * 2, 8 - 9 / 8 * 6])
    assert metrics["loss_stderr/a"] == pytest.approx(math.sqrt(2 * np.square(residuals).sum()) / 8)
    # Correct, and scored tokens: document 7: 0 of 2 / 4 + 3 / 8, document 9: 1 / 4 of 6 / 4 + 1 / 8.
    assert metrics["accuracy"] == pytest.approx(0.1)
    assert metrics["accuracy_stderr"] == pytest.approx(math.sqrt(2 * 2 * 0.0875**2) / 2.5)


def test_the_standard_error_of_bits_per_byte_is_that_of_their_ratio():
    """Every token spells two bytes."""
    sums = document_sums({"a": (0,), "b": (1,)}, byte_metric="bits_per_byte")
    for n, (loss, weight) in enumerate([([1, 0, 2, 6], [2, 0, 2, 3]), ([6, 0, 0, 1], [4, 0, 0, 1])]):
        by_group = {
            "loss_sum_by_group": loss,
            "weight_sum_by_group": weight,
            "bytes_sum_by_group": [2 * w for w in weight],
        }
        sums.add(n, {name: np.array(values, np.float32) for name, values in by_group.items()})
    metrics = sums.metrics({})
    for name in ("", "_stderr"):
        assert metrics[f"bits_per_byte{name}"] == pytest.approx(metrics[f"loss{name}"] / 2 / math.log(2))


def test_bytes_that_the_tokenizer_adds_do_not_count():
    """A space before each text; half of what the tokens of document 9 spell else. Ten bytes of each example remain."""
    in_text = lambda documents: np.where(documents == 9, 0.5, 1.0)  # noqa: E731
    sums = document_sums({"a": (0,), "b": (1,)}, byte_metric="bits_per_byte", dummy_bytes=1, in_text=in_text)
    for n, num_bytes in enumerate([[11, 99, 21, 11], [21, 99, 99, 21]]):
        by_group = {f"{name}_sum_by_group": np.ones(4) for name in ("loss", "weight")}
        sums.add(n, by_group | {"bytes_sum_by_group": np.array(num_bytes)})
    assert sums.metrics({})["bits_per_byte"] == pytest.approx(1 / 10 / math.log(2))


def standard_error(loss, weight, documents, shared=()):
    """The loss and its standard error of examples with these sums, one denoiser."""
    examples = scored(np.arange(len(loss)), np.zeros(len(loss), int), documents, shared)
    one, read = np.ones(1), np.union1d(documents, examples.shared)
    heldout = SimpleNamespace(
        shares=one, num_raw_tokens=one, documents=read, documents_read=len, examples=lambda n: examples
    )
    sums = document_sums({"x": (0,)}, heldout)
    sums.add(0, {"loss_sum_by_group": loss, "weight_sum_by_group": weight, "correct_sum_by_group": weight})
    metrics = sums.metrics({})
    return metrics["loss"], metrics["loss_stderr"]


def test_the_standard_error_where_windows_join_documents():
    """Sixty documents of 130 tokens in windows of 100: with documents as independent clusters it was 0.82 of this."""
    random, found, length, raw_length = np.random.default_rng(0), [], 130, 100
    document = np.repeat(np.arange(60), length)[: 60 * length // raw_length * raw_length].reshape(-1, raw_length)
    shared = [(first, last) for first, last in document[:, [0, -1]] if first != last]
    weight = np.full(len(document), raw_length)
    for _ in range(400):
        loss = (2 + random.normal(0, 0.3, 60))[document].sum(axis=1)
        found.append(standard_error(loss, weight, document[:, 0], shared))
    losses, errors = zip(*found, strict=True)
    assert np.mean(errors) == pytest.approx(np.std(losses), rel=0.1)


def test_documents_of_one_window_are_never_better_than_independent():
    """Residuals of -1 and 1, whose product would leave an error of 0."""
    assert standard_error([1, 3], [1, 1], [0, 1], [(0, 1)]) == standard_error([1, 3], [1, 1], [0, 1]) == (2, 1)


def test_all_windows_and_one_document(corpus):
    overrides = reads_corpus("clm", corpus) | {"data__heldout_fraction": 0.4}
    experiment = make_experiment(small_config("clm", "decoder_only", **overrides))
    run = make_run(score_all(experiment), show_progress=False)
    metrics = evaluate(run, params_of(experiment.learner))
    documents = run.corpora.heldout_documents
    tokens = int(documents.ends(False)[-1])
    # Everything is scored, with the ends of documents where windows contain them.
    assert metrics["documents/clm"] == len(documents)
    assert tokens <= metrics["tokens/clm"] <= tokens + len(documents)
    first = documents.subset(np.arange(len(documents)) == 0)
    text = dataclasses.replace(run.corpora.each[0], heldout_documents=first)
    one = dataclasses.replace(run, corpora=dataclasses.replace(run.corpora, each=(text,)))
    metrics = evaluate(one, params_of(experiment.learner))
    assert metrics["documents/clm"] == 1 and "loss_stderr" not in metrics


def test_a_group_of_tasks_has_the_loss_of_its_shares_by_hand():
    """Tasks 0 and 1 as in Heldout; together three quarters and one quarter of the raw tokens in training."""
    sums = document_sums({"a": (0,), "both": (0, 1)})
    by_group = {"loss_sum_by_group": [1, 0, 2, 6], "weight_sum_by_group": [2, 0, 2, 3]}
    sums.add(
        0,
        {name: np.array(values, np.float32) for name, values in (by_group | {"correct_sum_by_group": [0] * 4}).items()},
    )
    metrics = sums.metrics({})
    assert metrics["loss/a"] == pytest.approx(3 / 4) and metrics["tokens/both"] == 7
    assert metrics["loss/both"] == pytest.approx((3 * 0.75 / 3 + 6 * 0.25 / 2) / (4 * 0.75 / 3 + 3 * 0.25 / 2))
    assert metrics["loss/both"] == pytest.approx(metrics["loss"])
