"""The totals of a run: exact, equal to what its batches contain, and in every line of metrics.jsonl."""

import json
import re

import numpy as np
import pytest

from data.windows.batches import WindowCounts
from run.counters import Counters
from tests.table import reads_corpus, small_experiment
from train.loop import train_and_evaluate

TOTALS = ["examples", "raw_tokens", "scored_tokens", "flops", "seconds"]


def counts_of(first, count):
    """Batch n has n + 1 examples of "a" and 2^58 raw tokens, and one example of "b" with one token; a window each."""
    examples = np.array([sum(range(first + 1, first + count + 1)), count])
    return WindowCounts(examples, np.array([count * 2**58, count], np.int64), np.array([count, count]))


def counters(saved=None):
    return Counters({"a": (0,), "b": (1,)}, 1e19, counts_of, saved)


def test_totals_by_hand():
    totals = counters()
    assert totals.metrics() == dict.fromkeys(TOTALS, 0) and totals.shares() == {}
    for _ in range(3):
        totals.add_step(2**31 - 1, 0.5)
    assert totals.metrics() == {
        "examples": 1 + 2 + 3 + 3,
        "raw_tokens": 3 * 2**58 + 3,
        "scored_tokens": 3 * (2**31 - 1),
        "flops": 3e19,
        "seconds": 1.5,
    }
    assert totals.shares() == {
        "example_share/a": 6 / 9,
        "example_share/b": 3 / 9,
        "token_share/a": pytest.approx(1.0),
        "token_share/b": 3 / (3 * 2**58 + 3),
    }


@pytest.mark.parametrize("saved_after", [1, 2, 5, 9])
@pytest.mark.parametrize("logged_every", [1, 4])
def test_restored_counters_continue_exactly(saved_after, logged_every):
    whole, part = counters(), counters()
    for step in range(1, 11):
        for totals in (whole, part):
            totals.add_step(2**30 + step, 0.1)
        if step % logged_every == 0:
            part.metrics()
        if step == saved_after:
            part = counters(json.loads(json.dumps(part.state())))
    assert part.state() == whole.state() and part.metrics() == whole.metrics() and part.shares() == whole.shares()


def test_one_objective_has_no_shares():
    totals = Counters({"clm": (0,)}, 1.0, lambda first, count: WindowCounts(*np.full((3, 1), count)))
    totals.add_step(1, 1.0)
    assert totals.shares() == {}


@pytest.mark.parametrize(
    ("name", "architecture", "overrides"),
    [
        ("ul2", "encoder_decoder", {}),
        ("ul2", "decoder_only", {"data__examples_per_row": 2, "data__inputs_length": 80, "data__packing": "planned"}),
        ("sft", "decoder_only", {"train__grad_accum_steps": 2}),
        ("mlm", "encoder_only", {}),
    ],
)
def test_totals_of_a_run_are_those_of_its_batches(name, architecture, overrides, corpus, tmp_path, capsys):
    run = {"train__steps": 5, "train__eval_every": 3, "train__log_every": 2, "train__checkpoint_every": 5}
    experiment = small_experiment(name, architecture, **reads_corpus(name, corpus), **run, **overrides)
    train_and_evaluate(experiment, str(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["split"]) for line in lines] == [(2, "train"), (3, "eval"), (4, "train"), (5, "eval")]
    windows, scored = read_batches(experiment, 5)
    for line in lines:
        ids, lengths = (np.concatenate([batch[k] for batch in windows[: line["step"]]]) for k in range(2))
        assert line["examples"] == len(ids) and line["raw_tokens"] == lengths.sum()
        assert line["scored_tokens"] == sum(scored[: line["step"]])
        assert line["flops"] == line["step"] * experiment.train_step_flops
        shares = {name for name in line if re.match("(example|token)_share/", name)}
        if line["split"] == "eval" or name != "ul2":
            assert not shares
            continue
        assert len(shares) == 2 * len(experiment.denoisers)
        for k, denoiser in enumerate(experiment.denoiser_names):
            assert line[f"example_share/{denoiser}"] == np.mean(ids == k)
            assert line[f"token_share/{denoiser}"] == lengths[ids == k].sum() / lengths.sum()
    out = capsys.readouterr().out
    rows = re.findall(r"^ *(\w+) +(0\.\d+) +(0\.\d+) +(0\.\d+)$", out, re.M)
    assert [row[0] for row in rows] == (list(experiment.denoiser_names) if name == "ul2" else [])
    for place, (denoiser, as_set, examples, tokens) in enumerate(rows):
        total = sum(other.weight for other in experiment.denoisers)
        assert float(as_set) == pytest.approx(experiment.denoisers[place].weight / total, abs=1e-4), denoiser
        assert float(examples) == pytest.approx(np.mean(ids == place), abs=1e-4)
        assert float(tokens) == pytest.approx(lengths[ids == place].sum() / lengths.sum(), abs=1e-4)


def read_batches(experiment, steps):
    """For each step of the run: (denoiser ids, lengths) of its examples, and its positions with a loss weight."""
    from data.store.store import open_or_build
    from data.windows.split import split_documents

    store = open_or_build(experiment.data, experiment.tokenizer)
    documents, _ = split_documents(store, experiment.data.split)
    raw = experiment.batches(documents, transform=lambda windows, rows: windows)
    made = experiment.batches(documents)
    windows = [(batch.denoiser_ids, batch.lengths) for batch in map(raw.__getitem__, range(steps))]
    fields = [name for name in made[0] if name.endswith("_loss_weights")]
    return windows, [sum(np.count_nonzero(made[n][field]) for field in fields) for n in range(steps)]
