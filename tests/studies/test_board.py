"""The board: its tables by hand, from folders with outcomes, what is refused first, and foreign text."""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest

from configs.studies.base import heldout_loss, probe, raw_tokens, study, success_rate, throughput, variant
from contract.errors import ConfigError
from studies import board
from studies.measures import make_measure
from studies.plan import Plan, PlannedRun, VariantPlan, jobs_of
from studies.results import Outcome, StudyFolder
from studies.study import make_study
from tests.studies.test_report import make_outcome, make_results

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

EXACT = probe("exact_match", "exact_match", better="higher")
MEASURES = {"loss": heldout_loss(config="configs/mlm.py"), "solved": success_rate(EXACT, at=0.9), "speed": throughput()}
LOSSES = {"clm": [2.00, 2.10, 2.20], "roll": [1.501, 1.600, 1.699], "mlm": [2.02, 2.07, 2.21]}
SHARES = {"clm": [0.0, 0.0, 0.1], "roll": [1.0, 1.0, 0.7], "mlm": [0.0, 0.1, 0.1]}


def write_study(
    folder,
    layers=2,
    floor=3.0,
    name="retrieval",
    speed=100.0,
    floor_name="unigram",
    floor_of="loss",
    warnings=(),
    **changes,
):
    """Writes the folder of a finished study that no run gave. layers: of the baseline; all others have 2."""
    fields = dict(
        question="Which <objective>?",
        config="configs/clm.py",
        baseline="clm",
        variants={name: variant() for name in LOSSES},
        budget=raw_tokens(1e6),
        measures=MEASURES,
        seeds=3,
    )
    made = make_study(study(**fields | changes), f"{name}.py")
    mains = {
        name: {"model": {"architecture": "decoder_only", "num_layers": layers if name == "clm" else 2}}
        for name in LOSSES
    }
    variants = {
        name: VariantPlan(name=name, main=PlannedRun("", main, 0, 0.0), fine_tunings={}, heldout_digest="aa")
        for name, main in mains.items()
    }
    measures = {name: make_measure(name, of) for name, of in made.measures.items()}
    plan = Plan(made, variants, measures, warnings=warnings)
    there = StudyFolder(folder)
    there.begin(plan, {"data.path": "my text"})
    for job in jobs_of(plan):
        values = {"loss": LOSSES[job.variant][job.seed], "solved": SHARES[job.variant][job.seed], "speed": speed}
        outcome = make_outcome(job.variant, job.seed, values, config_digest=plan.config_digest(job, {}))
        there.write(
            job, Outcome(**vars(outcome) | {"floors": {floor_of: {floor_name: floor}}, "code": "a", "measured_by": "a"})
        )
    return there.path


def run(monkeypatch, out, *folders, hardware="2 cores of a | machine"):
    argv = ["train.board", f"--studies={folders[0]}", *map(str, folders[1:]), f"--hardware={hardware}", f"--out={out}"]
    monkeypatch.setattr("sys.argv", argv)
    board.main()
    return out.read_text()


@pytest.fixture
def folder(tmp_path):
    return write_study(tmp_path / "studies" / "gym_facts")


def test_tables_by_hand(folder, tmp_path, monkeypatch):
    page = run(monkeypatch, tmp_path / "board.md", folder)
    # As in test_report: Dunnett's p is 0.0015, three times that for three measures. Seconds are 60, 61 and 62.
    expected = [
        "| task | measure (which is better) | best objectives | beyond noise against the baseline | smallest p ",
        "| gym\\_facts | `loss` (lower) | `roll` | `roll` better | 0.004 |",
        "| gym\\_facts | `solved` (higher) | `roll` | none |",
        "| parameters | `loss` (lower) | `solved` (higher) | `speed` (higher) | FLOPs | raw tokens | minutes a run |",
        "| `clm` (baseline) | 1.23M | 2.100 [1.852, 2.348] | 0 of 3 seeds [0.00, 0.56] |",
        "| `roll` | 1.23M | 1.600 [1.354, 1.846]; better, p = 0.004 | 2 of 3 seeds [0.21, 0.94]; no significant ",
        "| 6T | 1M | 1.0 |",
        "| *unigram* | – | 3.000 | – | – | – | – | – |",
        "Minutes are those of training steps, a mean over seeds, on: 2 cores of a \\| machine.",
        "Which &lt;objective>? 9 of 9 runs are complete.",
        "Runs recorded: cpu x 1.",
        "python -m train.ablate --study=retrieval.py --out=studies/gym_facts --seeds=3 "
        "--budget=1000000 --budget_unit=raw_tokens '--config.data.path=my text'",
        "--workdir=runs/roll_0",
        "![loss](board/gym_facts-loss.svg)",
        "](board.svg)",
    ]
    assert [line for line in expected if line not in page] == []
    assert "confounded" not in page and "nothing follows" not in page.lower()
    for link in ("board.svg", *(f"board/gym_facts-{name}.svg" for name in MEASURES)):
        assert (tmp_path / link).read_text().startswith("<?xml"), link
    assert "stroke-dasharray" in (tmp_path / "board" / "gym_facts-loss.svg").read_text()


