"""benchmarks.verdicts: the statistics of before, the simulation, and a stored report that is tested again."""

import math
import pathlib

import pytest

from benchmarks.verdicts import SETTINGS, paired, read_report, retest, simulate
from contract.errors import ConfigError

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"


def test_the_paired_test_of_before_by_hand():
    # The differences 1, 2, 3 have a mean of 2 and a standard error of 1 / sqrt(3): t = 2 sqrt(3). With 2 degrees of
    # freedom the two-sided p is 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14). Holm's factor is 2.
    values = {"b": {0: 10.0, 1: 20.0, 2: 30.0}, "a": {0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, "c": {0: 11.0, 1: 21.0}}
    assert paired("b", values) == {"a": pytest.approx(2 * (1 - math.sqrt(12 / 14))), "c": 1.0}


def test_the_simulation_has_a_line_for_each_setting():
    lines = list(simulate(2))
    assert [(line["setting"], line["seeds"]) for line in lines] == [(name, n) for name in SETTINGS for n in (3, 5, 8)]
    assert all(0 <= line[name] <= 1 for line in lines for name in ("found", "found_paired", "coverage"))


def test_a_stored_report_has_the_values_of_its_runs():
    results = read_report(RESULTS / "clm_vs_mlm" / "report.md")
    assert len(results.outcomes) == 15
    assert results.outcomes[0].values == {"accuracy": 0.46289, "macro_f1": 0.1949, "continuation": 2.6854}


def test_a_stored_report_tested_again():
    line, _ = retest(str(RESULTS / "clm_vs_mlm" / "report.md"), [])
    kept = {name: line["counts"][name] for name in ("differences", "before", "now", "kept")}
    assert kept == {"differences": 13, "before": 3, "now": 3, "kept": 3}
    assert line["counts"]["no spread published"] == 3 and not line["lost"]
    line, _ = retest(str(RESULTS / "clm_vs_mlm" / "report.md"), ["continuation:trigram:2.72"])
    assert line["counts"]["now"] == 3 and not line["counts"]["of variants above every floor"]


def test_a_report_or_floor_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="matches no file"):
        list(retest(str(tmp_path / "*.md"), []))
    with pytest.raises(ConfigError, match="--floor=trigram must be MEASURE:NAME:VALUE"):
        list(retest(str(RESULTS / "*" / "report.md"), ["trigram"]))
    (tmp_path / "report.md").write_text("# A report\n")
    with pytest.raises(ConfigError, match="has no table of values"):
        read_report(tmp_path / "report.md")
