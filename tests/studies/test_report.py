"""The report: its tables by hand, one verdict a pair, what does not compare, and foreign text as text."""

import dataclasses
import re
import sys

import numpy as np
import pytest

from configs.studies.base import heldout_loss, published, raw_tokens, samples, study, throughput, variant
from contract.errors import ConfigError
from studies.report import analyse, large, number, objectives_differ, probability, published_orders, text, write_report
from studies.results import Curve, Outcome, Results
from studies.study import make_study

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VALUES = {"base": [2.00, 2.10, 2.20], "good": [1.501, 1.600, 1.699], "other": [2.02, 2.07, 2.21]}
UNDER_MLM = heldout_loss(config="configs/mlm.py")
UGLY = "*a* <b> `x` ``` | &lt; [c](d)"


def make_results(values, *, measures=None, problems=(), sweeps=(), seeds=3, **fields):
    """Returns results that no run gave. values: measure -> variant -> a value for each seed; None: the run has none."""
    variants = list(next(iter(values.values())))
    made = study(
        question="Does the mask rate matter?",
        config="configs/mlm.py",
        baseline=variants[0],
        measures=measures or dict.fromkeys(values, UNDER_MLM),
        seeds=seeds,
        **{"variants": {name: variant() for name in variants}, "budget": raw_tokens(1e6)} | fields,
    )
    outcomes = [
        make_outcome(name, seed, {measure: of[name][seed] for measure, of in values.items()})
        for name in variants
        for seed in range(len(next(iter(values.values()))[name]))
    ]
    command = "python -m train.ablate --study=configs/studies/mask_rates.py --out=studies/mask_rates"
    return Results(make_study(made, "mask_rates.py"), command, outcomes, problems, sweeps)


def make_outcome(name, seed, values, **fields):
    """Returns a run whose loss falls as a power of its tokens."""
    tokens = np.linspace(1e5, 1e6, 10)
    outcome = Outcome(
        variant=name,
        seed=seed,
        values={measure: value for measure, value in values.items() if value is not None},
        curve=Curve(tokens.tolist(), (6e6 * tokens).tolist(), (2 + 3 * (tokens / 1e5) ** -0.7).tolist()),
        num_params=1_234_567,
        steps=500,
        raw_tokens=1e6,
        flops=6e12,
        seconds=60.0 + seed,
        commands=[f"python -m train.main --config=configs/mlm.py --workdir=runs/{name}_{seed}"],
        heldout_digest="aa",
        environment={"device": "cpu x 1", "jax": "0.10.2"},
    )
    return dataclasses.replace(outcome, **fields)


def paper(values=None, **fields):
    """Returns a published result on the measure `loss`."""
    return published("Author et al. (2020), Table 1", measure="loss", metric="GLUE", values=values, **fields)


def verdicts(results):
    [measure] = [measure for measure in analyse(results) if measure.name == "loss"]
    return {(order.first, order.second): order.verdict for order in published_orders(results.study, measure)}


def rich_results(**changes):
    """Results that use every part of a report."""
    failed = dict(variant="other", state="failed", reason=UGLY)
    rate = dict(variant="good", seed=0, field="optimizer.learning_rate")
    results = make_results(
        {"loss": VALUES, "speed": {name: [100.0, 101.0, 103.0] for name in VALUES}},
        measures={"loss": UNDER_MLM, "speed": throughput(), "texts": samples("def")},
        problems=[Outcome(seed=3, **failed), Outcome(seed=4, **failed)],
        sweeps=[
            Outcome(**rate, value=0.1, state="diverged", reason=UGLY),
            Outcome(**rate, value=0.2, values={"loss": 1.25}),
        ],
        published=[paper({"base": 80.0, "good": 81.0}), paper(better_than=[("other", "base")])],
        notes=f"Notes {UGLY}",
        seeds=5,
    )
    changes = {"samples": {"texts": {"def": UGLY}}, "swept": {"optimizer.learning_rate": 0.2}} | changes
    return dataclasses.replace(results, outcomes=[dataclasses.replace(run, **changes) for run in results.outcomes])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert write_report(rich_results(), out) == out / "report.md"
    return out


