"""The report does not contradict itself: one verdict a pair, a best that no test refutes, and what is comparable."""

import math
import re

import numpy as np
import pytest

from configs.studies.base import fine_tuning, heldout_loss, probe, published, variant
from studies.report.analysis import analyse
from studies.report.blocks import Table
from studies.report.curves import caption
from studies.report.measures import measure_blocks
from studies.report.statistics import choose_best, compare, compare_all, compare_each, holm
from studies.results import Problem
from tests.studies.report.results import MEASURES, make_results, paper
from tests.studies.report.test_conclusion import BASE, CLEAR, NOISE, conclusion, paragraph, verdicts

LUCKY = {"lucky": [2.0, 2.1, 2.2, 0.5], "good": [1.90, 2.001, 2.099]}  # a better mean, but not on common seeds
# A difference of 0.1 with p = 0.012: beyond noise among the three comparisons with the baseline, not among all six.
CLOSE = {
    "base": [2.0, 2.1, 2.2],
    "close": [2.08084, 2.2, 2.31916],
    "noisy": [2.05, 2.05, 2.25],
    "other": [2.2, 2.0, 2.2],
}


def rows(analysis, results):
    [table] = [block for block in measure_blocks(analysis, results) if isinstance(block, Table)]
    return {row[0].strip("`"): row[1:] for row in table.rows}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_lucky_seed_that_others_lack_does_not_make_the_best(better):
    sign = 1 if better == "lower" else -1
    values = {name: [sign * value for value in found] for name, found in LUCKY.items()}
    measures = {"loss": heldout_loss(config="configs/mlm.py", better=better)}
    results = make_results({"loss": values}, measures=measures, seeds=4)
    analysis = analyse(results)["loss"]
    assert sign * analysis.summaries["lucky"].mean < sign * analysis.summaries["good"].mean
    assert analysis.best == "good" and analysis.rank(analysis.to_best["lucky"]) == -1
    mean = {"lower": "lowest", "higher": "highest"}[better]
    assert f"On the seeds that two variants have in common, the {mean} mean is that of `good`" in paragraph(results)
    assert rows(analysis, results)["good"][-1] == "best mean"


def test_a_variant_with_one_seed_is_not_the_best_of_variants_with_more():
    results = make_results({"loss": {**CLEAR, "lucky": [0.1]}})
    assert analyse(results)["loss"].best == "good"


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_no_test_refutes_the_best_of_incomplete_studies(better):
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(300):
        values = {
            name: {seed: float(rng.normal(0.6 * place, 0.3)) for seed in range(4) if rng.random() < 0.7}
            for place, name in enumerate("abcd")
        }
        best = choose_best(values, better)
        if best is None:
            continue
        found += 1
        for other in values:
            if other != best:
                difference = compare(other, best, values).difference
                assert difference >= 0 if better == "lower" else difference <= 0
    assert found > 200


def test_without_missing_seeds_the_best_mean_is_the_best():
    values = {"a": {0: 1.0, 1: 3.0}, "b": {0: 2.5, 1: 1.0}, "c": {0: 9.0, 1: 0.0}}
    assert choose_best(values, "lower") == "b" and choose_best(values, "higher") == "c"
    assert choose_best({"a": {0: 1.0}, "b": {1: 2.0}}, "lower") is None and choose_best({}, "lower") is None


def test_a_pair_has_one_verdict_if_the_best_is_the_baseline():
    results = make_results({"loss": CLOSE}, published=[paper(better_than=[("base", "close")])])
    analysis = analyse(results)["loss"]
    p = compare("close", "base", analysis.values).p
    assert 0.05 / 6 < p < 0.05 / 3 and analysis.best == "base"
    assert analysis.to_best == analysis.to_baseline
    assert analysis.to_baseline["close"].corrected == pytest.approx(3 * p)
    assert rows(analysis, results)["close"][-2:] == ["worse", "worse"]
    assert verdicts(results) == {("base", "close"): "agrees"}
    assert paragraph(results).count("`close`") == 2  # the headline and the measure call it worse


def test_a_pair_has_one_verdict_if_the_best_is_another():
    # As above, with the signs changed: the best is `close`.
    values = {name: [-value for value in found] for name, found in CLOSE.items()}
    results = make_results({"loss": values}, published=[paper(better_than=[("close", "base")])])
    analysis = analyse(results)["loss"]
    assert analysis.best == "close" and analysis.rank(analysis.to_baseline["close"]) == 1
    assert analysis.rank(analysis.to_best["base"]) == -1
    assert verdicts(results) == {("close", "base"): "agrees"}


