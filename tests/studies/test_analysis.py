"""What a study says about a measure: floors, success rates, diverged runs, own losses, families, published orders."""

import dataclasses

import pytest

from configs.studies.base import fine_tuning, heldout_loss, probe, success_rate, variant
from studies.analysis import NO_PRETRAINING, analyse, count_families, objectives_differ, published_orders
from studies.results import Outcome
from tests.studies.test_report import VALUES, make_outcome, make_results, paper

FLOORS = {"loss": {"trigram": 1.95, "unigram": 4.0}}


def with_outcomes(results, **fields):
    """Returns results whose runs have `fields`."""
    return dataclasses.replace(results, outcomes=[dataclasses.replace(run, **fields) for run in results.outcomes])


def kinds(measure):
    return {name: measure.kind(pair) for name, pair in measure.to_baseline.items()}


def orders_of(results):
    [measure] = [measure for measure in analyse(results) if measure.name == "loss"]
    return {(order.first, order.second): order.verdict for order in published_orders(results.study, measure)}


def test_verdicts_without_floors():
    [measure] = analyse(make_results({"loss": VALUES}))
    assert kinds(measure) == {"good": "better", "other": "no significant difference"}
    assert measure.kind(measure.pairs["base", "good"]) == "worse" and not measure.nothing_follows


def test_a_variant_at_a_floor_has_no_verdict():
    # base and good are below the trigram's 1.95 by far more than their spread of 0.1; other is not.
    values = {"base": [1.0, 1.1, 1.2], "good": [0.2, 0.3, 0.4], "other": [1.9, 2.0, 2.1]}
    [measure] = analyse(with_outcomes(make_results({"loss": values}), floors=FLOORS))
    assert list(measure.floors) == ["unigram", "trigram"]  # the weakest first
    assert measure.at_floor == {"other": "trigram"} and not measure.nothing_follows
    assert kinds(measure) == {"good": "better", "other": "no better than a floor"}
    assert measure.verdict(measure.to_baseline["other"]) == "no better than trigram"
    assert measure.to_baseline["other"].sign == 1  # its difference is beyond noise all the same


def test_the_weakest_floor_is_named():
    results = make_results({"loss": {"base": [1.0, 1.1, 1.2], "other": [4.1, 4.2, 4.3]}})
    [measure] = analyse(with_outcomes(results, floors=FLOORS))
    assert measure.at_floor == {"other": "unigram"}


def test_a_floor_of_the_model_is_that_of_the_variants_with_this_model():
    """Such as a probe of a Transformer without training: base and good have one shape, and other has another."""
    values = {"base": [2.00, 2.10, 2.20], "good": [1.4, 1.5, 1.6], "other": [2.02, 2.07, 2.21]}
    results = make_results({"loss": values})
    heights = {"base": 1.95, "good": 1.95, "other": 5.0}
    runs = [dataclasses.replace(run, floors={"loss": {"random": heights[run.variant]}}) for run in results.outcomes]
    [measure] = analyse(dataclasses.replace(results, outcomes=runs))
    assert measure.floors == {"random, as other": 5.0, "random, as base": 1.95}
    assert measure.at_floor == {"base": "random"}


def test_a_floor_of_several_runs_is_a_sample():
    """The random Transformers of three seeds: their mean is below base, and their spread is wider than the gain."""
    results = make_results({"loss": {"base": [1.9, 2.0, 2.1], "good": [0.1, 0.2, 0.3]}})
    random = {0: 1.7, 1: 2.4, 2: 2.3}
    runs = [dataclasses.replace(run, floors={"loss": {"random": random[run.seed]}}) for run in results.outcomes]
    [measure] = analyse(dataclasses.replace(results, outcomes=runs))
    assert measure.floors == {"random": random} and measure.at_floor == {"base": "random"}


def test_a_success_that_a_floor_has_too_says_nothing():
    values = {"base": [0.5, 0.52, 0.51], "good": [0.62, 0.63, 0.61], "best": [0.9, 0.91, 0.92]}
    for at, expected in ((0.6, {"base": "random", "good": "random"}), (0.7, {})):
        measures = {"learned": success_rate(heldout_loss(config="configs/mlm.py") | {"better": "higher"}, at=at)}
        results = make_results({"learned": values}, measures=measures)
        [measure] = analyse(with_outcomes(results, floors={"learned": {"random": 0.66}}))
        assert measure.at_floor == expected


