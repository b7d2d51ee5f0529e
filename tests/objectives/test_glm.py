"""GLM: the example of its docstring, the law of each kind of blank, texts restored by positions, and prompts."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.batch import check_batch
from contract.errors import ConfigError
from generate.prompts import prompt_batch, read_prompt
from objectives import GLM
from objectives.algebra.sequences import span_starts
from objectives.glm import Blanks
from tests.objectives.helpers import byte_ids, collator, random_keys, random_windows, sequence, vocab
from tests.table import small_experiment
from tests.train.tiny_experiments import tiny_experiment

VOCAB = vocab()
M, EOS = VOCAB.mask, VOCAB.eos
SPANS = GLM("spans", 0.15, 3.0, "stops_and_newlines")
SENTENCES = GLM("sentences", 0.15, 3.0, "stops_and_newlines")
DOCUMENT = GLM("document", 0.5, 3.0, "stops_and_newlines")
KINDS = {"spans": SPANS, "sentences": SENTENCES, "document": DOCUMENT}
FIELDS = {"name": "glm", "blanks": "document", "mask_rate": 0.5, "poisson_lambda": 3.0, "sentence_ends": "stops"}


def blanks_of(objective, length, n, seed=0):
    """The hidden tokens, and the first ones of blanks, of n random texts with line ends."""
    tokens = np.random.default_rng(seed).integers(3, 259, (n, length)).astype(np.int32)
    tokens[np.random.default_rng(seed + 1).random(tokens.shape) < 0.1] = 3 + ord("\n")
    blanks = objective._blanks(tokens, np.full(n, length), random_keys(n, seed), VOCAB)
    return tokens, blanks


def test_the_example_of_the_docstring(monkeypatch):
    """x1 ... x6 are 11 ... 16; x3, and x5 x6, are blanks, and the second one comes first."""
    starts, hidden = np.asarray([[0, 0, 1, 0, 1, 0]], bool), np.asarray([[0, 0, 1, 0, 1, 1]], bool)
    monkeypatch.setattr(GLM, "_blanks", lambda *_: Blanks(starts, hidden))
    monkeypatch.setattr("objectives.glm.rng.draw", lambda *_: np.asarray([[1, 0]]))
    tokens = np.arange(11, 17, dtype=np.int32)[None]
    objective = GLM("spans", 0.5, 3.0, "stops")
    examples = objective.corrupt(tokens, np.asarray([6]), random_keys(1), VOCAB)
    assert sequence(examples.inputs) == [11, 12, M, 14, M, EOS]
    assert sequence(examples.targets) == [15, 16, EOS, 13, EOS]
    assert examples.positions.tolist() == [[5, 6, 7, 3, 4]]

    windows = random_windows(np.random.default_rng(0), [6])._replace(tokens=tokens)
    batch = collator(objective, "decoder_only", inputs=12)(windows, 1)
    check_batch(batch, "decoder_only")
    assert batch["decoder_input_tokens"].tolist() == [[0, 11, 12, M, 14, M, EOS, 15, 16, EOS, 13, 0]]
    assert batch["decoder_target_tokens"].tolist() == [[11, 12, M, 14, M, EOS, 15, 16, EOS, 13, EOS, 0]]
    assert batch["decoder_positions"].tolist() == [[0, 1, 2, 3, 4, 5, 5, 6, 7, 3, 4, 0]]
    assert batch["decoder_loss_weights"].tolist() == [[0] * 6 + [1] * 5 + [0]]
    assert batch["decoder_bidirectional_mask"].tolist() == [[1] * 7 + [0] * 5]  # the first target is predicted in 7


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_positions_tell_which_span_replaces_which_mask(kind, lengths, seed):
    """Inputs, targets and positions restore the text: a span's first position is that of its [MASK]."""
    objective, lengths = KINDS[kind], np.asarray(lengths)
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 259, (len(lengths), lengths.max())).astype(np.int32)
    tokens[generator.random(tokens.shape) < 0.2] = 3 + ord("\n")
    examples = objective.corrupt(tokens, lengths, random_keys(len(lengths), seed), VOCAB)
    for e, length in enumerate(lengths):
        inputs, targets = sequence(examples.inputs, e), sequence(examples.targets, e)
        positions, filled = examples.positions[e], list(map(lambda token: [token], inputs[:-1]))
        begin = 0
        for end in [k for k, token in enumerate(targets) if token == EOS]:
            first = int(positions[begin])
            assert positions[begin : end + 1].tolist() == list(range(first, first + end + 1 - begin))
            assert filled[positions[begin] - 1] == [M] and end > begin
            filled[positions[begin] - 1] = targets[begin:end]
            begin = end + 1
        assert begin == len(targets) and [M] not in filled
        assert list(itertools.chain(*filled)) == tokens[e, :length].tolist()


