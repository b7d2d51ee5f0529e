"""Writes one page about finished studies: python -m train.board --studies=DIR [DIR ...] --out=FILE.md

    python -m train.board --studies='studies/gym_*' --hardware='2 cores of a Xeon 8481C' --out=board.md

DIR, or a glob, is --out of a finished python -m train.ablate, or a folder with its study.json and outcomes/. Writes
FILE.md; pictures of its columns in the folder FILE; and FILE.svg, the share of exact answers by objective and task, if
a study has that measure. Needs matplotlib and jinja2: pip install -e '.[plot]'.
"""

import dataclasses
import functools
import glob
import os
import re
import shlex
import statistics
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from files.atomic import check_output, read_json, write_text
from files.paths import check_local
from studies.analysis import Measured, analyse, count_families
from studies.markdown import NONE, decimals_for, number, probability, text
from studies.measures import make_measure
from studies.plan import Plan, PlannedRun, VariantPlan
from studies.plot import Share, draw_shares
from studies.report import headline, import_report_libraries, remove_figures, render, variant_row
from studies.results import Results, StudyFile, StudyFolder
from studies.statistics import summarize
from studies.study import RESERVED, check_study, load_study
from studies.tables import MeasureText, SweepText

_FLAGS = flags.FlagValues()
_STUDIES = flags.DEFINE_list("studies", [], "Folders of finished studies, or globs.", flag_values=_FLAGS)
_OUT = flags.DEFINE_string("out", None, "File to write, .md.", _FLAGS, required=True)
_HARDWARE = flags.DEFINE_string("hardware", "", "What the runs were trained on, in words.", _FLAGS)
_MARK = "<!-- Written by python -m train.board. -->"  # the first line of a board, which the command may replace
_WIDTH = 4.2  # of a column's picture, in inches
_ROOT = Path(__file__).parent.parent


def main() -> None:
    """Reads the command line and writes the page."""
    others = parse_flags(_FLAGS, __doc__, positional=True)
    names = [*_STUDIES.value, *others]
    if not names:
        raise ConfigError("--studies is missing: name folders of finished studies, --out of python -m train.ablate")
    import_report_libraries()
    check_board(_OUT.value)
    # read_study names a folder that is missing.
    found = [sorted(map(os.path.normpath, glob.glob(name))) or [name] for name in names]
    by_name: dict[str, str] = {}
    for folder in dict.fromkeys(folder for folders in found for folder in folders):
        name = Path(os.path.abspath(folder)).name
        if name in by_name:
            raise ConfigError(
                f"--studies: {by_name[name]} and {folder} have one name, {name}: rename one of the folders"
            )
        by_name[name] = folder
    command = shlex.join(["python", "-m", "train.board", *sys.argv[1:]])
    studies = {name: read_study(folder) for name, folder in by_name.items()}
    write_board(studies, by_name, _HARDWARE.value, _OUT.value, command)
    print(f"written to {_OUT.value}")


def check_board(out: str) -> None:
    """Raises ConfigError unless a board can be written to `out`: a new file, or an earlier board, with its pictures."""
    path = Path(out)
    if path.suffix != ".md":
        raise ConfigError(f"--out={out} must end in .md")
    check_output(out)
    is_board = path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_MARK)
    others = [other for other in (path, path.with_suffix(".svg"), path.with_suffix("")) if other.exists()]
    if others and not is_board:
        raise ConfigError(f"--out={out} would replace {others[0]}, which is of no board: name another file")


def read_study(path: str) -> Results:
    """Returns what the runs of the finished study in the folder `path` gave, without its configs and its corpus.

    Raises ConfigError, one line, if the folder is not that of a study, and for runs that are damaged or not finished.
    """
    check_local(path, f"--studies={path}")
    folder, remedy = StudyFolder(path), "restore it, or leave the study out"
    if not (folder.path / "study.json").is_file():
        raise ConfigError(f"--studies={path} has no study.json: name the folder of a study, --out of train.ablate")
    there = folder.study_file(remedy)
    check_study(there.study, str(folder.path / "study.json"))
    try:
        command = _command(there, f"studies/{Path(os.path.abspath(path)).name}")
        results = folder.results(_plan(there, folder, remedy), command, there.overrides)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder.path / 'study.json'} is damaged: {error!r}: {remedy}") from error
    for run in [*results.problems, *results.sweeps]:
        if run.state not in ("complete", "diverged"):
            raise ConfigError(
                f"--studies={path} is not finished: {run.job.name} is {run.state}: {run.reason}: finish it with "
                f"{_command(there, path)}, or leave it out"
            )
    return results


