"""Files of minimal pairs: what is read, which pairs a limit leaves, and lines that are not pairs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from contract.errors import ConfigError
from evaluation.probes.minimal_pairs import MinimalPairs, Pair, read_pairs
from evaluation.scorer import Scores, TextScores
from tests.table import small_experiment

PAIR = {"good": "a b", "bad": "b a"}


def write(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_groups_are_optional_and_may_have_another_key(tmp_path):
    lines = [PAIR, PAIR | {"group": "x"}, "", PAIR | {"kind": "y", "other": 3}]
    path = write(tmp_path / "pairs.jsonl", lines)
    assert [pair.group for pair in read_pairs(path, None)] == ["", "x", ""]
    path = write(tmp_path / "pairs.jsonl", [PAIR | {"kind": "y"}])
    assert read_pairs(path, "kind") == [Pair("a b", "b a", "y")]


def test_a_sentence_has_the_sum_of_its_tokens_unknown_ones_too_and_a_tie_is_one_half(tmp_path, monkeypatch):
    """Nats of four pairs: 3 of two tokens and 4 of four, 1 + 5 and 4, two equal sentences, and two equal sums."""
    scores = TextScores(
        nats=np.array([3.0, 4.0, 1.0, 4.0, 2.0, 2.0 + 1e-7, 7.0, 7.0]),
        tokens=np.array([2, 4, 2, 2, 3, 3, 4, 4]),
        bytes=np.full(8, 9),
        unknown_nats=np.array([0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        unknown_tokens=np.array([0, 0, 1, 0, 0, 0, 0, 0]),
        is_exact=np.zeros(8, bool),
    )
    monkeypatch.setattr("evaluation.probes.minimal_pairs.score_texts", lambda *_, **__: scores)
    path = write(tmp_path / "pairs.jsonl", [PAIR, PAIR, {"good": "a b", "bad": "a b"}, PAIR])
    model = SimpleNamespace(experiment=small_experiment("clm", "decoder_only"))
    found = MinimalPairs(path=path).measure(model, None)["log_likelihood"]
    assert found["accuracy"] == (1 + 0 + 1 / 2 + 1 / 2) / 4 and found["ties"] == 2


INVALID = {
    "no bad": ([PAIR, {"good": "a"}], r":2 has no 'bad': a pair is an object with 'good' and 'bad'"),
    "not an object": (["[1]"], r":1 has no 'good' and no 'bad'"),
    "not JSON": ([PAIR, "", "{good"], r":3 is not JSON \(.*column 2\)"),
    "not a string": ([PAIR | {"bad": 3}], r":1 has 3 for 'bad', which must be a string"),
    "empty file": (["", ""], r"pairs.jsonl has no pairs: write one object"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_lines_are_named(case, tmp_path):
    lines, message = INVALID[case]
    path = write(tmp_path / "pairs.jsonl", lines)
    with pytest.raises(ConfigError, match=message) as error:
        read_pairs(path, None)
    assert "\n" not in str(error.value) and "--path" in str(error.value)


@pytest.mark.parametrize("name", ["clm", "mlm"])
def test_a_sentence_that_does_not_fit_a_row_is_refused(name, tmp_path):
    """Also with positions that are not learned."""
    architecture = {"clm": "decoder_only", "mlm": "encoder_only"}[name]
    experiment = small_experiment(name, architecture, model__positions="rope", data__inputs_length=40)
    path = write(tmp_path / "pairs.jsonl", [PAIR, PAIR | {"bad": "a" * 41}])
    with pytest.raises(ConfigError, match=r"the bad sentence of pair 2 has 0 .* 41 of .* too many for data"):
        MinimalPairs(path=path).measure(SimpleNamespace(experiment=experiment), None)


def test_a_sentence_without_tokens_is_named(tmp_path):
    """SentencePiece reads a zero-width space as white space."""
    pytest.importorskip("sentencepiece")
    from tests.data.tiny_tokenizers import sentencepiece

    tokenizer = sentencepiece(tmp_path / "t5.model")
    experiment = small_experiment("clm", "decoder_only", data__tokenizer=tokenizer)
    path = write(tmp_path / "pairs.jsonl", [PAIR, PAIR | {"bad": "\u200b"}])
    with pytest.raises(ConfigError, match=r"pairs\.jsonl:2 has no tokens in 'bad': correct that line$"):
        MinimalPairs(path=path).check(experiment)


def test_unknown_tokens_count_in_the_scores_of_sentences():
    """Of two tokens of 1 nat, the second of the good sentence is unknown and has 5: the bad one, of 3, is likelier."""
    experiment = small_experiment("clm", "decoder_only")
    denoiser, vocab, letter = experiment.denoisers[0], experiment.vocab, experiment.vocab.content_start
    nats_of = {letter: 1.0, letter + 1: 2.0, vocab.unk: 5.0}

    def score(examples, **_):
        for number, example in examples:
            nats = np.array([nats_of[token] for token in example.hidden.tolist()])
            yield number, example, Scores(nats, nats < 0)

    model = SimpleNamespace(experiment=experiment, score=score)
    texts = [np.array([letter, other], np.int32) for other in (vocab.unk, letter + 1)]
    probe = MinimalPairs(path="pairs.jsonl")
    found = probe._accuracy(model, "log_likelihood", denoiser, [Pair("a?", "ab", "")], texts)
    assert found["accuracy"] == 0.0 and found["ties"] == 0