def test_fine_tuning_whose_floor_is_not_there_has_no_test():
    values = {"base": [0.50, 0.51, 0.52], "good": [0.60, 0.62, 0.61]}
    results = make_results({"accuracy": values}, measures={"accuracy": fine_tuning()})
    [measure] = analyse(results)
    assert kinds(measure) == {"good": "no test"}
    assert "has no finished runs without pre-training" in measure.to_baseline["good"].reason


def test_of_a_baseline_at_a_floor_only_better_variants_are_said():
    [measure] = analyse(with_outcomes(make_results({"loss": VALUES}), floors=FLOORS))
    assert kinds(measure) == {"good": "better", "other": "no better than a floor"} and not measure.nothing_follows
    assert measure.verdict(measure.to_baseline["good"]) == "better; `base` is no better than trigram"
    noisy = VALUES | {"good": [1.2, 1.6, 2.0]}  # above the floor of 2.9, and not beyond noise better than the baseline
    noisy |= {"base": [2.0, 2.9, 3.8], "other": [2.1, 2.9, 3.7]}
    [measure] = analyse(with_outcomes(make_results({"loss": noisy}), floors={"loss": {"trigram": 2.9}}))
    assert measure.nothing_follows == "the baseline `base` is no better than trigram"
    assert measure.verdict(measure.to_baseline["good"]) == "`base` is no better than trigram"
    assert kinds(measure) == {"good": "no test", "other": "no better than a floor"}
    [measure] = analyse(with_outcomes(make_results({"loss": VALUES}), floors={"loss": {"trigram": 1.0}}))
    assert measure.nothing_follows == "no variant is better than trigram"
    between = {"unigram": 1.95, "trigram": 1.0}  # `good` is better than unigram, the others than neither
    [measure] = analyse(with_outcomes(make_results({"loss": VALUES}), floors={"loss": between}))
    assert measure.nothing_follows == "no variant is better than both unigram and trigram"
    results = with_outcomes(make_results({"loss": VALUES}), floors={"loss": {"trigram": 1.0}})
    unfinished = [run for run in results.outcomes if run.variant == "base"]
    [measure] = analyse(dataclasses.replace(results, outcomes=unfinished))
    assert measure.nothing_follows == "no variant that has been measured is better than trigram"


def test_no_pretraining_is_a_floor_of_fine_tuning():
    values = {"base": [0.60, 0.61, 0.62], "same": [0.50, 0.52, 0.51]}
    results = make_results(
        {"accuracy": values, "loss": values},
        measures={"accuracy": fine_tuning(), "loss": heldout_loss(config="configs/mlm.py")},
    )
    scratch = [make_outcome("no_pretraining", seed, {"accuracy": 0.5 + seed / 100, "loss": 9.0}) for seed in range(3)]
    scratch_of = dict.fromkeys(values, "no_pretraining")
    accuracy, loss = analyse(dataclasses.replace(results, scratch=scratch, scratch_of=scratch_of))
    assert accuracy.floors == {NO_PRETRAINING: {0: 0.5, 1: 0.51, 2: 0.52}} and not loss.floors
    assert accuracy.at_floor == {"same": "no pre-training"}


def test_the_floor_without_pre_training_is_that_of_a_variant_s_own_shape():
    values = {"base": [0.60, 0.61, 0.62], "wide": [0.70, 0.72, 0.71]}
    results = make_results({"accuracy": values}, measures={"accuracy": fine_tuning()})
    names = {"base": "no_pretraining_base", "wide": "no_pretraining_wide"}
    heights = {"no_pretraining_base": 0.5, "no_pretraining_wide": 0.7}
    scratch = [
        make_outcome(name, seed, {"accuracy": height + seed / 100})
        for name, height in heights.items()
        for seed in range(3)
    ]
    [accuracy] = analyse(dataclasses.replace(results, scratch=scratch, scratch_of=names))
    assert [*accuracy.floors] == [f"{NO_PRETRAINING}, as base", f"{NO_PRETRAINING}, as wide"]
    assert accuracy.at_floor == {"wide": NO_PRETRAINING}  # base is below it too, and is not compared


