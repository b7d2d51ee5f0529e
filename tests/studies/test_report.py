"""The report: its tables by hand, one verdict a pair, what does not compare, and foreign text as text."""

import dataclasses
import pathlib
import re
import sys

import numpy as np
import pytest

from configs.studies.base import heldout_loss, probe, published, raw_tokens, study, success_rate, throughput, variant
from contract.errors import ConfigError
from studies import report as report_module
from studies.analysis import analyse
from studies.markdown import large, number, probability, text
from studies.report import write_report
from studies.results import Curve, Outcome, Results
from studies.study import make_study

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VALUES = {"base": [2.00, 2.10, 2.20], "good": [1.501, 1.600, 1.699], "other": [2.02, 2.07, 2.21]}
UNDER_MLM = heldout_loss(config="configs/mlm.py")
EXACT = probe("exact_match", "exact_match", better="higher", order="once")
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


def rich_results(**changes):
    """Results that use every part of a report."""
    failed = dict(variant="other", state="failed", reason=UGLY)
    rate = dict(variant="good", seed=0, field="optimizer.learning_rate")
    results = make_results(
        {"loss": VALUES, "speed": {name: [100.0, 101.0, 103.0] for name in VALUES}},
        measures={"loss": UNDER_MLM, "speed": throughput()},
        problems=[Outcome(seed=3, **failed), Outcome(seed=4, **failed)],
        sweeps=[
            Outcome(**rate, value=0.1, state="diverged", reason=UGLY),
            Outcome(**rate, value=0.2, values={"loss": 1.25}),
        ],
        published=[paper({"base": 80.0, "good": 81.0}), paper(better_than=[("other", "base")])],
        notes=f"Notes {UGLY}",
        seeds=5,
    )
    changes = {"swept": {"optimizer.learning_rate": 0.2}} | changes
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
        "corrected for 2 families of tests",
        "What follows",
        "| `loss` (lower) | `good` (−0.500) | – | `other` | – | – | about 0.36 |",
        "What differs",
        "No field differs, objectives apart",
        "What is missing",
        "Results",
        "p (corrected)",
        "Learning curves",
        "Published orders and these runs",
        "Author et al. (2020), Table 1",
        "Sweeps",
        "| 0.2 | **1.25** |",
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
    # Variances 0.01, 0.009801 and 0.0097 of the three variants, pooled 0.009834 with 6 degrees of freedom. The standard
    # error is sqrt(2 / 3 x 0.009834) = 0.08097, the half width 2.4469 times that, and t = -6.175. Dunnett's p is 0.0015
    # (scipy.stats.dunnett), twice that for two measures.
    assert rows == ["| `good` | 1.600 [1.354, 1.846] | 3 | −0.50 [−0.70, −0.30] | 0.003 | better |"]


def test_a_confounded_study_says_so_first(tmp_path):
    results = make_results({"loss": {"base": [1.0, 1.1, 1.2], "other": [2.0, 2.1, 2.2]}})
    confounded = dataclasses.replace(results, confounders={"model.num_layers": [2, 4]})
    written = write_report(confounded, tmp_path).read_text()
    headline = "**Confounded: the variants also differ in `model.num_layers`, so no difference below is the effect of"
    assert written.index(headline) < written.index("6 of 6 runs are complete")
    assert "| `model.num_layers` | 2 | 4 |" in written and "No field differs" not in written


def test_runs_on_different_devices_are_named(tmp_path):
    results = make_results({"loss": VALUES})
    runs = [
        dataclasses.replace(run, environment={"device": "gpu x 1" if run.variant == "good" else "cpu x 1"})
        for run in results.outcomes
    ]
    assert "**Mixed devices: " in headline(dataclasses.replace(results, outcomes=runs), tmp_path)
    assert "Mixed devices" not in headline(results, tmp_path)


def test_the_text_and_a_warning_of_its_split_are_said(tmp_path):
    results = dataclasses.replace(
        make_results({"loss": VALUES}), warnings=["1 of 2 files held out"], text_facts="3 documents held out"
    )
    written = write_report(results, tmp_path).read_text()
    assert (
        "**Warning: 1 of 2 files held out.**" in written.splitlines()[2]
        and "\nText: 3 documents held out.\n" in written
    )