def test_an_order_of_the_literature_is_not_easier_to_tell_than_the_table_of_the_measure():
    values = {"base": BASE, "good": [1.9, 1.98, 2.11]}
    values |= {f"other_{place}": [2 + 0.1 * place, 2.3 - 0.1 * place, 2.1] for place in range(8)}
    results = make_results({"loss": values}, published=[paper(better_than=[("good", "base")])])
    analysis = analyse(results)["loss"]
    assert compare("good", "base", analysis.values).p < 0.05 and not analysis.to_baseline["good"].sign
    assert verdicts(results) == {("good", "base"): "no significant difference"}


def test_each_pair_is_in_one_of_two_families():
    rng = np.random.default_rng(4)
    values = {name: dict(enumerate(rng.normal(size=3))) for name in "abcd"}
    pairs = compare_each("b", values)
    assert [(pair.first, pair.second) for pair in pairs] == [
        *(("a", "b"), ("c", "b"), ("d", "b")),
        *(("a", "c"), ("a", "d"), ("c", "d")),
    ]
    for family in (pairs[:3], pairs[3:]):
        assert [pair.corrected for pair in family] == pytest.approx(holm([pair.p for pair in family]))


def test_each_family_keeps_its_error():
    rng = np.random.default_rng(5)
    wrong = np.zeros(2)
    for _ in range(300):
        values = {name: dict(enumerate(rng.normal(size=3))) for name in "abcde"}
        pairs = compare_each("a", values)
        wrong += [any(pair.sign for pair in pairs[:4]), any(pair.sign for pair in pairs[4:])]
    assert (wrong <= 0.05 * 300 + 2 * math.sqrt(300 * 0.05 * 0.95)).all()


def test_a_variant_that_lacks_values_does_not_help_others_in_the_correction():
    values = {"base": dict(enumerate(BASE)), "a": {0: 1.5, 1: 1.6, 2: 1.71}, "lacks": {0: 1.0, 1: 1.1001}}
    a, lacks = compare_all([("a", "base"), ("lacks", "base")], values, untested={"lacks"})
    assert lacks.p is None and a.corrected == pytest.approx(2 * a.p)


def test_a_difference_between_other_variants_is_not_denied():
    values = {
        "base": [2.0, 2.9, 2.5],
        "first": [2.80, 2.20, 2.5],
        "second": [2.9, 2.3001, 2.5999],
        "best": [2.5, 1.5, 2.9],
    }
    results = make_results({"loss": values}, published=[paper(better_than=[("first", "second")])])
    assert verdicts(results) == {("first", "second"): "agrees"}
    headline = conclusion(results).headline
    assert headline.startswith(
        "No difference from the baseline `base` is beyond the noise between seeds; of 6 comparisons that can be "
        "tested, 1 is beyond noise, between other variants."
    )
    notes = measure_blocks(analyse(results)["loss"], results)[-1].text
    assert "Beyond noise, too: `first` is better than `second`." in notes


@pytest.mark.parametrize(
    ("variants", "is_own"),
    [
        ({"a": variant(config="configs/iid.py:iid_10_u_u"), "b": variant(config="configs/iid.py:iid_50_u_u")}, True),
        ({"a": variant(config="configs/iid.py:iid_10_u_u"), "b": variant(config="configs/iid.py:iid_10_u_u")}, False),
        ({"a": variant(), "b": variant({"data.inputs_length": 64})}, True),
        ({"a": variant(), "b": variant({"data.documents": "split"})}, True),
        ({"a": variant(), "b": variant({"loss.label_smoothing": 0.1})}, True),
        ({"a": variant(), "b": variant({"optimizer.learning_rate": 0.1})}, False),
    ],
)
def test_own_losses_compare_only_under_equal_objectives_and_rows(variants, is_own):
    values = {"a": CLEAR["base"], "b": CLEAR["good"]}
    results = make_results({"loss": values}, measures={"loss": heldout_loss()}, variants=variants)
    assert analyse(results)["loss"].is_own == is_own
    assert ("heights do not compare" in caption(results, "flops")) == is_own