def test_a_variant_with_diverged_runs_has_no_test_of_means_and_fails_in_a_success_rate():
    values = {"base": [0.0, 0.1, 0.0, 0.2, 0.1, 0.0, 0.1], "good": [1.0, 0.9, 1.0, 0.95, 1.0, 1.0, 0.2]}
    diverged = [Outcome(variant="good", seed=7, state="diverged"), Outcome(variant="base", seed=7, state="failed")]
    loss = heldout_loss(config="configs/mlm.py", better="higher")
    results = make_results(
        {"loss": values, "rate": values},
        measures={"loss": loss, "rate": success_rate(loss, at=0.9)},
        problems=diverged,
        seeds=8,
    )
    mean, rate = analyse(results)
    assert mean.to_baseline["good"].reason == "good has runs that are absent from its mean: 1 diverged"
    assert rate.counts == {"base": (0, 7), "good": (6, 8)}  # one run failed for another reason, such as a full disk
    # Fisher's exact test by hand: C(8,6) / C(15,6) = 28 / 5005, and the other tail's C(7,6) / 5005 = 7 / 5005.
    assert rate.to_baseline["good"].p == pytest.approx(35 / 5005)
    assert rate.to_baseline["good"].corrected == pytest.approx(2 * 35 / 5005)  # two families
    assert kinds(rate) == {"good": "better"} and kinds(mean) == {"good": "no test"}


def test_success_at_a_low_loss():
    values = {"base": [2.0, 2.1, 2.2], "good": [1.0, 1.5, None]}
    results = make_results({"loss": values}, measures={"loss": success_rate(heldout_loss(config="c.py"), at=1.5)})
    [measure] = analyse(results)
    assert measure.counts == {"base": (0, 3), "good": (2, 3)}  # a run without a value has failed
    assert not measure.at_floor and measure.kind(measure.to_baseline["good"]) == "no significant difference"


def test_runs_without_a_value_leave_no_test_of_means():
    results = make_results(
        {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.2, None]}}, published=[paper({"a": 1, "b": 2}, sd=0.1)]
    )
    [measure] = analyse(results)
    assert measure.to_baseline["b"].reason == "b has runs that are absent from its mean: 1 without a value"
    assert orders_of(results) == {("b", "a"): "undecided"}


def test_a_verdict_below_the_detectable_difference_is_marked():
    [measure] = analyse(make_results({"loss": VALUES}))
    pair = dataclasses.replace(measure.to_baseline["good"], detectable=0.6)
    assert measure.verdict(pair) == "better, below the detectable difference"
    assert measure.verdict(dataclasses.replace(pair, detectable=0.4)) == "better"


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (variant({"optimizer.learning_rate": 0.1}), False),
        (variant({"objective.mask_rate": 0.4}), True),
        (variant({"train.eval_windows": 4}), True),
        (variant({"data.tokenizer": "other.model"}), True),
        (variant(config="configs/clm.py"), True),
        (variant(sweep={"optimizer.b2": [0.9, 0.99]}), False),
    ],
)
def test_own_losses_of_different_objectives_are_not_compared(other, differ):
    results = make_results(
        {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}},
        measures={"loss": heldout_loss()},
        variants={"a": variant(), "b": other},
    )
    assert objectives_differ(results, ["a", "b"]) == differ
    [measure] = analyse(with_outcomes(results, floors=FLOORS))
    assert measure.is_own == differ and bool(measure.pairs) != differ
    assert not (differ and measure.at_floor)  # a floor of one objective's text is none of another's
    assert count_families(results) == 1 - differ


@pytest.mark.parametrize(
    ("measure", "other", "is_own"),
    [
        (heldout_loss(config="configs/mlm.py"), {"data.tokenizer": "other.model"}, True),
        (heldout_loss(config="configs/mlm.py"), {"objective.mask_rate": 0.4}, False),
        (heldout_loss(), {"data.sources.text.weight": 9.0}, True),
        (heldout_loss(metric="loss/text"), {"data.sources.text.weight": 9.0}, False),
        (heldout_loss(config="configs/mlm.py"), {"data.sources.text.weight": 9.0}, False),
    ],
)
def test_tokens_of_other_tokenizers_and_losses_of_other_rates_are_not_compared(measure, other, is_own):
    values = {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}}
    results = make_results(values, measures={"loss": measure}, variants={"a": variant(), "b": variant(other)})
    [found] = analyse(with_outcomes(results, floors=FLOORS))
    assert found.is_own == is_own and bool(found.pairs) != is_own