def test_what_varies_together_is_named_with_its_sizes(tmp_path):
    results = make_results({"loss": {"base": [1.0, 1.1, 1.2], "other": [2.0, 2.1, 2.2]}})
    sizes = {"base": dict(num_params=1000, steps=50), "other": dict(num_params=2500, steps=52)}
    runs = [dataclasses.replace(run, **sizes[run.variant]) for run in results.outcomes]
    written = write_report(
        dataclasses.replace(
            results, outcomes=runs, questions={"model.d_model": [64, 128], "model.mlp": ["relu", "gelu"]}
        ),
        tmp_path,
    ).read_text()
    together = (
        "The variants differ in `model.d_model` and `model.mlp`, and a difference is of all these together. They have "
    )
    assert together + "1000 to 2500 parameters. 6 of 6" in written
    assert "| `model.d_model` | 64 | 128 |" in written and "No other field differs." in written


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ({"model.d_model": [64, 128, 64], "model.mlp": ["relu", "relu", "gelu"]}, ""),  # each variant in one field
        ({"model.d_model": [64, 128, 256]}, ""),
        (
            {"model.d_model": [64, 128, 64], "model.mlp": ["relu", "gelu", "gelu"]},
            "`good` differs from `base` in `model.d_model` and `model.mlp`, and a difference is of all these "
            "together. ",
        ),
        (
            {"model.d_model": [64, 128, 128], "model.mlp": ["relu", "gelu", "gelu"], "model.bias": [True, True, False]},
            "The variants differ in `model.d_model`, `model.mlp` and `model.bias`, and a difference is of all these "
            "together. ",
        ),
    ],
)
def test_only_variants_that_differ_in_several_fields_are_said_to_vary_together(questions, said, tmp_path):
    results = dataclasses.replace(make_results({"loss": VALUES}), questions=questions)
    assert headline(results, tmp_path).startswith(f"Study `mask_rates`, baseline `base`. {said}9 of 9 runs")


def test_variants_that_are_equal_in_each_seed_are_named(tmp_path):
    same = VALUES | {"other": VALUES["good"]}
    said = "**`good` and `other` are equal in each seed: what they differ in had no effect on the runs.**"
    assert said in headline(make_results({"loss": same}), tmp_path)
    assert "are equal" not in headline(make_results({"loss": VALUES}), tmp_path)
    results = make_results({"loss": same})  # equal in what is measured at the end, and not during training
    curve = Curve([1e5, 1e6], [1e11, 1e12], [3.0, 2.0])
    runs = [dataclasses.replace(run, curve=curve) if run.variant == "other" else run for run in results.outcomes]
    assert "are equal" not in headline(dataclasses.replace(results, outcomes=runs), tmp_path)


def headline(results, tmp_path):
    return write_report(results, tmp_path).read_text().splitlines()[2]


def at_floor(results, **floors):
    runs = [dataclasses.replace(run, floors={"loss": floors}) for run in results.outcomes]
    return dataclasses.replace(results, outcomes=runs)


def test_nothing_follows_comes_first_and_no_difference_is_counted(tmp_path):
    noisy = {"base": [2.0, 2.9, 3.8], "good": [1.2, 1.6, 2.0], "other": [2.1, 2.9, 3.7]}
    results = at_floor(make_results({"loss": noisy}), trigram=2.9)
    said = headline(results, tmp_path)
    assert "**Nothing follows: the baseline `base` is no better than trigram in `loss`.** 9 of 9 runs" in said
    assert "differences" not in said
    written = (tmp_path / "report.md").read_text()
    assert re.search(r"\| \*trigram\* \| 2.90* \| – \| – \| – \| floor \|", written)
    assert re.search(r"\| `base` \| 2.90* \[.*\] \| 3 \| – \| – \| no better than trigram \|", written)
    assert re.search(r"\| `good` .*\| `base` is no better than trigram \|", written)
    assert "| `loss` (lower) | – | – | – | `other` (trigram) | `good` | " in written
    figure = (tmp_path / "figures" / "loss.svg").read_text()
    assert "stroke-dasharray" in figure and "trigram" in figure


def test_a_floor_in_one_measure_leaves_the_others(tmp_path):
    results = at_floor(make_results({"loss": VALUES, "more": VALUES}), trigram=1.0)
    said = headline(results, tmp_path)
    assert "**Nothing follows from some measures: no variant is better than trigram in `loss`.**" in said
    assert "1 of 2 differences from the baseline that can be tested are beyond the noise" in said


def test_own_losses_have_no_tests_and_no_signs_and_are_not_counted(tmp_path):
    rate = dict(seed=0, field="optimizer.learning_rate")
    results = make_results(
        {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}, "more": {"a": [1.0, 1.1, 1.2], "b": [2.0, 2.1, 2.2]}},
        measures={"loss": heldout_loss(), "more": UNDER_MLM},
        variants={"a": variant(), "b": variant(config="configs/clm.py")},
        sweeps=[
            Outcome(variant=name, value=0.1, values={"loss": loss}, **rate) for name, loss in (("a", 1.0), ("b", 2.0))
        ],
    )
    said = headline(results, tmp_path)
    assert "1 of 1 differences from the baseline that can be tested" in said and "for 1 family of tests" in said
    written = (tmp_path / "report.md").read_text()
    assert "What is scored differs between variants: the objective, the text or its tokens." in written
    assert "| `b` | 0.63 [0.25, 1.01] | 3 | – | – | – |" in written
    assert "| 0.1 | 1 | 2 |" in written and "variants do not compare" in written