def test_the_parts_are_in_order_and_figures_exist(report):
    written = (report / "report.md").read_text()
    parts = [
        "Does the mask rate matter?",
        "9 of 11 runs are complete",
        "| `loss` (lower) | `good` (−0.500) | – | `other` | – | about",
        "What differs",
        "No field differs beyond the question",
        "What is missing",
        "Results",
        "p (Holm)",
        "Learning curves",
        "Published orders and these runs",
        "Author et al. (2020), Table 1",
        "Sweeps",
        "| 0.2 | 1.25 | chosen |",
        "Samples",
        "How it was done",
        "python -m train.ablate --study=configs/studies/mask_rates.py --out=studies/mask_rates",
        "runs/other_2",
        "cpu x 1",
        "Times",
        "`speed`",
    ]
    places = [re.sub(r"\\([_\[\]])", r"\1", written).index(part) for part in parts]
    assert places == sorted(places)
    names = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", written)
    assert names == ["figures/loss.svg", "figures/curves.svg", "figures/speed.svg"]
    assert all("<svg" in (report / name).read_text() for name in names)
    for block in re.findall(r"(?:^\|.*\|\n)+", written, re.MULTILINE):  # every row has the columns of its header
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1, block


def test_the_table_of_a_measure_by_hand(report):
    rows = [line for line in (report / "report.md").read_text().splitlines() if line.startswith("| `good` | 1.6")]
    # Differences -0.499, -0.5, -0.501: mean -0.5, half width 4.302653 x 0.001 / sqrt(3) = 0.0025, t = -866, and
    # p = 1 - t / sqrt(2 + t^2) = 1.33e-6, twice that by Holm.
    assert rows == [r"| `good` | 1.600 [1.354, 1.846] | 3 | −0.5000 [−0.5025, −0.4975] | \< 0.001 | better |"]


def test_a_confounded_study_says_so_first(tmp_path):
    results = make_results({"loss": {"base": [1.0, 1.1, 1.2], "other": [2.0, 2.1, 2.2]}})
    confounded = dataclasses.replace(results, confounders={"model.num_layers": [2, 4]})
    written = write_report(confounded, tmp_path).read_text()
    headline = "**Confounded: the variants also differ in `model.num_layers`, so no difference below is the effect of"
    assert written.index(headline) < written.index("6 of 6 runs are complete")
    assert "| `model.num_layers` | 2 | 4 |" in written and "No field differs" not in written


def test_foreign_text_is_text(report):
    written = (report / "report.md").read_text()
    assert r"\*a\* \<b> `x` \`\`\` \| \&lt; \[c\](d) |" in written
    assert f"````\nprompt: def\n{UGLY}\n````" in written
    assert text("a_b <script>\n$x$ # ~") == r"a\_b \<script> \$x\$ \# \~"


def test_control_characters_are_visible(tmp_path):
    write_report(rich_results(samples={"texts": {"def": "a\x00b\x1b[31m\x85\ud800\u202e\tc\n"}}), tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert r"a\x00b\x1b[31m\x85\ud800\u202e" + "\tc\n" in written
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)


def test_equal_results_give_equal_files_and_times_change_only_their_section(report, tmp_path):
    write_report(rich_results(), tmp_path / "again")
    slow = rich_results(seconds=1e3)
    outcomes = [dataclasses.replace(run, values={**run.values, "speed": 7.0 + run.seed}) for run in slow.outcomes]
    write_report(dataclasses.replace(slow, outcomes=outcomes), tmp_path / "slower")
    for path in sorted(report.rglob("*.*")):
        name, written = path.relative_to(report), path.read_text()
        assert (tmp_path / "again" / name).read_text() == written
        slower = (tmp_path / "slower" / name).read_text()
        if name.name == "report.md":
            assert slower.partition("## Times")[0] == written.partition("## Times")[0]
        assert (slower == written) == (name.name not in ("report.md", "speed.svg"))


def test_a_new_report_replaces_the_figures_of_an_old_one(tmp_path):
    for name in ("old", "new"):
        write_report(make_results({name: VALUES}), tmp_path)
    assert {path.stem for path in tmp_path.glob("figures/*")} == {"new", "curves"}


