"""How often each place of a text is masked: equally often, by every objective that predicts masked tokens in place."""

import itertools
import pathlib
import sysconfig
from math import comb

import numpy as np
import pytest

from contract.windows import Windows
from objectives import MLM, denoisers_of
from objectives.algebra.noise import random_spans_noise_mask, span_counts
from objectives.rows.collate import extra_columns_of
from tests.objectives.helpers import byte_ids, random_keys, vocab
from tests.table import CASES, objective_of

VOCAB = vocab()
OBJECTIVES = {
    f"{name} {denoiser.name}": denoiser.objective
    for name, architecture in CASES
    if architecture == "encoder_only"
    for denoiser in denoisers_of(objective_of(name), "masked")
    if isinstance(denoiser.objective, MLM) and denoiser.objective.expected()  # SimCSE has a variant without masks
}
EDGE = 6  # places at each end of a text whose rates are tested
LENGTH = 126  # of a window in a row of 128, as at the tiny presets


def random_text(n):
    """Independent letters, spaces and line breaks: the law of words is the same at every place."""
    return byte_ids("abcdefg \n")[np.random.default_rng(0).choice(9, (n, LENGTH), p=[0.11] * 7 + [0.18, 0.05])]


def source_code(n):
    """Windows that begin anywhere in the standard library."""
    paths = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150]
    text = byte_ids("".join(path.read_text(encoding="utf-8") for path in paths))
    begins = np.random.default_rng(0).integers(0, len(text) - LENGTH, n)
    return text[begins[:, None] + np.arange(LENGTH)]


def masked(objective, tokens):
    """Yields the examples of windows `tokens`, 1000 at a time."""
    lengths, ones = np.full(1000, LENGTH), np.ones(1000, np.int32)
    for k in range(0, len(tokens), 1000):
        part = tokens[k : k + 1000]
        columns = {"others_tokens": np.roll(part, 1, axis=0), "others_lengths": lengths}
        columns |= {"begins_document": ones < 0, "ends_document": ones < 0}
        windows = Windows(part, lengths, np.arange(1000), random_keys(1000, k), ones, **columns)
        columns = extra_columns_of(objective.extra_columns, windows, np.arange(1000))
        yield objective.corrupt(part, lengths, windows.keys, VOCAB, **columns)


def rates(pieces):
    """The share of selected tokens at the first EDGE places of a text, at the last EDGE places, and at all others.

    Float arrays [EDGE], [EDGE] and a number, with the standard error of the first two. pieces: (selected, which
    positions of these rows belong to the text), bool [n, W] each. Rows with texts below 4 * EDGE tokens are left out.
    """
    selected, total = np.zeros((2, 2, EDGE))
    others, num_others = 0, 0
    for is_selected, is_text in pieces:
        is_text = is_text & (is_text.sum(axis=1, keepdims=True) >= 4 * EDGE)
        front = is_text.cumsum(axis=1) - 1
        back = is_text.sum(axis=1, keepdims=True) - 1 - front
        for side, place in enumerate((front, back)):
            edge = is_text & (place < EDGE)
            np.add.at(total[side], place[edge], 1)
            np.add.at(selected[side], place[edge], is_selected[edge])
        middle = is_text & (front >= EDGE) & (back >= EDGE)
        others, num_others = others + is_selected[middle].sum(), num_others + middle.sum()
    rate = others / num_others
    return selected[0] / total[0], selected[1] / total[1], rate, np.sqrt(rate * (1 - rate) / total[0])


def is_text(examples):
    """bool [E, W]: the ordinary tokens."""
    inside = np.arange(examples.targets.shape[1]) < examples.inputs.lengths[:, None]
    return inside & (examples.targets < VOCAB.content_end)


def check_flat(objective, tokens, tolerance):
    pieces = ((examples.selected, is_text(examples)) for examples in masked(objective, tokens))
    first, last, middle, error = rates(pieces)
    assert 0.87 < middle / objective.mask_rate < 1.07
    for at_edge in (first, last):
        np.testing.assert_array_less(np.abs(at_edge - middle), 4 * error + tolerance * middle)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if not name.startswith("sop")])
def test_every_place_of_a_text_is_selected_equally_often(name):
    """Up to a few percent with whole words, because the words at a row's ends are known in part."""
    objective = OBJECTIVES[name]
    check_flat(objective, random_text(20_000), 0.03 if objective.mask_unit == "word" else 0.0)


@pytest.mark.parametrize("name", ["mlm:whole_word masked", "mlm:ngram masked", "mlm:span masked"])
def test_every_place_of_source_code_is_selected_equally_often(name):
    check_flat(OBJECTIVES[name], source_code(20_000), 0.03)


def test_the_places_of_a_and_b_are_selected_equally_often_in_sop():
    """A and B begin and end with sentences, whose first and last words have lengths of their own. So the first places
    of A are compared with those of B, and the last places likewise."""
    examples = [part for part in masked(OBJECTIVES["sop:sop masked"], source_code(20_000))]
    found = []
    for token_type in (0, 1):
        pieces = [
            (part.selected, is_text(part) & (part.token_types == token_type) & (part.labels >= 0)[:, None])
            for part in examples
        ]
        found.append(rates(pieces))
    for (first, last, _, error), (of_b, last_of_b, _, error_of_b) in [found]:
        limit = 4 * np.hypot(error, error_of_b)
        np.testing.assert_array_less(np.abs(first - of_b), limit)
        np.testing.assert_array_less(np.abs(last - last_of_b), limit)


def noise_law(length, density, mean_span):
    """The probability that each place is noise under T5's `random_spans_noise_mask`, float [length].

    Place i is in noise span j if q of the i tokens before it are the first j clean spans, and the other i - q tokens
    are the first j - 1 noise spans and a part of the next. A composition is a set of cuts, all equally likely.
    """
    noise, spans = (int(count[0]) for count in span_counts(np.asarray([length]), density, mean_span))
    clean, law = length - noise, np.zeros(length)
    for i, j, q in itertools.product(range(length), range(1, spans + 1), range(1, clean + 1)):
        p = i - q
        if not 0 <= p < noise:
            continue
        if (q == clean) != (j == spans):
            continue
        ends_clean_span = comb(q - 1, j - 1) * (comb(clean - q - 1, spans - j - 1) if j < spans else 1)
        inside_noise_span = comb(p, j - 1) * comb(noise - 1 - p, spans - j)
        law[i] += ends_clean_span * inside_noise_span / (comb(clean - 1, spans - 1) * comb(noise - 1, spans - 1))
    return law


@pytest.mark.parametrize(("length", "density", "mean_span"), [(40, 0.15, 3.0), (30, 0.5, 3.0), (24, 0.3, 1.0)])
def test_span_corruption_has_the_rates_of_t5s_compositions(length, density, mean_span):
    """The first place is never noise, and the last one always is. With `random_roll` all places are equally likely."""
    n, law = 40_000, noise_law(length, density, mean_span)
    assert law[0] == 0 and law[-1] == 1 and law.mean() == pytest.approx(round(length * density) / length)
    arguments = dict(noise_density=density, mean_noise_span_length=mean_span)
    for roll, expected in ((False, law), (True, np.full(length, law.mean()))):
        mask = random_spans_noise_mask(random_keys(n), np.full(n, length), length, random_roll=roll, **arguments)
        error = np.sqrt(expected * (1 - expected) / n)
        np.testing.assert_array_less(np.abs(mask.mean(axis=0) - expected), 4 * error + 1e-9)