def test_the_sign_at_each_value_of_a_sweep(tmp_path):
    scores = {"base": (2.0, 1.5, 1.8), "good": (1.0, 1.5, 1.9), "other": (None, 1.2, 1.1)}
    sweeps = [
        Outcome(
            variant=name,
            seed=0,
            field="optimizer.learning_rate",
            value=value,
            **({"values": {"loss": loss}} if loss is not None else {"state": "diverged", "reason": "not finite"}),
        )
        for name, losses in scores.items()
        for value, loss in zip((0.1, 0.2, 0.4), losses, strict=True)
    ]
    results = make_results({"loss": VALUES}, sweeps=sweeps)
    chosen = {"base": 0.2, "good": 0.1, "other": 0.4}
    runs = [
        dataclasses.replace(run, swept={"optimizer.learning_rate": chosen[run.variant]}) for run in results.outcomes
    ]
    said = headline(dataclasses.replace(results, outcomes=runs), tmp_path)
    assert "Chosen at the end of their sweep: `good` (0.1), `other` (0.4)." in said
    written = (tmp_path / "report.md").read_text()
    assert "| `optimizer.learning_rate` | `base` (baseline) | `good` | `other` |" in written
    assert "| 0.1 | 2 | **1** (better) | diverged: not finite |" in written
    assert "| 0.2 | **1.5** | 1.5 (tied) | 1.2 (better) |" in written
    assert "| 0.4 | 1.8 | 1.9 (worse) | **1.1** (better) |" in written
    assert "Whether `good` is better than the baseline depends on the value." in written


def test_a_sweep_of_one_variant_is_a_study(tmp_path):
    fields, losses = dict(variant="base", seed=0, field="optimizer.learning_rate"), {0.1: 1.5, 0.2: 1.25, 0.4: 2.0}
    sweeps = [Outcome(**fields, value=rate, values={"loss": loss}) for rate, loss in losses.items()]
    results = make_results({"loss": {"base": VALUES["base"]}}, sweeps=sweeps, sweep={fields["field"]: [*losses]})
    assert "| 0.2 | 1.25 |" in write_report(results, tmp_path).read_text()


def test_a_success_rate_shows_seeds(tmp_path):
    values = {"base": [0.0] * 8, "good": [1.0] * 7 + [0.2]}
    measures = {"rate": success_rate(heldout_loss(config="configs/mlm.py", metric="accuracy", better="higher"), at=0.9)}
    results = make_results({"rate": values}, measures=measures, seeds=8)
    write_report(results, tmp_path)
    written = (tmp_path / "report.md").read_text()
    # Fisher's p is 2 (C(8,7) C(8,0)) / C(16,7) = 16 / 11440, in one family.
    assert "| `good` | 7 of 8 seeds [0.53, 0.98] | 0.90 | +0.88 | 0.001 | better |" in written
    assert "| `base` | 0 of 8 seeds [0.00, 0.32] | 0.00 | – | – | – |" in written
    assert "| `rate` (higher) | `good` (+0.88) |" in written and "Even" not in written


def test_a_success_rate_of_too_few_seeds_says_so(tmp_path):
    values = {"base": [0.0] * 3, "good": [1.0] * 3}
    measures = {"rate": success_rate(heldout_loss(config="configs/mlm.py", metric="accuracy"), at=0.9)}
    written = write_report(make_results({"rate": values}, measures=measures), tmp_path).read_text()
    assert "Even 3 of 3 seeds against 0 would not be beyond noise: use more seeds." in written


def test_intervals_over_documents_have_a_column(tmp_path):
    results = make_results({"loss": VALUES})
    runs = [dataclasses.replace(run, margins={"loss": 0.02}) for run in results.outcomes if run.variant != "other"]
    results = dataclasses.replace(results, outcomes=[*runs, *results.of("other")])
    written = write_report(results, tmp_path).read_text()
    assert "| mean [95% interval] | seeds | ± over documents |" in written
    assert "| `base` | 2.100 [1.852, 2.348] | 3 | ± 0.039 | – | – | – |" in written
    assert re.search(r"\| `other` \| [^|]+ \| 3 \| – \|", written)


def test_foreign_text_is_text(report):
    written = (report / "report.md").read_text()
    assert r"\*a\* &lt;b> `x` \`\`\` \| &amp;lt; \[c\](d) |" in written
    assert text("a_b <script>\n$x$ # ~") == r"a\_b &lt;script> &#36;x&#36; \# &#126;"


