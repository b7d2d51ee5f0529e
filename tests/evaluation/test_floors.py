"""Floors by hand, against dictionaries, on the tokens and bytes that evaluations and probes score."""

import functools
import json
import math
import pathlib

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.base import corpus as corpus_fields
from configs.base import use_corpora
from data.windows.documents import Documents
from evaluation.floors import heldout_floors, hidden_nats, printed_floors
from evaluation.probes.heldout_text import Continuation, Infilling, PseudoLogLikelihood, heldout_windows
from evaluation.probes.probe import unit_spans
from evaluation.scorer import LanguageModel, text_tokens
from experiment.experiment import make_experiment
from run.compiled_run import make_run
from run.corpus import open_corpora
from run.evaluation import evaluate
from run.sharding import make_reading_mesh
from tests.data.test_corpus_statistics import reference
from tests.learners.row_learners import params_of
from tests.table import reads_corpus, small_config, small_experiment
from tests.train.tiny_experiments import random_params

EOS = 1


def text_fields(folder: pathlib.Path, train: list[str], heldout: list[str]) -> dict:
    """Overrides for a corpus of one document a line."""
    for name, lines in {"train": train, "heldout": heldout}.items():
        (folder / f"{name}.txt").write_text("\n".join(lines))
    paths = {"data__path": str(folder / "train.txt"), "data__heldout_path": str(folder / "heldout.txt")}
    return paths | {"data__source": "text", "data__document_per": "line", "data__cache_dir": str(folder / "cache")}


def ids(text: str) -> list[int]:
    return [ord(letter) + 3 for letter in text]


