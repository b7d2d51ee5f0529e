"""The beginning of a report, for results that support much, little and nothing; and published orders."""

import pytest

from configs.studies.base import heldout_loss, variant
from studies.report.analysis import analyse
from studies.report.conclusion import conclude
from studies.report.orders import compare_with_papers, count
from studies.results import Problem
from tests.studies.report.results import make_results, paper

BASE = [2.00, 2.10, 2.20]
CLEAR = {"base": BASE, "good": [1.501, 1.600, 1.699], "bad": [2.500, 2.601, 2.702]}
NOISE = {"base": BASE, "other": [2.02, 2.07, 2.21], "third": [1.97, 2.13, 2.19]}


def conclusion(results):
    analyses = analyse(results)
    return conclude(results, analyses, compare_with_papers(results.study, analyses))


def paragraph(results):
    found = conclusion(results)
    return " ".join([found.headline, *found.points])


def verdicts(results):
    return {
        (order.first, order.second): order.verdict for order in compare_with_papers(results.study, analyse(results))
    }


def test_a_clear_winner():
    text = paragraph(make_results({"loss": CLEAR}))
    assert text.startswith(
        "In `loss`, `good` (by 0.500) is better and `bad` (by 0.501) is worse than the baseline `base`, beyond the "
        "noise between seeds. 3 variants were trained with 3 seeds, each run on 1M tokens of text. `loss` (lower is "
    )
    assert "`good` (by 0.500) is better and `bad` (by 0.501) is worse than `base`." in text
    assert "The lowest mean is that of `good`, which is better than all other variants, beyond noise." in text
    assert "no significant difference" not in text and text.count("noise between training seeds alone") == 1


def test_nothing_told_comes_first():
    text = paragraph(make_results({"loss": NOISE}))
    assert text.startswith("No difference between variants is beyond the noise between seeds. 3 variants were trained")
    assert (
        "no variant differs significantly from `base`. The lowest mean is that of `third`, but no other variant" in text
    )
    assert "A difference from the baseline has to be about 0." in text and "are not shown to be equal." in text
    assert " better than" not in text and "is worse" not in text


def test_an_unfinished_study_says_so_first():
    problems = [Problem("bad", 1, "missing", "not started"), Problem("bad", 2, "failed", "the loss is not finite")]
    results = make_results({"loss": CLEAR | {"bad": [2.5]}}, problems=problems)
    text = paragraph(results)
    assert text.startswith("This study is not complete: 7 of 9 runs are complete (1 missing, 1 failed). What follows")
    assert "`good` (by 0.500) is better than `base`; `bad` is not tested." in text
    assert "better than all other variants that are tested, beyond noise." in text


def test_a_study_without_a_complete_run():
    problems = [Problem(name, 0, "missing", "not started") for name in ("a", "b")]
    text = paragraph(make_results({"loss": {"a": [], "b": []}}, problems=problems))
    assert text == "This study is not complete: 0 of 2 runs are complete (2 missing), so there is no result yet."


def test_one_seed_supports_no_order():
    text = paragraph(make_results({"loss": {name: values[:1] for name, values in CLEAR.items()}}, seeds=1))
    assert text.startswith("With one seed of each variant the noise is not known, so the numbers support no order")
    assert "no difference from `base` is tested. The lowest mean is that of `good`." in text
    assert "beyond noise" not in text and "equal" not in text


def test_equal_differences_are_no_certainty():
    text = paragraph(make_results({"loss": {"base": [2.0, 2.0], "other": [1.0, 1.0]}}))
    assert text.startswith("No two variants can be tested, because the spread of their differences is not known.")


def test_a_contradiction_with_a_paper_is_named():
    results = make_results({"loss": CLEAR}, published=[paper({"base": 80.0, "good": 79.0, "bad": 78.0})])
    text = paragraph(results)
    assert (
        "of 2 published orders, 1 agrees with these runs, 1 disagrees, and 0 have no significant difference here."
        in text
    )
    assert "`good` is better here than `base` in `loss`, against GLUE of Author et al. (2020), Table 1." in text
    assert "decide" not in text and "contradict" not in text


def test_losses_of_different_objectives_are_not_compared():
    measures = {"loss": heldout_loss(), "common": heldout_loss(config="configs/clm.py")}
    variants = {name: variant({"objective.mask_rate": rate}) for name, rate in (("base", 0.1), ("good", 0.5))}
    values = {name: CLEAR[name] for name in variants}
    results = make_results({"loss": values, "common": values}, measures=measures, variants=variants)
    analyses = analyse(results)
    assert analyses["loss"].is_own and analyses["loss"].best is None and not analyses["loss"].to_baseline
    assert analyses["common"].best == "good"
    text = paragraph(results)
    assert "`loss`: each variant is scored on its own objective, so the values do not compare." in text
    assert "`common` (lower is better): `good` (by 0.500) is better than `base`." in text
    same = {name: variant({"train.batch_size": size}) for name, size in (("base", 8), ("good", 16))}
    assert not analyse(make_results({"loss": values}, measures={"loss": heldout_loss()}, variants=same))["loss"].is_own


def test_verdicts_on_published_values():
    values = CLEAR | {"equal": [2.02, 2.07, 2.21], "tied": [1.0, 1.1, 1.2]}
    published = paper({"base": 80.0, "good": 81.0, "bad": 80.5, "equal": 85.0, "tied": 80.0})
    assert verdicts(make_results({"loss": values}, published=[published])) == {
        ("good", "base"): "agrees",
        ("bad", "base"): "disagrees",
        ("equal", "base"): "no significant difference",
        ("base", "tied"): "within the paper's noise",
    }


@pytest.mark.parametrize(("sd", "verdict"), [(0.35, "agrees"), (0.36, "within the paper's noise")])
def test_a_papers_own_noise(sd, verdict):
    # A difference of 1 is beyond the paper's noise if 2 sqrt(2) sd is at most 1: up to 0.3535.
    results = make_results({"loss": CLEAR}, published=[paper({"base": 80.0, "good": 81.0}, sd=sd)])
    assert verdicts(results) == {("good", "base"): verdict}


def test_a_paper_whose_lower_values_are_better_and_orders_without_values():
    published = [
        paper({"base": 20.0, "good": 19.0}, better="lower"),
        paper(better_than=[("good", "bad"), ("bad", "base")]),
    ]
    results = make_results({"loss": CLEAR}, published=published)
    orders = compare_with_papers(results.study, analyse(results))
    assert [order.verdict for order in orders] == ["agrees", "agrees", "disagrees"]
    assert [order.paper for order in orders] == [(19.0, 20.0), None, None]
    assert count(orders) == {"agrees": 2, "disagrees": 1, "no significant difference": 0, "within the paper's noise": 0}


def test_a_variant_whose_worst_runs_have_no_value_is_not_the_best():
    values = {"base": BASE, "diverges": [0.1, 0.2, float("nan")], "unreached": [0.1, 0.2, None]}
    analysis = analyse(make_results({"loss": values}))["loss"]
    assert analysis.best == "base" and analysis.lacking == {"diverges": 1, "unreached": 1}
    assert {pair.reason for pair in analysis.to_baseline.values()} == {
        "diverges has complete runs without a value",
        "unreached has complete runs without a value",
    }
    assert analysis.summaries["diverges"].mean == pytest.approx(0.15)