def test_only_a_study_of_configs_with_its_question_is_named_as_such(tmp_path):
    """A study of one's own may have the name of one of configs/studies, as in test_tables_by_hand."""
    question = "Are values found by their keys, and keys by their values?"
    there = write_study(tmp_path / "facts", question=question)
    assert "--study=configs/studies/gym/retrieval.py " in board.read_study(str(there)).command
    there = write_study(tmp_path / "english", name="english")  # whose file there is no study
    assert "--study=english.py " in board.read_study(str(there)).command


def test_the_best_of_one_variant_and_of_none():
    def best(values, **fields):
        one = board.StudyText("facts", make_results({"loss": values}, **fields))
        assert one.measures is one.measures  # the analysis is made once
        return one.summary()[0][2]

    sweep = {"optimizer.learning_rate": [0.1, 0.2, 0.4]}
    assert best({"base": [1.0, 1.1, 1.2]}, sweep=sweep) == "`base` (baseline)"
    assert best({"base": [None] * 3, "good": [None] * 3}) == "no run has a value"
    assert best({"base": [1.0] * 3, "good": [1.0] * 3}) == "all are equal"


def test_only_paths_of_the_study_are_other_ones_in_its_commands():
    """Before, every value with /runs/ in it was."""
    command = (
        "python -m train.main --config.data.path=/data/runs/corpus --config.train.init_from={} --workdir=/s/runs/a"
    )
    results = make_results({"loss": {"a": [1.0], "b": [2.0]}}, seeds=1)
    commands = [command.format("/s/runs/a-start"), command.format("/models/runs/llama"), "python -m train.show"]
    runs = [dataclasses.replace(run, commands=commands * (run.variant == "a")) for run in results.outcomes]
    shown = board.StudyText("facts", dataclasses.replace(results, outcomes=runs)).commands.splitlines()
    command = command.replace("/s/runs/a", "runs/facts/a")
    assert shown == [command.format("runs/facts/a-start"), command.format("/models/runs/llama"), "python -m train.show"]