def test_variants_that_a_measure_leaves_out_are_not_measured():
    measures = {"loss": MEASURES["loss"], "bits": probe("infilling", "bits", only=("base", "good", "unreached"))}
    variants = ("base", "good", "bad", "unreached")
    loss = {**CLEAR, "unreached": CLEAR["bad"]}
    bits = {"base": BASE, "good": CLEAR["good"], "bad": [None] * 3, "unreached": [1.0, 2.0, None]}
    values = {"loss": {name: loss[name] for name in variants}, "bits": bits}
    results = make_results(values, measures=measures, published=[_on_bits(better_than=[("good", "bad")])])
    analysis = analyse(results)["bits"]
    assert analysis.unmeasured == ["bad"] and analysis.lacking == {"unreached": 1}
    assert set(analysis.to_baseline) == {"good", "unreached"} and "bad" not in analysis.to_best
    assert analysis.to_baseline["good"].corrected == pytest.approx(2 * analysis.to_baseline["good"].p)
    assert rows(analysis, results)["bad"] == ["not measured", *["–"] * 5]
    notes = measure_blocks(analysis, results)[-1].text
    assert "`bad`" not in notes and "`unreached`: 1 complete run without a value" in notes
    point = conclusion(results).points[1]
    assert point.startswith("`bits` (lower is better; 3 of 4 variants are measured): `good` (by 0.500) is better than")
    assert "bad" not in point and "`unreached` is not tested" in point
    assert verdicts(results) == {("good", "bad"): "no significant difference"}


def _on_bits(**fields):
    return published("Author et al. (2020)", measure="bits", metric="bits", **fields)


def test_two_metrics_of_a_paper_are_not_two_comparisons():
    glue, superglue = {"base": 83.28, "good": 84.44}, {"base": 71.36, "good": 68.67}
    of_paper = [paper(glue), paper(superglue) | {"metric": "SuperGLUE"}]
    text = paragraph(make_results({"loss": {name: CLEAR[name] for name in ("base", "good")}}, published=of_paper))
    assert (
        "of 2 published orders, 1 agrees with these runs, 1 disagrees, and 0 have no significant difference here."
        in text
    )
    assert "1 comparison of these runs decides about all 2 orders beyond the papers' noise." in text
    assert "against SuperGLUE of Author et al. (2020), Table 1." in text
    assert (
        "The published orders of `good` and `base` contradict each other in Author et al. (2020), Table 1: `good` is "
        "better in GLUE and worse in SuperGLUE, so these runs cannot agree with both."
    ) in text
    same = [paper(glue), paper(glue) | {"metric": "SuperGLUE"}]
    values = {"base": CLEAR["base"], "good": CLEAR["bad"]}
    text = paragraph(make_results({"loss": values}, published=same))
    assert "against GLUE and SuperGLUE of Author" in text and text.count("against") == 1 and "contradict" not in text


def test_the_size_of_a_small_sure_difference():
    text = paragraph(make_results({"loss": {"a": [2.0, 2.5, 3.0], "b": [1.98, 2.4801, 2.9799]}}))
    assert "`b` (by 0.0200) is better than `a`." in text


def test_a_share_in_which_no_possible_difference_could_be_found():
    values = {"a": [0.1, 0.9, 0.5], "b": [0.9, 0.2, 0.4]}
    text = paragraph(make_results({"accuracy": values}, measures={"accuracy": fine_tuning()}))
    assert "no possible difference could have been found" in text and "has to be about" not in text
    assert "has to be about" in paragraph(make_results({"loss": values}))


def test_several_measures_are_not_corrected_for_each_other():
    sentence = "verdicts are corrected for the number of comparisons within a measure, not for the 2 measures"
    assert sentence in paragraph(make_results({"loss": NOISE, "bits": NOISE}))
    assert "within a measure" not in paragraph(make_results({"loss": NOISE}))


def test_the_headline_is_short_and_each_measure_has_one_point():
    names = [f"variant_{place}" for place in range(12)]
    rng = np.random.default_rng(6)
    noise = {name: list(rng.normal(2, 0.1, size=3)) for name in names}
    clear = {name: [2 - place, 2.001 - place, 1.999 - place + place * 1e-4] for place, name in enumerate(names)}
    found = conclusion(make_results({"loss": noise, "bits": clear}))
    assert found.headline.count(". ") <= 3 and [point.partition(" ")[0] for point in found.points] == [
        *("`loss`", "`bits`", "Limits:")
    ]
    assert "some are in `bits`" in found.headline
    for sentence in ". ".join([found.headline, *found.points]).split(". "):
        assert len(re.findall("`variant", sentence)) <= 6
    assert "and 8 others are better than `variant_0`" in found.points[1]


def test_an_unfinished_study_without_a_test_says_that_nothing_can_be_tested_yet():
    problems = [Problem(name, 1, "missing", "not started") for name in ("good", "bad")]
    values = {"base": BASE[:2], "good": [1.5], "bad": [2.5]}
    headline = conclusion(make_results({"loss": values}, problems=problems)).headline
    assert "Nothing can be tested yet" in headline and "beyond" not in headline
    values = {"base": BASE[:1], "good": [1.5, 1.8], "bad": [2.0, 1.7]}
    headline = conclusion(make_results({"loss": values}, problems=problems)).headline
    assert "that can be tested is beyond the noise between seeds: 1 of 3 comparisons can be tested." in headline