def test_spans_hold_15_percent_of_the_tokens_and_have_poisson_lengths():
    _, blanks = blanks_of(SPANS, 400, n=600)
    assert (blanks.hidden.sum(axis=1) == 60).all()
    np.testing.assert_array_equal(blanks.starts, span_starts(blanks.hidden))  # a token at least between two spans
    draws = np.bincount(np.cumsum(blanks.starts.ravel())[blanks.hidden.ravel()] - 1)
    law = [math.exp(-3) * 3**k / math.factorial(k) / (1 - math.exp(-3)) for k in range(1, 6)]
    found = [(draws == k).mean() for k in range(1, 6)]
    assert found == pytest.approx(law, abs=5 * math.sqrt(0.25 / len(draws)))
    assert draws.mean() == pytest.approx(3 / (1 - math.exp(-3)), abs=5 * draws.std() / math.sqrt(len(draws)))


def test_all_places_of_spans_are_equally_likely():
    """Of 9 tokens 3 are hidden. One span has 7 places, and two spans, of 1 and 2 or 2 and 1 tokens, 21 each."""
    objective = GLM("spans", 1 / 3, 3.0, "stops")
    _, blanks = blanks_of(objective, 9, n=20_000)
    by_starts: dict[int, Counter] = {}
    for starts, hidden in zip(blanks.starts, blanks.hidden, strict=True):
        by_starts.setdefault(int(starts.sum()), Counter())[bytes(hidden)] += 1
    assert len(by_starts[1]) == 7 and len(by_starts[2]) == 42 and len(by_starts[3]) == 35
    counts = np.asarray(list(by_starts[1].values()))
    assert np.abs(counts - counts.mean()).max() < 5 * math.sqrt(counts.mean())


def test_blanks_come_in_every_order():
    starts = np.tile(np.asarray([1, 0, 1, 0, 1], bool), (6000, 1))
    tokens, lengths = np.tile(np.arange(10, 15, dtype=np.int32), (6000, 1)), np.full(6000, 5)
    objective = type("Fixed", (GLM,), {"_blanks": lambda *_: Blanks(starts, starts)})(*vars(SPANS).values())
    targets = objective.corrupt(tokens, lengths, random_keys(6000), VOCAB).targets.tokens
    orders = Counter(map(tuple, targets[:, ::2].tolist()))
    assert set(orders) == set(itertools.permutations([10, 12, 14]))
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in orders.values())


def test_sentences_are_hidden_until_they_hold_15_percent(monkeypatch):
    text = byte_ids("A cat. It sat.\nNo dogs here at all, none!")
    monkeypatch.setattr("objectives.glm.rng.draw", lambda keys, allowed, counts: np.asarray([[0, 1, 2]]))
    examples = SENTENCES.corrupt(text[None], np.asarray([len(text)]), random_keys(1), VOCAB)
    assert len(text) * 0.15 > len("A cat.")  # so that a second sentence follows the first one
    assert sequence(examples.inputs) == [M, M, *byte_ids("No dogs here at all, none!"), EOS]
    assert sequence(examples.targets) == [*byte_ids("A cat."), EOS, *byte_ids(" It sat.\n"), EOS]
    assert examples.positions.tolist() == [[*range(1, 8), *range(2, 12)]]