@pytest.mark.parametrize(
    ("measure", "other", "is_own"),
    [
        (heldout_loss(), {"data.document_per": "line"}, True),
        (heldout_loss(metric="bits_per_byte"), {"data.filters.min_tokens": 50}, True),
        (heldout_loss(), {"data.sources.text.documents": "pack"}, True),
        (heldout_loss(config="configs/mlm.py"), {"data.filters.min_tokens": 50}, True),
        (
            heldout_loss(config="configs/mlm.py", overrides={"data.document_per": "file"}),
            {"data.document_per": "a"},
            False,
        ),
        (probe("continuation", "bits_per_byte"), {"data.tokenizer": "other.model"}, True),
        (probe("infilling", "spans.3.exact_match"), {"data.document_per": "line"}, True),
        (probe("minimal_pairs", "accuracy", path="x"), {"data.tokenizer": "other.model"}, False),
        (fine_tuning("loss", config="configs/sft.py"), {"data.tokenizer": "other.model"}, True),
        (fine_tuning("accuracy"), {"data.document_per": "line"}, False),
    ],
)
def test_other_text_is_not_compared(measure, other, is_own):
    """Before, each of these had a verdict: filters and another cut of files leave the digest of the held-out text."""
    values = {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}}
    results = make_results(values, measures={"loss": measure}, variants={"a": variant(), "b": variant(other)})
    [found] = analyse(results)
    assert found.is_own == is_own and bool(found.pairs) != is_own


def test_equal_floors_are_of_equal_text():
    """The texts of a fine-tuning, which two tokenizers do not cut, have one share of the commonest class."""
    values = {"accuracy": {"a": [0.7, 0.71, 0.72], "b": [0.8, 0.81, 0.82]}}
    variants = {"a": variant(), "b": variant({"data.tokenizer": "other.model"})}
    results = make_results(values, measures={"accuracy": fine_tuning()}, variants=variants)
    for of_b, is_own in ((0.5483870967741936, False), (0.53, True)):
        floors = {"a": 0.5483870967741935, "b": of_b}
        runs = [
            dataclasses.replace(run, floors={"accuracy": {"majority class": floors[run.variant]}})
            for run in results.outcomes
        ]
        scratch = [make_outcome(f"no_{name}", seed, {"accuracy": 0.6}) for name in "ab" for seed in range(3)]
        scratch_of = {"a": "no_a", "b": "no_b"}
        [found] = analyse(dataclasses.replace(results, outcomes=runs, scratch=scratch, scratch_of=scratch_of))
        assert found.is_own == is_own


def test_what_a_config_says_decides_and_the_own_held_out_text_is_not_filtered():
    """Two starts (train.init_from) may have two vocabularies, or copies of one."""
    values = {"loss": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}}
    variants = {name: variant({"train.init_from": name}) for name in "ab"}
    results = make_results(values, measures={"loss": heldout_loss()}, variants=variants)
    cases = [({"data.tokenizer": "other"}, True), ({}, False), ({"data.filters.min_tokens": 5}, True)]
    for differ, is_own in [*cases, ({"data.filters.min_tokens": 5}, False)]:
        same = {"data.tokenizer": "one", "data.filters.min_tokens": 0}
        same["data.heldout_path"] = "" if is_own else "test.txt"
        [found] = analyse(dataclasses.replace(results, configs={"a": same, "b": same | differ}))
        assert found.is_own == is_own


def test_bits_per_byte_of_different_objectives_are_compared_on_the_same_text():
    """The same text has the same trigram model: other windows, or the part that a tokenizer covers, have another."""
    results = make_results(
        {"bits": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}},
        measures={"bits": heldout_loss(metric="bits_per_byte")},
        variants={"a": variant(config="configs/clm.py"), "b": variant(config="configs/masked_diffusion.py")},
    )
    assert objectives_differ(results, ["a", "b"])
    of_one_text = with_outcomes(results, floors={"bits": {"trigram": 2.8, "unigram": 4.0}})
    [same] = analyse(of_one_text)
    assert count_families(of_one_text) == 1 and not same.is_own and same.kind(same.to_baseline["b"]) == "better"
    of_windows = {"a": 2.79, "b": 2.84}
    runs = [dataclasses.replace(run, floors={"bits": {"trigram": of_windows[run.variant]}}) for run in results.outcomes]
    for other in (results, dataclasses.replace(results, outcomes=runs)):  # the text of runs without floors is not known
        [measure] = analyse(other)
        assert measure.is_own and not measure.pairs and count_families(other) == 0