def test_a_study_without_complete_runs_has_a_report(tmp_path):
    problems = [Outcome(variant=name, seed=0, state="missing", reason="not started") for name in ("a", "b")]
    write_report(make_results({"loss": {"a": [], "b": []}}, problems=problems), tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert "0 of 2 runs are complete." in written and "## Results" not in written
    assert not list(tmp_path.glob("figures/*"))


def test_one_seed_and_lacking_values_have_no_test(tmp_path):
    write_report(make_results({"loss": {"a": [1.0], "b": [2.0]}}, seeds=1), tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert "0 of 0 differences from the baseline that can be tested are beyond the noise" in written
    assert "| `b` | 2.000 | 1 | +1.0 | – | no test |" in written
    results = make_results({"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.2, None]}}, published=[paper({"a": 1, "b": 2})])
    [measure] = analyse(results)
    assert measure.lacking == {"b": 1} and "`b`: complete runs without a value: 1." in measure.notes()
    # Its worst run is left out of its mean, so that no test would be fair.
    assert measure.to_baseline["b"].reason == "b has complete runs without a value"
    assert verdicts(results) == {("b", "a"): "cannot be told"}


def test_orders_agree_disagree_or_cannot_be_told():
    orders = [
        paper({"base": 80.0, "good": 81.0, "other": 79.9}, sd=0.2),  # other is within the paper's noise: 0.1 < 0.57
        paper(better_than=[("other", "good"), ("other", "base")], better="lower"),
    ]
    results = make_results({"loss": VALUES}, published=orders)
    assert verdicts(results) == {
        ("good", "base"): "agrees",
        ("base", "other"): "within the paper's noise",
        ("other", "good"): "disagrees",
        ("other", "base"): "cannot be told",
    }


def test_a_published_order_has_the_verdict_of_the_table():
    # p is below 0.05 alone, and not after the correction for nine comparisons.
    values = {"base": [2.0, 2.1, 2.2], "good": [1.9, 1.98, 2.11]}
    values |= {f"other_{place}": [2 + 0.1 * place, 2.3 - 0.1 * place, 2.1] for place in range(8)}
    results = make_results({"loss": values}, published=[paper(better_than=[("good", "base")])])
    [measure] = analyse(results)
    assert measure.to_baseline["good"].p < 0.05 and measure.verdict(measure.to_baseline["good"]) == "not told apart"
    assert verdicts(results) == {("good", "base"): "cannot be told"}


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (variant({"optimizer.learning_rate": 0.1}), False),
        (variant({"objective.mask_rate": 0.4}), True),
        (variant(config="configs/clm.py"), True),
        (variant(sweep={"optimizer.b2": [0.9, 0.99]}), False),
    ],
)
def test_own_losses_of_different_objectives_are_not_compared(other, differ, tmp_path):
    results = make_results(
        {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}},
        measures={"loss": heldout_loss()},
        variants={"a": variant(), "b": other},
    )
    assert objectives_differ(results.study, ["a", "b"]) == differ
    [measure] = analyse(results)
    assert measure.is_own == differ and bool(measure.pairs) != differ
    write_report(results, tmp_path)
    assert ("Each variant is scored on its own objective." in (tmp_path / "report.md").read_text()) == differ


def test_a_measure_of_some_variants_compares_these():
    measures = {"loss": heldout_loss(config="configs/mlm.py", only=("base", "good"))}
    values = {"base": VALUES["base"], "good": VALUES["good"], "other": [None] * 3}
    [measure] = analyse(make_results({"loss": values}, measures=measures))
    assert list(measure.to_baseline) == ["good"] and measure.rows()[2][1] == "not measured"


def test_runs_on_different_heldout_text_are_refused(tmp_path):
    results = make_results({"loss": VALUES})
    other = make_outcome("other", 2, {"loss": 2.0}, heldout_digest="bb")
    results = dataclasses.replace(results, outcomes=[*results.outcomes[:-1], other])
    message = r"runs of base, seed 0, and other, seed 2, hold out different text \(heldout_digest aa and bb\)"
    with pytest.raises(ConfigError, match=message):
        write_report(results, tmp_path)


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_libraries_are_needed(module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs {module}: pip install -e '.\[plot\]'"):
        write_report(make_results({"loss": VALUES}), tmp_path)


def test_numbers_as_text():
    assert number(-1234.5, 1) == "−1,234.5" and number(None, 2) == "–" and number(0.5, 2, sign=True) == "+0.50"
    assert number(1.23456e-9, 11) == "1.23e−09"
    sizes = {999: "999", 999_936: "1M", 45216: "45.2k", 1.25e9: "1.25B", 6e12: "6T", 3e16: "3e16", 0.3478: "0.3478"}
    assert {value: large(value) for value in sizes} == sizes
    assert [probability(p) for p in (0.0499, 0.04996, 0.05, 0.0004, None)] == [
        r"\< 0.05", r"\< 0.05", "0.050", r"\< 0.001", "–",
    ]  # fmt: skip


def test_the_headline_names_the_code_of_each_run_where_it_differs(tmp_path):
    results = make_results({"loss": VALUES})
    same = [dataclasses.replace(run, code="aa", measured_by="aa") for run in results.outcomes]
    assert "Mixed code" not in write_report(dataclasses.replace(results, outcomes=same), tmp_path).read_text()
    same[0] = dataclasses.replace(same[0], measured_by="bb")
    page = write_report(dataclasses.replace(results, outcomes=same), tmp_path).read_text()
    continued = [dataclasses.replace(run, code="aa+bb", measured_by="bb") for run in same]
    assert "Mixed code" in write_report(dataclasses.replace(results, outcomes=continued), tmp_path).read_text()
    assert "**Mixed code: " in page and "code aa, measured by bb: base-seed0; code aa: base-seed1, base-seed2" in page
