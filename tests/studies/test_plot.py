"""train.plot: the curves that it reads, the files that it writes, and its errors."""

import json
import shutil

import pytest

from command.flags import resolve
from contract.errors import ConfigError
from studies.plot import Share, draw_shares, draw_values, plot, read_curves
from workdir.workdir import Workdir

TOTALS = {"examples": 7, "raw_tokens": 70, "scored_tokens": 30, "flops": 1e20, "seconds": 0.5}
LINES = [
    {"step": 10, "split": "train", "loss": 3.0, "grad_norm": 1.0},
    {"step": 20, "split": "eval", "loss": 2.5, "loss/r": 2.0, "loss/s": 3.0, "accuracy": 0.1, **TOTALS},
    {"step": 40, "split": "eval", "loss": None, "loss/r": 1.0, "loss/s": 2.0, "accuracy": 0.2}
    | {name: 2 * total for name, total in TOTALS.items()},
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    Workdir(tmp_path / "run").write_config({"corpus": {"heldout": "aa"}})
    return str(tmp_path / "run")


def test_curves_of_a_metric_and_of_its_denoisers(run):
    assert read_curves(run, "loss", "train") == {"loss": ([10], [3.0])}
    assert read_curves(run, "accuracy", "eval", with_denoisers=True) == {"accuracy": ([20, 40], [0.1, 0.2])}
    assert read_curves(run, "loss", "eval", with_denoisers=True) == {
        "loss": ([20], [2.5]),  # null, a loss that is not finite, is no point
        "loss/r": ([20, 40], [2.0, 1.0]),
        "loss/s": ([20, 40], [3.0, 2.0]),
    }


def test_curves_over_totals(run, tmp_path, x="flops"):
    assert read_curves(run, "accuracy", "eval", x=x) == {"accuracy": ([TOTALS[x], 2 * TOTALS[x]], [0.1, 0.2])}
    pytest.importorskip("matplotlib")
    plot([run], str(tmp_path / "x.svg"), metric="loss", split="eval", x=x)


def test_the_same_runs_give_the_same_file(run, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        plot([run], str(tmp_path / name), metric="loss", split="eval")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    plot([run, run], str(tmp_path / "two.png"), metric="accuracy", split="eval")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": ["nowhere"]}, "nowhere is not the folder of a run: nowhere/metrics.jsonl: No such file"),
        ({"metric": "los"}, "--metric=los is not a metric of .*: it has loss, loss/r, loss/s, accuracy"),
        ({"metric": "step"}, "--metric=step is not a metric of .*: it has loss, loss/r"),
        ({"split": "train", "x": "flops"}, "--x=flops is not a metric of .*run with --split=train: it has loss"),
        ({"out": "x.txt"}, r"--out=x.txt must end in \.svg, \.png or \.pdf"),
    ],
)
def test_errors_are_one_line(run, changes, message):
    arguments = {"runs": [run], "out": "x.svg", "metric": "loss", "split": "eval"} | changes
    with pytest.raises(ConfigError, match=message) as error:
        plot(**arguments)
    assert "\n" not in str(error.value)