def test_sentences_are_hidden_up_to_their_ends():
    tokens, blanks = blanks_of(GLM("sentences", 0.15, 3.0, "newlines"), 100, n=200)
    last = np.pad(blanks.hidden[:, 1:], ((0, 0), (0, 1))) < blanks.hidden
    assert (tokens[last & (np.arange(100) < 99)] == 3 + ord("\n")).all()
    assert (blanks.hidden.sum(axis=1) >= 15).all()


def test_a_span_of_at_least_half_of_the_document_is_at_its_end_or_anywhere():
    n, length = 8000, 20
    _, blanks = blanks_of(DOCUMENT, length, n)
    assert (blanks.starts.sum(axis=1) == 1).all() and (span_starts(blanks.hidden).sum(axis=1) == 1).all()
    sizes = blanks.hidden.sum(axis=1)
    assert np.abs(np.bincount(sizes, minlength=21)[10:] - n / 11).max() < 5 * math.sqrt(n / 11)
    places = np.bincount(blanks.hidden[sizes == 15].argmax(axis=1), minlength=6)  # of the first token
    expected = places.sum() / 12 * np.asarray([1, 1, 1, 1, 1, 7])
    assert (np.abs(places - expected) < 5 * np.sqrt(expected)).all()


def test_a_prompt_with_one_blank_or_none_is_laid_out_as_in_training(monkeypatch):
    experiment = tiny_experiment(FIELDS, "decoder_only", model={"positions": "rope"})
    windows = random_windows(np.random.default_rng(0), [12])
    tokens = windows.tokens % 26 + 100
    hidden = (np.arange(12) >= 3) & (np.arange(12) < 9)
    monkeypatch.setattr(GLM, "_blanks", lambda *_: Blanks((np.arange(12) == 3)[None], hidden[None]))
    row = experiment.collate(windows._replace(tokens=tokens), 1)
    inputs = row["decoder_input_tokens"][0, 1:9].tolist()
    prompt, notes = read_prompt(experiment, experiment.tokenizer.decode(inputs[:-1]), None)
    assert notes == [] and prompt.inputs.tolist() == inputs and prompt.position == 4
    batch = prompt_batch(experiment, [prompt])
    for name in ("decoder_input_tokens", "decoder_positions", "decoder_segment_ids", "decoder_bidirectional_mask"):
        assert batch[name].tolist() == row[name][:, :9].tolist(), name
    completed = prompt.prompting.complete(prompt.text, tokens[0, 3:9], experiment.vocab)
    assert completed.tolist() == tokens[0].tolist()
    at_end, _ = read_prompt(experiment, "ab", None)
    assert at_end.inputs.tolist() == [100, 101, M, EOS] and at_end.position == 3
    assert at_end.prompting.complete(at_end.text, np.array([50]), experiment.vocab).tolist() == [100, 101, 50]
    with pytest.raises(ConfigError, match=r"the prompt has 2 \[MASK\], and this run's model fills in one blank, whose"):
        read_prompt(experiment, "a[MASK]b[MASK]", None)


def test_positions_that_count_distances_in_a_row_are_refused():
    with pytest.raises(ConfigError, match=r"relative' does not say where .* with objective \(GLM\), whose targets"):
        small_experiment("glm", "decoder_only", model__positions="relative")


def test_the_span_that_is_cut_may_be_at_any_place():
    _, blanks = blanks_of(SPANS, 40, n=8000)
    number = np.cumsum(blanks.starts, axis=1) * blanks.hidden
    first, last = (number == 1).sum(axis=1), (number == number.max(axis=1, keepdims=True)).sum(axis=1)
    several = number.max(axis=1) > 1
    difference = (first - last)[several]
    assert abs(difference.mean()) < 5 * difference.std() / math.sqrt(len(difference))