def _plan(there: StudyFile, folder: StudyFolder, remedy: str) -> Plan:
    """Returns the plan from which the study's runs came, as far as study.json and the outcomes have it."""
    outcomes = [read_json(file, remedy=remedy) for file in sorted((folder.path / "outcomes").glob("[!.]*.json"))]
    digests = {bool(one.get("field")): one["heldout_digest"] for one in outcomes if one.get("heldout_digest")}

    def planned(fields: dict[str, Any]) -> PlannedRun:
        return PlannedRun(config="", fields=fields, raw_tokens=0, flops=0)

    variants = {
        name: VariantPlan(
            name=name,
            start=planned(runs["start"]) if runs["start"] else None,
            main=planned(runs["main"]),
            fine_tunings={measure: planned(fields) for measure, fields in runs.items() if measure not in RESERVED},
            sweep={field: tuple(values) for field, values in runs["sweep"].items()},
            heldout_digest=digests.get(False, ""),
            validation_digest=digests.get(True, ""),
            tokenizer=there.tokenizers.get(name, ""),
        )
        for name, runs in {name: there.runs[name] for name in there.study.variants}.items()
    }
    measures = {name: make_measure(name, of) for name, of in there.study.measures.items()}
    return Plan(there.study, variants, measures, warnings=there.warnings)


def _command(there: StudyFile, out: str) -> str:
    """Returns the command that runs a study. The file is one of configs/studies if its name and question are."""
    files = sorted((_ROOT / "configs" / "studies").rglob("*.py"))
    named = (file for file in files if file.stem == there.study.name and "def get_study(" in file.read_text("utf-8"))
    found = [file for file in named if load_study(str(file)).question == there.study.question]
    file = found[0].relative_to(_ROOT).as_posix() if found else f"{there.study.name}.py"
    return there.study.command(file, out, there.overrides)


@dataclasses.dataclass(frozen=True)
class StudyText:
    """A study on the board, as Markdown. report, figures: links from the page; figures: measure -> link."""

    name: str
    results: Results
    report: str = ""
    figures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def measures(self) -> list[MeasureText]:
        """The measures of the study."""
        return [MeasureText(found, count_families(self.results)) for found in analyse(self.results)]

    @property
    def headline(self) -> str:
        """The headline of the study's report."""
        untimed = [one.found for one in self.measures if not one.found.is_timed]
        swept = dict.fromkeys(run.field for run in self.results.sweeps)
        return headline(self.results, untimed, [SweepText(self.results, untimed[0], field) for field in swept])

    @property
    def header(self) -> list[str]:
        """The header of the table."""
        measures = [one.found.title for one in self.measures]
        return ["objective", "parameters", *measures, "FLOPs", "raw tokens", "minutes a run"]

    def rows(self) -> list[list[str]]:
        """Returns the table: a row a variant, and a row a floor."""
        columns = [{row[0]: _cell(one.found, row) for row in one.rows()} for one in self.measures]
        totals = {row[0]: row for row in (variant_row(name, self.results) for name in self.results.study.variants)}
        rows = []
        for name in dict.fromkeys([*totals, *(name for column in columns for name in column)]):
            _, _, _, params, _, tokens, flops = totals.get(name, [NONE] * 7)
            seconds = [run.seconds for run in self.results.of(name.strip("`")) if name in totals]
            minutes = statistics.fmean(seconds) / 60 if seconds else None
            shown = name + " (baseline)" * (name == f"`{self.results.study.baseline}`")
            cells = [column.get(name, NONE) for column in columns]
            rows.append([shown, params, *cells, flops, tokens, number(minutes, decimals_for(minutes or 0, 2))])
        return rows

    def summary(self) -> list[list[str]]:
        """Returns the rows of the first table: one for each measure of quality."""
        rows, marks = [], " (**confounded**)" * bool(self.results.confounders)
        marks += " (**mixed code**)" * bool(self.results.versions)
        for found in (one.found for one in self.measures if not one.found.is_timed):
            kinds = {name: found.kind(pair) for name, pair in found.to_baseline.items()}
            beyond = [f"`{name}` {kind}" for name, kind in kinds.items() if kind in ("better", "worse")]
            of_verdicts = ("better", "worse", "no significant difference")  # not of variants at a floor
            pairs = [pair for name, pair in found.to_baseline.items() if kinds[name] in of_verdicts]
            tests = [pair.corrected for pair in pairs if pair.corrected is not None]
            floors: dict[str, list[str]] = {}
            for name, floor in found.at_floor.items():
                floors.setdefault(floor, []).append(f"`{name}`")
            if not found.nothing_follows:
                for floor, names in floors.items():
                    listed = ", ".join(names) if len(names) <= 3 else f"{len(names)} of {len(found.values)} variants"
                    beyond.append(f"{listed} no better than {text(floor)}")
            said = f"nothing follows: {found.nothing_follows}" if found.nothing_follows else ""
            said = "each on its own objective: not compared" if found.is_own else said
            best = ", ".join(f"`{name}`" + " (baseline)" * (name == found.baseline) for name in _best(found))
            cells = [
                text(said) or best or ("all are equal" if _levels(found) else "no run has a value"),
                ", ".join(beyond) or "none",
                probability(min(tests, default=None)),
            ]
            rows.append([text(self.name) + marks, found.title, *cells])
        return rows

    @property
    def recorded(self) -> str:
        """What the outcomes say about the machine: each device, and each kind of processor with its cores."""
        found = [run.environment.get(name) for name in ("device", "machine") for run in self.results.outcomes]
        return "; ".join(filter(None, dict.fromkeys(found))) or "no machine"

    @property
    def commands(self) -> str:
        """The commands of the first complete run of each variant, in workdirs that are not those of the study."""
        firsts = [runs[0] for name in self.results.study.variants if (runs := self.results.of(name))]
        commands = []
        for command in (command for run in firsts for command in run.commands):
            there = re.search(r"--workdir=(\S*/runs/)", command)
            commands.append(command.replace(f"={there[1]}", f"=runs/{self.name}/") if there else command)
        return "\n".join(commands)

    def shares(self) -> dict[str, dict[str, Share]]:
        """Returns title -> variant -> the mean of exact answers: bold if better than the baseline's, shaded if than
        every floor.

        The measure is that of the study's success rate, or its first of exact answers where no seed succeeds; {} if it
        has none. If the study has its success rate alone, the share is that of the seeds that succeed.
        """
        exact = [one.found for one in self.measures if one.found.fields.get("probe") == "exact_match"]
        if not exact:
            return {}
        found = next((one for one in exact if any(good for good, _ in one.counts.values())), exact[0])
        metric = found.fields["metric"]  # a success rate is of values that another measure may show, as "exact"
        found = next((one for one in exact if one.fields["metric"] == metric and not one.is_success_rate), found)
        remarks = ["confounded"] * bool(self.results.confounders) + ["nothing follows"] * bool(found.nothing_follows)
        better = {name for name, pair in found.to_baseline.items() if found.kind(pair) == "better"}
        levels = _levels(found)
        cells = {name: Share(level, name in better, name not in found.at_floor) for name, level in levels.items()}
        name = f"{found.name} (share of seeds)" if found.is_success_rate else found.name
        return {": ".join([self.name, ", ".join([name, f"baseline {found.baseline}", *remarks])]): cells}