def measured(probe, experiment, corpora):
    params = random_params(experiment)
    return probe.measure(LanguageModel(experiment, params, make_reading_mesh(params)), corpora)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Trains on "abab" and "abc", and holds out "xcab". The n-grams are counted by hand below."""
    fields = text_fields(tmp_path_factory.mktemp("three"), ["abab", "abc"], ["xcab"])
    experiment = small_experiment("clm", "decoder_only", **fields)
    return experiment, open_corpora(experiment, show_progress=False)


def test_a_continuation_by_hand(three):
    """The window is "cab", of which "ab" is scored. a, b, c and EOS occur 3, 3, 1 and 2 times among 9 tokens."""
    experiment, corpora = three
    size = len(corpora.each[0].store.unigram_counts)
    found = measured(Continuation(), experiment, corpora)
    one = (3 + 1) / (9 + size)  # of a, and of b
    a, b = (0 + 1 * one) / (1 + 1), (3 + 1 * one) / (3 + 1)  # EOS alone follows c, once, and b alone follows a
    assert found["bytes"] == found["tokens"] == 2
    assert found["floors"] == pytest.approx({"unigram": -math.log2(one), "trigram": -math.log2(a * b) / 2})
    assert found["floors_train_tokens"] == 9


def test_among_tokens_of_text_by_hand(three):
    """Without EOS: 7 tokens, and nothing follows c."""
    experiment, corpora = three
    size = len(corpora.each[0].store.unigram_counts)
    one = (3 + 1) / (7 + text_tokens(experiment.vocab, size).sum())
    expected = {"unigram": -math.log2(one), "trigram": -math.log2(one * (3 + one) / 4) / 2}
    assert measured(Continuation(text_only=True), experiment, corpora)["floors"] == pytest.approx(expected)


def test_an_encoder_does_not_read_the_hidden_tokens_before_a_token(three):
    _, corpora = three
    text = np.array(ids("abab"), np.int32)
    nats = {}
    for name, architecture in (("clm", "decoder_only"), ("mlm", "encoder_only")):
        experiment = small_experiment(name, architecture)
        nats[name] = hidden_nats(
            experiment, [text], [[(1, 4)]], corpora.train_documents, reads_span=name == "clm", text_only=False
        )
    assert nats["clm"]["unigram"] == pytest.approx(nats["mlm"]["unigram"])
    p = reference([ids("abab"), ids("abc")], len(corpora.each[0].store.unigram_counts))
    a, b, c = ids("abc")
    # A context with an id that never occurs is the shorter context.
    decoder = [p((c, a), b), p((a, b), a), p((b, a), b)]
    assert nats["clm"]["trigram"] == pytest.approx(-np.log(decoder).sum())
    encoder = [p((c, a), b), p((), a), p((), b)]
    assert nats["mlm"]["trigram"] == pytest.approx(-np.log(encoder).sum())


def test_heldout_text_is_not_counted(tmp_path):
    """Whatever is held out, a letter that occurs there alone has the probability of an id that never occurs."""
    for heldout in (["zzzz"], ["zzzz", "zz" * 40]):
        experiment = small_experiment("clm", "decoder_only", **text_fields(tmp_path, ["aaaa"], heldout))
        corpora = open_corpora(experiment, show_progress=False)
        unseen = 1 / (5 + len(corpora.each[0].store.unigram_counts))
        for probe in (Continuation(), Continuation(length=16)):
            assert measured(probe, experiment, corpora)["floors"]["unigram"] == pytest.approx(-math.log2(unseen))


@pytest.fixture(scope="module")
def modules(corpus):
    """(config, architecture, overrides) -> an experiment on modules of the standard library, and its corpora."""

    def modules(name, architecture="decoder_only", **overrides):
        experiment = small_experiment(name, architecture, **reads_corpus(name, corpus), **overrides)
        return experiment, open_corpora(experiment, show_progress=False)

    return modules


def texts_of(documents: Documents) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(documents.tokens(i).tolist()) for i in range(len(documents)))


reference_of = functools.cache(reference)  # (texts, size); most tests here count the same megabyte


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("clm", "decoder_only"),
        ("ul2", "encoder_decoder"),
        ("mlm", "encoder_only"),
        ("mlm", "decoder_only"),  # reads no token of the span either
        ("masked_diffusion", "encoder_only"),
        ("masked_diffusion", "decoder_only"),
    ],
)
def test_the_floors_of_a_probe_are_of_its_spans(modules, name, architecture):
    experiment, corpora = modules(name, architecture)
    p = reference_of(texts_of(corpora.train_documents), len(corpora.each[0].store.unigram_counts))
    options = {"num_documents": 2, "windows_per_document": 2, "length": 20}
    windows = heldout_windows(corpora.heldout_documents, count=2, windows_per_document=2, length=20, shortest=6)

    def bits(spans_of, reads_span):
        nats, num_bytes = np.zeros(2), 0
        for window in windows:
            text = window.tokens.tolist()
            for start, stop in spans_of(window):
                num_bytes += stop - start
                for i in range(start, stop):
                    context = [text[j] if j >= 0 and (reads_span or j < start) else -1 for j in (i - 2, i - 1)]
                    nats -= np.log(p((), text[i])), np.log(p(tuple(context), text[i]))
        return dict(zip(("unigram", "trigram"), nats / num_bytes / math.log(2), strict=True))

    if name == "clm":
        found = measured(Continuation(**options), experiment, corpora)
        assert found["floors"] == pytest.approx(bits(lambda w: [(10, 20)], True), rel=1e-9)
        return
    found = measured(Infilling(**options, spans=(4,)), experiment, corpora)["spans"]["4"]
    prefix = "" if name == "ul2" else "masked_"
    expected = bits(lambda w: [w.span(4)], name == "ul2")
    assert found[f"{prefix}floors"] == pytest.approx(expected, rel=1e-9)
    if name == "masked_diffusion":  # the bound is of a likelihood, whose model reads the span from left to right
        assert found["floors"] == pytest.approx(bits(lambda w: [w.span(4)], True), rel=1e-9)
        found = measured(Continuation(**options), experiment, corpora)
        assert found["floors"] == pytest.approx(bits(lambda w: [(10, 20)], True), rel=1e-9)
    if name == "mlm":
        found = measured(PseudoLogLikelihood(**options, unit="word"), experiment, corpora)
        words = bits(lambda w: unit_spans(w.tokens, "word", experiment.vocab), False)
        assert found["pseudo_floors"] == pytest.approx(words, rel=1e-9)


@pytest.mark.parametrize("documents", ["join", "pack", "split"])
def test_the_floors_of_clm_are_of_the_tokens_and_bytes_of_an_evaluation(modules, documents):
    experiment, corpora = modules("clm", data__documents=documents, data__inputs_length=64, train__eval_windows=0)
    metrics = evaluate(make_run(experiment, show_progress=False), params_of(experiment.learner))
    floors = heldout_floors(experiment, corpora)
    p = reference_of(texts_of(corpora.train_documents), len(corpora.each[0].store.unigram_counts))
    texts = texts_of(corpora.heldout_documents)
    nats, tokens = np.zeros(2), 0
    for text in texts:
        for u, v, w in zip([EOS, EOS, *text[:-1]], [EOS, *text], [*text, EOS], strict=False):
            nats, tokens = nats - (math.log(p((), w)), math.log(p((u, v), w))), tokens + 1
    assert metrics["tokens/clm"] == tokens
    assert list(floors["loss"].values()) == pytest.approx(nats / tokens, rel=1e-9)
    for name in ("unigram", "trigram"):
        ratio = floors["bits_per_byte"][name] / floors["loss"][name]
        assert ratio == pytest.approx(metrics["bits_per_byte"] / metrics["loss"], rel=1e-6)
        assert floors["perplexity"][name] == pytest.approx(math.exp(floors["loss"][name]))
    printed = printed_floors(experiment, corpora)
    assert printed["floors"] == floors["bits_per_byte"] and printed["floors_train_tokens"] > 10_000


def test_several_corpora_have_the_weights_of_an_evaluation(corpus):
    config = ConfigDict(small_config("clm", "decoder_only", data__cache_dir=str(corpus / "cache")))
    modules = corpus_fields(source="text", documents="pack", path=str(corpus / "text"), weight=3.0)
    labelled = corpus_fields(source="jsonl", documents="split", path=str(corpus / "labelled.jsonl"), weight=1.0)
    use_corpora(config, {"modules": modules, "labelled": labelled})
    experiment = make_experiment(config)
    run = make_run(experiment, show_progress=False)
    metrics = evaluate(run, params_of(experiment.learner))
    floors = heldout_floors(experiment, run.corpora)
    ratio = floors["bits_per_byte"]["trigram"] / floors["loss"]["trigram"]
    assert ratio == pytest.approx(metrics["bits_per_byte"] / metrics["loss"], rel=1e-6)
    assert floors["loss"]["trigram"] < floors["loss"]["unigram"]
    options = {"num_documents": 4, "windows_per_document": 1, "length": 16}
    assert measured(Continuation(**options), experiment, run.corpora)["floors"].keys() == {"unigram", "trigram"}


def test_classes_by_hand(tmp_path):
    """Trains on a, a, a, b, and holds out a, b, b, b; the class c occurs in neither."""
    lines = {"train": "aaab", "heldout": "abbb"}
    for name, labels in lines.items():
        texts = [json.dumps({"text": f"{name} {k}", "label": label}) for k, label in enumerate(labels)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(texts))
    fields = {"data__path": str(tmp_path / "train.jsonl"), "data__heldout_path": str(tmp_path / "heldout.jsonl")}
    fields |= {"data__source": "jsonl", "data__cache_dir": str(tmp_path / "cache")}
    experiment = small_experiment("classification", "encoder_only", **fields, objective__classes=("a", "b"))
    corpora = open_corpora(experiment, show_progress=False)
    # Guesses: 3 of 4 are a, of which 1 of 4 is right: F1 = 2 x 3/16 / (3/4 + 1/4), and the same of b.
    floors = {"majority class": 0.25, "class frequencies": 0.375}
    assert printed_floors(experiment, corpora) == {"floors": floors}
    assert heldout_floors(experiment, corpora)["accuracy"] == {"majority class": 0.25}


def test_a_long_text_counts_as_often_as_the_accuracy_counts_it(tmp_path):
    """A text of three rows of a class is trained on, and held out, three times."""
    texts = {"train": [("x" * 80, "a"), ("y", "b"), ("z", "b")], "heldout": [("u" * 80, "a"), ("v", "b")]}
    for name, pairs in texts.items():
        rows = [json.dumps({"text": text, "label": label}) for text, label in pairs]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    fields = {"data__path": str(tmp_path / "train.jsonl"), "data__heldout_path": str(tmp_path / "heldout.jsonl")}
    fields |= {"data__source": "jsonl", "data__cache_dir": str(tmp_path / "cache"), "data__inputs_length": 32}
    experiment = small_experiment("classification", "encoder_only", **fields, objective__classes=("a", "b"))
    run = make_run(experiment, show_progress=False)
    metrics = evaluate(run, params_of(experiment.learner))
    assert metrics["tokens/classification"] == 4
    assert heldout_floors(experiment, run.corpora)["accuracy"] == {"majority class": 0.75}


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("mlm", "encoder_only"), ("hybrid:mntp", "decoder_only"), ("masked_diffusion:response", "encoder_only")],
)
def test_the_floor_of_hidden_tokens_is_of_the_scored_positions(modules, name, architecture):
    """The loss of an evaluation whose model predicts each token with its frequency among the training tokens."""
    experiment, corpora = modules(name, architecture)
    counts, documents = np.zeros(len(corpora.each[0].store.unigram_counts)), corpora.train_documents
    for i in range(len(documents)):
        counts += np.bincount([*documents.tokens(i), EOS], minlength=len(counts))
    probabilities = (counts + 1) / (counts + 1).sum()
    heldout, side = experiment.heldout(corpora.heldout_documents), architecture.partition("_")[0]
    loss = weight = 0.0
    for n in range(heldout.batches.end):
        batch = heldout.batches[n]
        weights, targets = batch[f"{side}_loss_weights"], batch[f"{side}_target_tokens"]
        loss -= (weights * np.log(probabilities[np.where(weights > 0, targets, EOS)])).sum()
        weight += batch.get(f"{side}_loss_denominators", weights).sum()
    floors = heldout_floors(experiment, corpora)
    assert set(floors) == {"loss", "perplexity"} and floors["loss"]["unigram"] == pytest.approx(loss / weight)
    assert 2 < loss / weight < 5 and printed_floors(experiment, corpora) == {}


@pytest.mark.parametrize(
    ("name", "architecture"), [("span_corruption", "encoder_decoder"), ("sop", "encoder_only"), ("fim", "decoder_only")]
)
def test_other_objectives_have_no_floor_in_their_own_loss(modules, name, architecture):
    experiment, corpora = modules(name, architecture)
    assert heldout_floors(experiment, corpora) == {} == printed_floors(experiment, corpora)
