"""train.show's statistics against values worked out by hand."""

import numpy as np
import pytest

from show.examples import Chunk, examples_of, measure
from show.statistics import Statistic, Totals, compare, notes
from tests.show.batches import encoder_decoder_chunk
from tests.table import random_windows, small_experiment


def totals_of(experiment, chunks):
    totals = Totals(3)
    for chunk in chunks:
        examples = examples_of(chunk, experiment.vocab)
        totals.add(examples.denoiser_ids, measure(examples, experiment.vocab))
    return totals


def test_statistics_are_ratios_of_sums_over_all_chunks(ul2):
    texts = (("abcdefgh", "ab<extra_id_0>gh</s>"), ("ab", "<extra_id_0></s>"))  # 4 of 8 and 2 of 2 tokens are hidden
    chunks = (encoder_decoder_chunk(ul2.tokenizer, [raw], [inputs], ["x</s>"], [0]) for raw, inputs in texts)
    table = compare(totals_of(ul2, chunks), ul2, np.full(3, 1 / 3))
    measured = {name: statistic.measured for name, statistic in table["r"].items()}
    assert measured == {
        "share": 1.0,
        "corrupted": 0.6,
        "spans": 1.0,
        "span_length": 3.0,
        "inputs": 4.0,
        "targets": 2.0,
        "useful": 12 / 64,
    }
    expected = {name: statistic.expected for name, statistic in table["r"].items() if statistic.expected is not None}
    assert expected == {"share": 1 / 3, "corrupted": 0.3, "span_length": 3.0}
    assert table["r"]["span_length"].rounding == 0.5 * 3.0  # of one span
    assert table["r"]["corrupted"].differs and table["r"]["share"].differs and not table["r"]["span_length"].differs
    assert table["s"]["share"].differs and np.isnan(table["s"]["corrupted"].measured)


def test_differs():
    assert not Statistic(0.14, 0.15, 0.0).differs
    assert Statistic(0.13, 0.15, 0.0).differs and not Statistic(0.13, 0.15, 0.02).differs
    assert not Statistic(float("nan"), 0.15, 0.0).differs and not Statistic(0.5, None, 0.0).differs
    assert Statistic(0.006, 0.0, 0.005).differs and not Statistic(0.004, 0.0, 0.005).differs


def test_notes_explain_short_spans_and_examples_without_scored_tokens(ul2):
    table = {"x3": {"spans": Statistic(1.0, None, 0.0), "span_length": Statistic(22.0, 64.0, 32.0)}}
    chunk = encoder_decoder_chunk(ul2.tokenizer, ["ab"], ["a</s>"], ["b</s>"], denoiser_ids=[0])
    chunk.batch["decoder_loss_weights"][:] = 0
    totals = totals_of(ul2, [chunk])
    short = "x3: an example hides 22 tokens, too few for spans of 64, which need longer rows"
    assert notes(table, totals) == [short, "1 of 1 examples have no scored token"]
    assert notes(table, totals, scores_on_device=True) == [short]


def test_causal_rows_that_hide_nothing_count_as_the_others_of_their_denoiser():
    """Of three tokens two are read; a third of the rows hides neither. The last is shown as a mask where both are."""
    experiment = small_experiment("masked_inputs:uniform", "decoder_only")
    windows = random_windows(experiment, 64, same_keys=False)
    windows = windows._replace(lengths=np.full(64, 3), tokens=windows.tokens[:, :3])
    chunk = Chunk(windows, experiment.collate(windows, 64))
    hidden = experiment.denoisers[0].objective.hidden_mask(*windows[:2], windows.keys, experiment.vocab)
    hides = hidden.any(axis=1)
    assert 5 < (~hides).sum() < 40
    measured = compare(totals_of(experiment, [chunk]), experiment, np.ones(1))["masked_inputs"]
    assert measured["selected"].measured == 1.0
    assert measured["masked"].measured == (hidden.sum() + hidden[:, :2].all(axis=1).sum()) / 192


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
@pytest.mark.parametrize("name", ["masked_diffusion:next", "masked_diffusion:same", "block_diffusion:next"])
def test_each_selected_position_shows_a_mask_also_where_it_is_predicted_at_the_position_before(name, architecture):
    experiment = small_experiment(name, architecture)
    windows = random_windows(experiment, 16, same_keys=False)
    chunk = Chunk(windows, experiment.collate(windows, 16))
    measured = next(iter(compare(totals_of(experiment, [chunk]), experiment, np.ones(1)).values()))
    assert (measured["masked"].measured, measured["random"].measured, measured["kept"].measured) == (1, 0, 0)