def _cell(found: Measured, row: Sequence[str]) -> str:
    """Returns what a row of a measure's table says, in one cell: its level, and the verdict against the baseline."""
    level, p, verdict = row[1], row[-2], row[-1]
    if verdict == "floor":
        return row[2] if found.is_success_rate else level
    p = f", p {p if p.startswith('<') else f'= {p}'}" if p != NONE else ""
    return level if verdict == NONE else f"{level}; {verdict}{p}"


def _levels(found: Measured) -> dict[str, float]:
    """Returns the mean of each variant, or its share of seeds that succeed."""
    if found.is_success_rate:
        return {name: good / runs for name, (good, runs) in found.counts.items() if runs}
    means = {name: summarize(values).mean for name, values in found.values.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def _best(found: Measured) -> list[str]:
    """Returns the variants with the best mean, or with the most seeds that succeed; [] if several are all equal."""
    levels = _levels(found)
    choose = max if found.better == "higher" or found.is_success_rate else min
    best = [name for name, level in levels.items() if level == choose(levels.values())]
    return best if len(best) < max(len(levels), 2) else []


def write_board(
    studies: Mapping[str, Results], folders: Mapping[str, str], hardware: str, out: str, command: str
) -> None:
    """Writes the page `out` and its pictures. studies: name -> results. folders: name -> that of the study.

    hardware: what the runs were trained on, or "". command: that writes this page. Equal arguments give equal files.
    """
    page, pictures = Path(out), Path(out).with_suffix("")
    pictures.mkdir(exist_ok=True)
    texts, drawn = [], set[str]()
    for name, results in studies.items():
        figures = {}
        for measure in StudyText(name, results).measures:
            if measure.figure:
                figure = pictures / f"{name}-{measure.found.name}.svg"
                measure.draw(figure, width=_WIDTH)
                drawn.add(figure.name)
                figures[measure.found.name] = urllib.parse.quote(f"{pictures.name}/{figure.name}")
        report, here = Path(folders[name], "report.md").resolve(), page.resolve().parent
        link = report.relative_to(here).as_posix() if report.is_file() and report.is_relative_to(here) else ""
        texts.append(StudyText(name, results, urllib.parse.quote(link), figures))
    remove_figures(pictures, keep=drawn)
    shares = {title: of for one in texts for title, of in one.shares().items()}
    if shares:
        draw_shares(str(page.with_suffix(".svg")), shares)
    else:
        page.with_suffix(".svg").unlink(missing_ok=True)
    board = render(
        "board.md.jinja",
        mark=_MARK,
        summary=[row for one in texts for row in one.summary()],
        shares=urllib.parse.quote(f"{page.stem}.svg") if shares else "",
        studies=texts,
        hardware=hardware,
        command=command,
    )
    write_text(page, board)


if __name__ == "__main__":
    run_command(main)