def test_bits_per_byte_of_other_tokens_are_not_compared():
    results = make_results(
        {"bits": {"a": [1.0, 1.1, 1.3], "b": [0.5, 0.6, 0.8]}},
        measures={"bits": heldout_loss(metric="fim_bits_per_byte")},
        variants={"a": variant({"objective.fim_rate": 0.0}), "b": variant({"objective.fim_rate": 0.9})},
    )
    [measure] = analyse(with_outcomes(results, floors={"bits": {"trigram": 2.8}}))
    assert measure.is_own and not measure.pairs


def test_families_are_measures_and_published_pairs_without_the_baseline():
    values = {"loss": VALUES, "more": VALUES}
    alone, both = (
        make_results(values, published=[paper(better_than=pairs)])
        for pairs in ([("good", "base")], [("good", "base"), ("other", "good")])
    )
    assert (count_families(alone), count_families(both)) == (2, 3)
    before, after = analyse(alone)[1].to_baseline["good"], analyse(both)[1].to_baseline["good"]
    assert after.corrected == pytest.approx(1.5 * before.corrected)
    assert ("other", "good") in analyse(both)[0].pairs and ("other", "good") not in analyse(both)[1].pairs


def test_orders_agree_disagree_or_are_undecided():
    orders = [
        paper({"base": 80.0, "good": 81.0, "other": 79.5}, sd=0.2),  # other is within the paper's noise: 0.5 < 0.57
        paper(better_than=[("other", "good")], better="lower"),
    ]
    assert orders_of(make_results({"loss": VALUES}, published=orders)) == {
        ("good", "base"): "agrees",
        ("base", "other"): "within the paper's noise",
        ("other", "good"): "no spread published",
    }
    orders = [paper({"base": 80.0, "good": 79.0, "other": 81.0}, sd=0.2)]
    assert orders_of(make_results({"loss": VALUES}, published=orders)) == {
        ("base", "good"): "disagrees",
        ("other", "base"): "undecided",
    }


def test_a_pair_of_the_paper_without_the_baseline_is_an_order_with_its_values():
    order = paper({"base": 80.0, "good": 81.0, "other": 79.0}, better_than=[("good", "other")], sd=0.2)
    assert orders_of(make_results({"loss": VALUES}, published=[order]))["good", "other"] == "agrees"


def test_an_order_with_a_variant_at_a_floor_are_undecided():
    results = with_outcomes(
        make_results({"loss": VALUES}, published=[paper({"base": 80.0, "good": 81.0}, sd=0.1)]), floors=FLOORS
    )
    assert orders_of(results) == {("good", "base"): "undecided"}


def test_margins_over_documents_are_means_over_seeds():
    results = make_results({"loss": VALUES})
    outcomes = [dataclasses.replace(run, margins={"loss": 0.01 * (1 + run.seed)}) for run in results.outcomes]
    [measure] = analyse(dataclasses.replace(results, outcomes=outcomes))
    assert measure.margins == pytest.approx(dict.fromkeys(VALUES, 1.96 * 0.02))


def test_a_measure_of_some_variants_compares_these():
    measures = {"loss": heldout_loss(config="configs/mlm.py", only=("base", "good"))}
    values = {"base": VALUES["base"], "good": VALUES["good"], "other": [None] * 3}
    [measure] = analyse(make_results({"loss": values}, measures=measures))
    assert list(measure.to_baseline) == ["good"]


def test_a_measure_without_the_baseline_compares_with_its_first_variant():
    measures = {"loss": heldout_loss(config="configs/mlm.py", only=("good", "other"))}
    [measure] = analyse(make_results({"loss": VALUES}, measures=measures))
    assert measure.baseline == "good" and measure.title == "`loss` (lower, against `good`)"
    assert kinds(measure) == {"other": "worse"}