def test_control_characters_are_visible(tmp_path):
    results = rich_results()
    ugly = dataclasses.replace(results.study, notes="a\x00b\x1b[31m\ud800\u202e c")
    write_report(dataclasses.replace(results, study=ugly), tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert r"a\x00b\x1b\[31m\ud800\u202e c" in written
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


def test_a_study_without_complete_runs_has_a_report(tmp_path):
    problems = [Outcome(variant=name, seed=0, state="missing", reason="not started") for name in ("a", "b")]
    write_report(make_results({"loss": {"a": [], "b": []}}, problems=problems), tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert "0 of 2 runs are complete." in written and "## Results" not in written
    assert not list(tmp_path.glob("figures/*"))


def test_runs_without_pretraining_are_counted_where_they_are_complete_too(tmp_path):
    scratch = [Outcome(variant="no_pretraining", seed=seed, values={"loss": 3.0}) for seed in range(2)]
    missing = Outcome(variant="no_pretraining", seed=2, state="missing", reason="the run has not started")
    results = dataclasses.replace(make_results({"loss": VALUES}, problems=[missing]), scratch=scratch)
    assert "11 of 12 runs are complete." in headline(results, tmp_path)


def test_workers_may_write_figures_to_one_folder_at_once(tmp_path, monkeypatch):
    """Before, each removed all figures first: those that another one had removed were an error."""
    write_report(make_results({"loss": VALUES, "old": VALUES}), tmp_path)
    unlink, removed = pathlib.Path.unlink, []

    def twice(path, missing_ok=False):
        removed.append(path.name)
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(pathlib.Path, "unlink", twice)
    write_report(make_results({"loss": VALUES}), tmp_path)
    assert removed == ["old.svg"] and {path.name for path in tmp_path.glob("figures/*")} == {"loss.svg", "curves.svg"}


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
        "< 0.05", "< 0.05", "0.050", "< 0.001", "–",
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


def test_two_seeds_have_no_tests_and_the_report_says_so(tmp_path):
    two = {"base": [2.0, 2.1], "good": [1.0, 1.1]}
    written = write_report(make_results({"loss": two}, seeds=2), tmp_path).read_text()
    assert "With 2 seeds no means are tested: a test needs 3." in written and "one in twenty" not in written


def test_a_floor_is_shown_where_all_values_are_zero(tmp_path):
    results = at_floor(make_results({"loss": {"base": [0.0] * 3, "good": [0.0] * 3}}), chance=0.025)
    assert "| *chance* | 0.025 | –" in write_report(results, tmp_path).read_text()


def test_the_detectable_difference_of_each_pair_is_within_those_shown(tmp_path):
    values = {"base": [0.60, 0.61, 0.62, 0.60], "good": [0.70, 0.71, 0.72, 0.69], "wild": [0.1, 0.9, 0.5, 0.2]}
    results = make_results({"loss": values}, seeds=4)
    sizes = [pair.detectable for pair in analyse(results)[0].to_baseline.values()]
    assert f"| about {min(sizes):.3f} to {max(sizes):.2f} |" in write_report(results, tmp_path).read_text()


def test_the_lowest_held_out_losses_are_shown_where_a_variant_had_a_lower_one_before_the_end(tmp_path):
    results = make_results({"loss": VALUES})
    assert "lower held-out loss" not in write_report(results, tmp_path).read_text()
    losses = {"base": [[3.0, 0.0, 0.005]] * 3, "good": [[3.0, 1.0, 1.5], [3.0, 2.0, 1.8], [3.0, 1.5, 1.5]]}
    runs = [
        dataclasses.replace(run, curve=Curve([100.0, 200.0, 300.0], [1.0, 2.0, 3.0], losses[run.variant][run.seed]))
        if run.variant in losses
        else run
        for run in results.outcomes
    ]
    results = dataclasses.replace(results, outcomes=runs)
    said = headline(results, tmp_path)
    assert "**The held-out loss of `good` was lower before the end, and measures are of the last step" in said
    written = (tmp_path / "report.md").read_text()
    assert (
        "| `base` | 0.000 | 200 | 0.005 |\n| `good` | 1.433 | 233.3 | 1.600 |\n| `other` | 2.599 | 1M | 2.599 |"
        in written
    )


def test_a_variant_whose_runs_have_one_code_is_named_once():
    results = make_results({"loss": VALUES})
    version = {"base": "a", "good": "b", "other": "b"}
    runs = [dataclasses.replace(run, code=version[run.variant], measured_by="b") for run in results.outcomes]
    runs[-1] = dataclasses.replace(runs[-1], code="c", measured_by="c")
    said = report_module.headline(dataclasses.replace(results, outcomes=runs), [], [])
    assert (
        "(code a, measured by b: all of base; code b: other-seed0, other-seed1, all of good; code c: other-seed2)"
        in said
    )