def test_bold_shares_are_those_of_the_measure_that_is_shown(folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(board, "draw_shares", lambda path, shares: drawn.append(shares) or pathlib.Path(path).touch())
    run(monkeypatch, tmp_path / "board.md", folder)
    [shares] = drawn
    assert shares == {
        "gym_facts: solved (share of seeds), baseline clm": {
            "clm": (0.0, False, True),
            "roll": (2 / 3, False, True),
            "mlm": (0.0, False, True),
        }
    }


def test_shares_that_are_no_better_than_a_guess_are_not_shaded(tmp_path):
    measures = {"loss": MEASURES["loss"], "solved": EXACT, "speed": throughput()}
    there = write_study(tmp_path / "facts", measures=measures, floor_of="solved", floor_name="chance", floor=0.1)
    [shares] = board.StudyText("facts", board.read_study(str(there))).shares().values()
    assert {name: cell.is_shaded for name, cell in shares.items()} == {"clm": False, "roll": True, "mlm": False}


def test_files_that_macos_adds_to_a_folder_are_no_outcomes(folder, tmp_path, monkeypatch):
    page = run(monkeypatch, tmp_path / "board.md", folder)
    for file in list((folder / "outcomes").iterdir()):
        file.with_name(f"._{file.name}").write_bytes(b"\0\5\x16\7Mac OS X\xff")
    assert run(monkeypatch, tmp_path / "board.md", folder) == page


def test_a_page_without_words_on_the_hardware(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.board", f"--studies={folder}", f"--out={tmp_path / 'board.md'}"])
    board.main()
    page = (tmp_path / "board.md").read_text()
    assert "a mean over seeds." in page and "Runs recorded: cpu x 1." in page


def test_equal_studies_give_an_equal_page_in_place_of_the_old_one(folder, tmp_path, monkeypatch):
    out = tmp_path / "board.md"
    other = write_study(tmp_path / "gym_other", speed=90.0)
    first = run(monkeypatch, out, folder)
    run(monkeypatch, out, folder, other)
    assert (tmp_path / "board" / "gym_other-loss.svg").exists()
    assert run(monkeypatch, out, folder) == first
    assert not (tmp_path / "board" / "gym_other-loss.svg").exists()


@pytest.mark.parametrize(
    ("changes", "headline", "row"),
    [
        ({"layers": 4}, "**Confounded: the variants also differ in `model.num_layers`", "(**confounded**)"),
        (
            {"floor": 1.0},
            "**Nothing follows from some measures: no variant is better than unigram in `loss`.**",
            "| nothing follows: no variant is better than unigram | none |",
        ),
    ],
)
def test_a_study_from_which_nothing_follows_says_so(changes, headline, row, tmp_path, monkeypatch):
    page = run(monkeypatch, tmp_path / "board.md", write_study(tmp_path / "facts", **changes))
    assert headline in page and row in page.partition("##")[0]


def test_the_warnings_of_a_report_are_those_of_the_board(tmp_path, monkeypatch):
    folder = write_study(tmp_path / "facts", warnings=["1 of 2 files held out"])
    StudyFolder(folder).add_report(2)
    page = run(monkeypatch, tmp_path / "board.md", folder)
    assert "**Warning: 1 of 2 files held out.**" in page and "also written with 2 seeds" in page


def test_the_report_of_a_kept_study_is_linked_and_foreign_names_are_text(folder, tmp_path, monkeypatch):
    kept = tmp_path / "docs" / "results" / "a_b](x) | `c <i>"
    shutil.copytree(folder, kept)
    (kept / "report.md").write_text("a report")
    page = run(monkeypatch, tmp_path / "docs" / "board.md", kept)
    assert "## a\\_b\\](x) \\| \\`c &lt;i>" in page
    shown = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", page)  # code shows everything as it is
    assert "<i>" not in shown
    assert "[Report](results/a_b%5D%28x%29%20%7C%20%60c%20%3Ci%3E/report.md)" in page
    assert "![loss](board/a_b%5D%28x%29%20%7C%20%60c%20%3Ci%3E-loss.svg)" in page


def test_the_names_of_floors_and_of_studies_are_text(tmp_path, monkeypatch):
    """Nothing follows from runs at a floor, which the sentences of a study name."""
    folder = write_study(tmp_path / "studies" / "s", floor=0.5, floor_name="<script>x</script> [a](b) |", name="**[a]")
    run(monkeypatch, tmp_path / "board.md", folder)
    written = (tmp_path / "board.md").read_text()
    assert (
        r"**Nothing follows from some measures: no variant is better than &lt;script>x&lt;/script> \[a\](b) \|"
        in written
    )
    assert "<script>" not in written and "'--study=**[a].py'" in written


def damage(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_missing_unfinished_or_damaged_is_one_line_and_nothing_is_written(folder, tmp_path, monkeypatch):
    kinds = {name: shutil.copytree(folder, tmp_path / name) for name in ("unfinished", "failed", "damaged", "no_runs")}
    (kinds["unfinished"] / "outcomes" / "mlm-seed1.json").unlink()
    damage(kinds["failed"] / "outcomes" / "clm-seed0.json", state="failed", reason="no memory")
    damage(kinds["damaged"] / "outcomes" / "clm-seed0.json", config_digest="0")
    damage(kinds["no_runs"] / "study.json", runs={})
    same = shutil.copytree(folder, tmp_path / "again" / "gym_facts")
    out = tmp_path / "board.md"
    refused = {
        (tmp_path / "none",): "none has no study.json: name the folder of a study",
        (folder, kinds["unfinished"]): "unfinished is not finished: mlm-seed1 is missing: .* --study=.*--out=/",
        (kinds["failed"],): "failed is not finished: clm-seed0 is failed: no memory: finish it with",
        (kinds["damaged"],): "config_digest is not that of the run's config",
        (kinds["no_runs"],): "study.json is damaged: KeyError.*: restore it, or leave the study out",
        (folder, same): "have one name, gym_facts: rename one of the folders",
    }
    for folders, message in refused.items():
        with pytest.raises(ConfigError, match=message) as error:
            run(monkeypatch, out, *folders)
        assert "\n" not in str(error.value) and str(folders[-1]) in str(error.value)
    assert not out.exists() and not (tmp_path / "board").exists()


def test_files_that_are_not_of_a_board_are_not_replaced(folder, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "mine").mkdir()
    for out, message in {
        tmp_path / "README.md": "would replace .*README.md",
        tmp_path / "mine.md": "would replace .*mine, which is of no board",
        tmp_path / "board.txt": "must end in .md",
    }.items():
        with pytest.raises(ConfigError, match=message):
            run(monkeypatch, out, folder)
    assert (tmp_path / "README.md").read_text() == "mine" and not [*(tmp_path / "mine").iterdir()]


def test_variants_at_a_floor_are_named_and_their_p_is_not_that_of_a_verdict(tmp_path, monkeypatch):
    folder = write_study(tmp_path / "studies" / "gym_facts", floor=1.7, floor_name="trigram")
    page = run(monkeypatch, tmp_path / "board.md", folder)
    # Losses: clm 2.1 and mlm 2.1 are worse than the floor, roll 1.6 is not shown to be better.
    assert "| `loss` (lower) | nothing follows: no variant is better than trigram | none | – |" in page
    folder = write_study(tmp_path / "studies" / "gym_other", floor=2.09, floor_name="trigram", baseline="roll")
    page = run(monkeypatch, tmp_path / "other.md", folder)
    assert "| `loss` (lower) | `roll` (baseline) | `clm`, `mlm` no better than trigram | – |" in page
