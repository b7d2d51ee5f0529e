"""What a run reports: metrics by hand, lines that are means over their steps, totals that are those of its batches."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from data.windows.batches import WindowCounts
from run.corpus import open_corpora
from run.metrics import Totals, byte_metrics, summarize
from tests.table import reads_corpus, small_experiment
from train.loop import train_and_evaluate

TOTALS = ["examples", "raw_tokens", "scored_tokens", "flops", "seconds"]
TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}


def sums(loss=(6.0,), weight=(4.0,), correct=(1.0,)):
    return {
        "loss_sum": jnp.float32(sum(loss)),
        "weight_sum": jnp.float32(sum(weight)),
        "correct_sum": jnp.float32(sum(correct)),
        "loss_sum_by_group": jnp.array(loss, jnp.float32),
        "weight_sum_by_group": jnp.array(weight, jnp.float32),
        "correct_sum_by_group": jnp.array(correct, jnp.float32),
    }


def test_summary_by_hand():
    # The true tokens have probabilities 0.7, 0.9 and 0.25, whose -ln sum to 1.84833; two of them are the likeliest.
    loss = -(math.log(0.7) + math.log(0.9) + math.log(0.25))
    summary = summarize(sums((loss,), (3.0,), (2.0,)), ["clm"])
    assert summary == {
        "loss": pytest.approx(0.61611, abs=1e-5),
        "perplexity": pytest.approx(1.85170, abs=1e-4),
        "accuracy": pytest.approx(2 / 3),
        "loss/clm": pytest.approx(0.61611, abs=1e-5),
        "accuracy/clm": pytest.approx(2 / 3),
    }


def test_the_loss_weights_tokens_and_not_denoisers():
    summary = summarize(sums((1.0, 9.0), (1.0, 3.0), (1.0, 0.0)), ["r", "x"])
    assert (summary["loss"], summary["loss/r"], summary["loss/x"]) == (2.5, 1.0, 3.0)  # not (1 + 3) / 2
    assert (summary["accuracy"], summary["accuracy/r"], summary["accuracy/x"]) == (0.25, 1.0, 0.0)


def test_a_denoiser_without_scored_tokens_is_omitted_and_none_at_all_are_nan():
    assert not {"loss/s", "accuracy/s"} & set(summarize(sums((1.0, 0.0), (1.0, 0.0), (0.0, 0.0)), ["r", "s"]))
    assert math.isnan(summarize(sums((0.0,), (0.0,), (0.0,)), ["r"])["loss"])
    assert summarize(sums((4000.0,), (4.0,)), ["r"])["perplexity"] == math.inf


def test_byte_metrics_by_hand():
    """6 nats over 4 bytes that the tokens spell; with unknown tokens, 2% of the text's bytes are in no token."""
    bits, found = 6 / math.log(2) / 4, {"loss_sum": 6.0, "bytes_sum": 4.0}
    for covered in (1.0, 0.98):
        expected = {"bits_per_byte": pytest.approx(bits), "bytes_covered": covered}
        assert byte_metrics("bits_per_byte", found, covered) == expected


def counts_of(first, count):
    """Batch n has n + 1 examples of "a" and 2^58 raw tokens, and one example of "b" with one token; a window each."""
    examples = np.array([sum(range(first + 1, first + count + 1)), count])
    return WindowCounts(examples, np.array([count * 2**58, count], np.int64), np.array([count, count]))


def totals_of(saved=None):
    return Totals({"a": (0,), "b": (1,)}, 1e19, counts_of, saved, epoch_tokens=[2**57, 6])


def step(scored_tokens, losses=(0.0, 0.0), weights=(0.0, 0.0), f1=((0.0,), (0.0,)), useful=1.0):
    by_step = {"grad_norm": 1.0, "useful_token_fraction": useful, "scored_tokens": scored_tokens, "skipped_count": 0}
    return by_step | sums(losses, weights, (1.0, 1.0)) | {"ratios": {"macro_f1": tuple(map(np.float32, f1))}}


def test_totals_by_hand():
    totals = totals_of()
    assert totals.metrics() == dict.fromkeys(TOTALS, 0) and totals.shares() == {}
    for _ in range(3):
        totals.add(step(2**31 - 1), 0.5)
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
        "epochs": 3 * 2 + 3 / 6,
    }
    one = Totals({"clm": (0,)}, 1.0, lambda first, count: WindowCounts(*np.full((3, 1), count)), epoch_tokens=[4])
    one.add(step(1), 1.0)
    assert one.shares() == {"epochs": 0.25}


def test_passes_over_a_corpus_are_those_of_all_its_denoisers():
    """Both denoisers read corpus x, b with the EOS of its documents, and a reads corpus y."""
    counts = WindowCounts(
        examples=np.array([2, 3, 5]), raw_tokens=np.array([100, 220, 30]), windows=np.array([2, 3, 5])
    )
    corpora = {"corpora": {"x": (0, 1), "y": (2,)}, "epoch_tokens": [100, 110, 60]}
    totals = Totals({"a": (0, 2), "b": (1,)}, 1.0, lambda first, count: counts, **corpora)
    totals.add(step(1), 1.0)
    shares = totals.shares()
    assert [shares[f"{name}/x"] for name in ("epochs", "raw_tokens", "window_share")] == [1 + 2, 320, 0.5]
    assert [shares[f"{name}/y"] for name in ("epochs", "raw_tokens", "window_share")] == [0.5, 30, 0.5]