def test_runs_that_hold_out_different_text_are_not_compared(run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.jsonl").write_text((tmp_path / "run" / "metrics.jsonl").read_text())
    Workdir(tmp_path / "other").write_config({"corpus": {"heldout": "bb"}})
    with pytest.raises(ConfigError, match=r"hold out different text \(corpus\.heldout aa and bb in config\.json\)"):
        plot([run, str(tmp_path / "other")], "x.svg", metric="loss", split="eval")
    pytest.importorskip("matplotlib")
    plot([run, str(tmp_path / "other")], str(tmp_path / "x.svg"), metric="loss", split="train")


def test_losses_over_other_tokens_are_drawn_with_a_note(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    runs = [run_with(tmp_path / name, {"step": 1, "loss": 2.0, "bits_per_byte": 3.0}) for name in ("a", "b", "c")]
    for run, seed, name in zip(runs, (0, 1, 1), ("clm", "clm", "mlm"), strict=True):
        config = {"seed": seed, "objective": {"name": name}, "corpus": {"heldout": "aa"}}
        Workdir(run).write_config(config)
    plot(runs, str(tmp_path / "x.svg"), metric="loss", split="eval")
    [note] = capsys.readouterr().err.splitlines()
    assert f"{runs[0]} and {runs[2]} differ in objective.name: the loss of each is over its own tokens" in note
    plot(runs[:2], str(tmp_path / "x.svg"), metric="loss", split="eval")
    plot(runs, str(tmp_path / "x.svg"), metric="bits_per_byte", split="eval")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("field", "value", "metrics"),
    [
        ("data.tokenizer", "other.model", {"loss", "loss/pairs", "bits_per_byte"}),
        ("data.document_per", "paragraph", {"loss", "loss/pairs", "bits_per_byte"}),
        ("data.filters.min_tokens", 50, {"loss", "loss/pairs", "bits_per_byte"}),
        ("train.eval_windows", 0, {"loss", "loss/pairs", "bits_per_byte"}),
        ("data.sources.pairs.weight", 9.0, {"loss", "bits_per_byte"}),  # loss/pairs is of one corpus
        ("data.sources.text.documents", "pack", {"loss", "loss/pairs"}),  # bits per byte have a note on windows
    ],
)
def test_another_part_of_the_held_out_text_is_noted(field, value, metrics, tmp_path, capsys):
    """Before, only losses of other tokenizers and of other numbers of windows were."""
    pytest.importorskip("matplotlib")
    of_metric = dict.fromkeys(("loss", "loss/pairs", "bits_per_byte"), 2.0)
    runs = [run_with(tmp_path / name, {"step": 1} | of_metric) for name in "abc"]
    for run, changes in zip(runs, ({}, {field: value}, {"seed": 1}), strict=True):
        config = resolve(f"configs/{'multitask' if 'sources' in field else 'clm'}.py", changes, "")
        tokenizer = config["data"]["tokenizer"]
        config["data"]["tokenizer"] = run + tokenizer  # a copy
        Workdir(run).write_config(config | {"corpus": {"heldout": "aa", "tokenizer": tokenizer}})

    def notes(other, metric):
        plot([runs[0], other], str(tmp_path / "x.svg"), metric=metric, split="eval")
        return capsys.readouterr().err

    assert {
        metric for metric in of_metric if f"differ in {field}: the {metric} of" in notes(runs[1], metric)
    } == metrics
    assert not any(notes(runs[2], metric) for metric in of_metric)


def run_with(folder, *lines):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"split": "eval"} | line) + "\n" for line in lines))
    Workdir(folder).write_config({"corpus": {"heldout": "aa"}})
    return str(folder)


def test_a_run_without_a_finite_value_is_refused(run, tmp_path):
    diverged = run_with(tmp_path / "diverged", {"step": 1, "loss": None})
    for runs in ([diverged], [run, diverged]):
        with pytest.raises(ConfigError, match=r"^--metric=loss has no finite value in .*diverged with"):
            plot(runs, str(tmp_path / "x.svg"), metric="loss", split="eval")
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("suffix", [".svg", ".png"])
@pytest.mark.parametrize(
    "name", ["$\\frac{1}{$", "a\x1b[2J\u202e", "\u65e5\u672c\ue000", "\ud800", "<script>&", "w" * 5000, "{0}%s", "a\nb"]
)
def test_names_of_others_are_drawn_as_text_without_a_warning(tmp_path, name, suffix, recwarn):
    pytest.importorskip("matplotlib")
    out = str(tmp_path / f"a{suffix}")
    for draw in (
        lambda: draw_values(out, "loss", {"clm": {0: 1.0, 1: 2.0}}, "clm", {name: 1.0}),
        lambda: draw_shares(out, {name: {"clm": Share(0.5, True, True), "mlm": Share(0.5, False, False)}}),
    ):
        draw()
        assert (tmp_path / f"a{suffix}").stat().st_size and not recwarn.list
        (tmp_path / f"a{suffix}").unlink()


def test_a_run_of_any_name_is_drawn(run, tmp_path):
    pytest.importorskip("matplotlib")
    names = [str(tmp_path / "$\\frac{1}{$"), str(tmp_path / "a\x1b[2J")]
    for name in names:
        shutil.copytree(run, name)
    plot(names, str(tmp_path / "a.svg"), metric="loss", split="train")
    assert "\x1b" not in (tmp_path / "a.svg").read_text()


def test_bits_per_byte_of_other_windows_are_noted(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    names = {"clm": "clm", "same": "multi_token_prediction", "diffusion": "masked_diffusion"}
    runs = {name: str(tmp_path / name) for name in (*names, "unknown")}
    for name, folder in runs.items():
        shutil.copytree(run, folder)
        line = {"step": 1, "split": "eval", "bits_per_byte": 2.5, "accuracy": 0.5}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        config = resolve(f"configs/{names[name]}.py", {}, "") if name in names else {}
        Workdir(folder).write_config(config | {"corpus": {"heldout": "aa"}})

    def notes(*names, metric="bits_per_byte"):
        plot([runs[name] for name in names], str(tmp_path / "a.svg"), metric=metric, split="eval")
        return capsys.readouterr().err

    assert notes("clm", "same", "unknown") == ""
    (line,) = notes("clm", "diffusion").splitlines()
    said = f"other windows ({runs['clm']} 256 tokens (pack), {runs['diffusion']} 128 tokens (join)), and longer ones"
    assert said in line and "lower bits_per_byte by themselves: make them equal with data.inputs_length" in line
