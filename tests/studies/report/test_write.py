"""report.md, report.html and the figures: what they contain, that they are deterministic and refer to nothing."""

import dataclasses
import html.parser
import pathlib
import re
import sys

import pytest

from configs.studies.base import fine_tuning, heldout_loss, samples, throughput
from contract.errors import ConfigError
from studies.report import write_report
from studies.report.curves import spread
from studies.report.numbers import (
    large,
    listed,
    number,
    probability,
    significant,
    size,
    with_interval,
)
from studies.report.statistics import Comparison
from studies.results import Problem, SweepPoint
from tests.studies.report.results import make_outcome, make_results, paper

VALUES = {"base": [2.00, 2.10, 2.20], "good": [1.501, 1.600, 1.699], "other": [2.02, 2.07, 2.21]}
UGLY = "*a* <b> `x` ``` | &lt; [c](d)"


def rich_results():
    """Results that use every part of a report."""
    results = make_results(
        {"loss": VALUES, "speed": {name: [100.0, 101.0, 103.0] for name in VALUES}},
        measures={"loss": heldout_loss(config="configs/mlm.py"), "speed": throughput(), "texts": samples("def")},
        problems=[Problem("other", 3, "failed", UGLY), Problem("other", 4, "failed", UGLY)],
        sweeps=[SweepPoint("good", "optimizer.learning_rate", value, None, UGLY) for value in (0.1, 0.2)],
        published=[paper({"base": 80.0, "good": 81.0}), paper(better_than=[("other", "base")])],
        notes=f"Notes {UGLY}",
        seeds=5,
    )
    outcomes = [
        dataclasses.replace(outcome, samples={"texts": {"def": UGLY}}, swept={"optimizer.learning_rate": 0.2})
        for outcome in results.outcomes
    ]
    return dataclasses.replace(results, outcomes=outcomes)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("report")
    paths = write_report(rich_results(), str(out))
    assert sorted(paths) == sorted(str(path) for path in out.rglob("*.*"))
    return out


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in order; collects attributes and visible text."""

    VOID = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.tags, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.open):
            self.texts.append(data)


def test_the_page_is_well_formed_and_refers_to_nothing_outside(report):
    text = (report / "report.html").read_text()
    page = Page(text)
    references = [
        (name, value)
        for name, value in page.attributes
        if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
    ]
    assert all(value.startswith("#") for _, value in references)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert "@import" not in text and not re.findall(r"url\((?!#)", text)
    identifiers = [value for name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers)) > 50  # two figures do not share one
    assert {value[1:] for _, value in references} <= set(identifiers)


def test_both_forms_have_the_same_parts_in_order(report):
    markdown, page = (report / "report.md").read_text(), Page((report / "report.html").read_text())
    text = "".join(page.texts)
    parts = [
        "Does the mask rate matter?",
        "This study is not complete: 9 of 11",
        "What is missing",
        "Results",
        "p (Holm)",
        "Learning curves",
        "Published results and these runs",
        "Author et al. (2020), Table 1",
        "Sweeps",
        "Samples",
        "How it was done",
        "Values of every run",
        "python -m train.ablate --study=configs/studies/mask_rates.py --out=studies/mask_rates",
        "# other, seed 2",
        "cpu x 1",
        "Times",
    ]
    for words in (re.sub(r"\\(.)", r"\1", markdown), text):
        places = [words.index(part) for part in parts]
        assert places == sorted(places)


def test_foreign_text_is_text(report):
    page = Page((report / "report.html").read_text())
    assert "b" not in page.tags and "".join(page.texts).count("<b>") >= 4
    markdown = (report / "report.md").read_text()
    assert r"\*a\* &lt;b> `x` \`\`\` \| &amp;lt; [c\](d) |" in markdown
    assert f"````\nprompt: def\n{UGLY}\n````" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| `other` | 3, 4 |")]
    assert len(rows) == 1 and len(re.findall(r"(?<!\\)\|", rows[0])) == 5


def test_the_figures_of_the_markdown_exist(report):
    names = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (report / "report.md").read_text())
    assert names == ["figures/dots_loss.svg", "figures/curves_by_raw_tokens.svg", "figures/curves_by_flops.svg"]
    assert all((report / name).read_text().startswith("<svg") for name in names)


def test_the_table_of_a_measure_by_hand(report):
    rows = [line for line in (report / "report.md").read_text().splitlines() if line.startswith("| `good` | 1.6")]
    # Differences -0.499, -0.5, -0.501: mean -0.5, half width 4.302653 x 0.001 / sqrt(3) = 0.0025, t = -866, and
    # p = 1 - t / sqrt(2 + t^2) = 1.33e-6, twice that by Holm.
    assert rows == ["| `good` | 1.600 [1.354, 1.846] | 3 | −0.5000 [−0.5025, −0.4975] | < 0.001 | better | best mean |"]


def test_equal_results_give_equal_files_and_times_change_only_their_section(report, tmp_path):
    write_report(rich_results(), str(tmp_path / "again"))
    results = rich_results()
    slower = [
        dataclasses.replace(outcome, seconds=1e3 + outcome.seed, values={**outcome.values, "speed": 7.0 + outcome.seed})
        for outcome in results.outcomes
    ]
    write_report(dataclasses.replace(results, outcomes=slower), str(tmp_path / "slower"))
    for path in sorted(report.rglob("*.*")):
        name, text = path.relative_to(report), path.read_text()
        assert (tmp_path / "again" / name).read_text() == text
        slow = (tmp_path / "slower" / name).read_text()
        if name.suffix == ".svg":
            assert slow == text
        else:
            heading = "## Times" if name.suffix == ".md" else "<h2>Times"
            assert slow.partition(heading)[0] == text.partition(heading)[0]
            assert slow != text and "speed" not in text.partition(heading)[0]


def test_a_new_report_replaces_the_figures_of_an_old_one(tmp_path):
    pytest.importorskip("matplotlib")
    write_report(make_results({"old": VALUES}), str(tmp_path))
    write_report(make_results({"new": VALUES}), str(tmp_path))
    assert {path.stem for path in tmp_path.glob("figures/*")} == {"dots_new", "curves_by_raw_tokens", "curves_by_flops"}


def test_many_variants_have_a_panel_each(tmp_path):
    pytest.importorskip("matplotlib")
    values = {f"variant_{place}": [2.0 + place, 2.1, 2.2] for place in range(12)}
    write_report(make_results({"loss": values}), str(tmp_path))
    assert "In each panel" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "figures/curves_by_flops.svg").read_text().count("_axes_") >= 12


def test_a_study_without_complete_runs_has_a_report(tmp_path):
    problems = [Problem(name, 0, "missing", "not started") for name in ("a", "b")]
    write_report(make_results({"loss": {"a": [], "b": []}}, problems=problems), str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "2 of 2 runs gave no result" in text and "## Results" not in text
    assert not list(tmp_path.glob("figures/*"))


def test_one_seed_and_lacking_values_are_said(tmp_path):
    pytest.importorskip("matplotlib")
    write_report(make_results({"loss": {"a": [1.0], "b": [2.0]}}, seeds=1), str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "One seed of each variant has no spread: there are no intervals and no tests." in text
    assert "| `b` | 2.000 | 1 | +1.000 | – | no test | no test |" in text
    write_report(make_results({"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, None, float("nan")]}}), str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "`b`: 2 complete runs without a value, left out of the mean, so that the variant is not tested and" in text


def test_runs_on_different_heldout_text_are_refused(tmp_path):
    results = make_results({"loss": VALUES})
    other = make_outcome("other", 2, {"loss": 2.0}, heldout_digest="bb")
    results = dataclasses.replace(results, outcomes=[*results.outcomes[:-1], other])
    message = r"runs of base, seed 0, and other, seed 2, hold out different text \(heldout_digest aa and bb\)"
    with pytest.raises(ConfigError, match=message):
        write_report(results, str(tmp_path))


def test_matplotlib_is_needed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"train.ablate --report needs matplotlib: pip install -e '.\[plot\]'"):
        write_report(make_results({"loss": VALUES}), str(tmp_path))


def test_a_folder_that_cannot_be_written(tmp_path):
    pytest.importorskip("matplotlib")
    pathlib.Path(tmp_path, "file").write_text("")
    with pytest.raises(ConfigError, match="the report cannot be written"):
        write_report(make_results({"loss": VALUES}), str(tmp_path / "file"))


def test_numbers_as_text():
    assert number(-0.0004, 3, sign=True) == "0.000" and number(-1234.5, 1) == "−1,234.5" and number(None, 2) == "–"
    assert [large(value) for value in (999, 999_936, 1.25e9, 6e12)] == ["999", "1M", "1.25B", "6e12"]
    assert listed(["a"]) == "a" and listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef"), 4) == "a, b, c, d and 2 others" and listed(list("abcde"), 4) == "a, b, c, d and e"


def test_a_p_below_the_level_does_not_look_equal_to_it():
    assert [probability(p) for p in (0.0499, 0.04996, 0.05, 0.0004, None)] == [
        "< 0.05",
        "< 0.05",
        "0.050",
        "< 0.001",
        "–",
    ]


def test_small_numbers_keep_their_digits():
    assert number(1.23456e-9, 11) == "1.23e-09".replace("-", "−") and number(2.0, 8) == "2.00000000"
    assert significant(0.0943, 2) == "0.094" and significant(94.3, 2) == "94" and significant(0.0, 2) == "0"
    precise = Comparison("a", "b", 3, -0.02, spread=0.0001)
    assert with_interval(precise, 1) == "−0.02000" and size(precise) == "0.0200"
    assert size(Comparison("a", "b", 3, 0.0123456)) == "0.012"


def test_control_characters_are_visible(tmp_path):
    pytest.importorskip("matplotlib")
    results = rich_results()
    text = "a\x00b\x1b[31m\x85\ud800\u202e\tc\n"
    outcomes = [dataclasses.replace(outcome, samples={"texts": {"def": text}}) for outcome in results.outcomes]
    write_report(dataclasses.replace(results, outcomes=outcomes), str(tmp_path))
    for name in ("report.md", "report.html"):
        written = (tmp_path / name).read_text()
        assert r"a\x00b\x1b[31m\x85\ud800\u202e" + "\tc\n" in written
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)


def test_tables_fit_long_names(report):
    style, _, page = (report / "report.html").read_text().partition("</style>")
    assert set(re.findall(r"([^}\n]*) \{[^}]*white-space: nowrap", style)) == {"tr > :first-child", ".interval"}
    assert (
        page.count('<span class="interval">[−0.5025, −0.4975]</span>') == 2
    )  # the measure's table and the literature's
    header = next(line for line in page.splitlines() if "<th>against the baseline</th>" in line)
    assert "base</code>" not in header


def test_a_fine_tuned_measure_names_its_config(tmp_path):
    pytest.importorskip("matplotlib")
    measures = {"accuracy": fine_tuning(overrides={"train.steps": 150})}
    write_report(make_results({"accuracy": VALUES}, measures=measures), str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "`accuracy` at the end of a fine-tuning of each run: `configs/classification.py`, `train.steps=150`." in text


def test_labels_are_kept_apart():
    assert spread([0.1, 0.12, 0.9], 0.1) == pytest.approx([0.1, 0.2, 0.9])
    assert spread([0.97, 0.98, 0.99], 0.1) == pytest.approx([0.8, 0.9, 1.0])