@pytest.mark.parametrize("saved_after", [None, 1])
def test_a_line_of_two_steps_by_hand(saved_after):
    totals, steps = totals_of(), [
        step(4, [6.0, 0.0], [3.0, 0.0], ([1.0, 0.0], [2.0, 0.0]), 0.5),
        step(4, [1.0, 4.0], [1.0, 4.0], ([1.0, 1.0], [2.0, 8.0]), 1.0),
    ]  # fmt: skip
    for number, metrics in enumerate(steps, start=1):
        totals.add(metrics, 0.1)
        if number == saved_after:
            totals = totals_of(json.loads(json.dumps(totals.state())))
    line, useful = totals.take_line()
    summary = summarize(line, ("a", "b"))
    assert summary["loss"] == 11 / 8 and summary["loss/a"] == 7 / 4 and summary["loss/b"] == 1.0
    assert summary["macro_f1"] == (2 / 4 + 1 / 8) / 2 and useful == 0.75
    assert totals.state()["line"] == []
    totals.add(steps[1], 0.1)
    assert summarize(totals.take_line()[0], ("a", "b"))["loss"] == 1.0, "the next line starts from zero"


@pytest.mark.parametrize("saved_after", [1, 2, 5, 9])
@pytest.mark.parametrize("logged_every", [1, 4])
def test_restored_totals_continue_exactly(saved_after, logged_every):
    whole, part = totals_of(), totals_of()
    for number in range(1, 11):
        for totals in (whole, part):
            totals.add(step(2**30 + number, (0.1 * number, 0.3)), 0.1)
        if number % logged_every == 0:
            part.metrics()
        if number == saved_after:
            part = totals_of(json.loads(json.dumps(part.state())))
    assert part.state() == whole.state() and part.metrics() == whole.metrics() and part.shares() == whole.shares()


@pytest.fixture(scope="module")
def ul2(corpus):
    """(log_every, steps at which the run is stopped) -> the experiment of 6 steps, as fields of a config."""

    def experiment_of(log_every, steps):
        run = {"train__log_every": log_every, "train__eval_every": 100, "train__checkpoint_every": 100}
        run |= {"optimizer__schedule": "constant", "train__steps": steps, **reads_corpus("ul2", corpus)}
        return small_experiment("ul2", "encoder_decoder", **run)

    return experiment_of


def train_lines(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == "train"]


@pytest.mark.slow
def test_lines_and_totals_are_those_of_the_batches_of_a_run(ul2, tmp_path):
    """A run that reports each step, and one that reports every third and is stopped and continued between two lines."""
    experiment = ul2(1, 6)
    train_and_evaluate(experiment, str(tmp_path / "every"))
    every = train_lines(tmp_path / "every")
    for steps in (4, 6):
        train_and_evaluate(ul2(3, steps), str(tmp_path / "third"))
    third = train_lines(tmp_path / "third")
    assert [line["step"] for line in every] == list(range(1, 7)) and [line["step"] for line in third] == [3, 6]
    tokens = np.diff([0, *(line["scored_tokens"] for line in every)])
    assert len(set(tokens.tolist())) > 1
    for line, steps in zip(third, (slice(0, 3), slice(3, 6)), strict=True):
        for metric in ("loss", "accuracy"):
            mean = np.average([step[metric] for step in every[steps]], weights=tokens[steps])
            assert line[metric] == pytest.approx(mean, rel=1e-5)
        useful = np.mean([step["useful_token_fraction"] for step in every[steps]])
        assert line["useful_token_fraction"] == pytest.approx(useful, rel=1e-6)
        assert line["grad_norm"] == every[steps][-1]["grad_norm"], "of the last step"
        of_totals = {name for name in line if name in TOTALS or "_share/" in name}
        assert all(line[name] == every[steps][-1][name] for name in of_totals - TIMED)

    documents = open_corpora(experiment, show_progress=False).train_documents
    windows = experiment.batches(documents, transform=lambda windows, rows: windows)
    batches = experiment.batches(documents)
    for line in every:
        read = [windows[n] for n in range(line["step"])]
        ids, lengths = (np.concatenate([getattr(w, name) for w in read]) for name in ("denoiser_ids", "lengths"))
        assert line["examples"] == len(ids) and line["raw_tokens"] == lengths.sum()
        scored = sum(np.count_nonzero(batches[n]["decoder_loss_weights"]) for n in range(line["step"]))
        assert line["scored_tokens"] == scored and line["flops"] == line["step"] * experiment.train_step_flops
        for k, denoiser in enumerate(experiment.denoiser_names):
            assert line[f"example_share/{denoiser}"] == np.mean(ids == k)
            assert line[f"token_share/{denoiser}"] == lengths[ids == k].sum() / lengths.sum()
