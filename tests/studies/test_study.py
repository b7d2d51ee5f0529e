"""A study that cannot work is refused in one line, before anything runs."""

import pytest

from configs.studies.base import (
    flops,
    heldout_loss,
    published,
    raw_tokens,
    stage,
    study,
    success_rate,
    throughput,
    variant,
)
from contract.errors import ConfigError
from studies.measures import make_measure
from studies.study import Budget, load_study, make_study, with_changes


def _fields(**changes):
    fields = dict(
        question="?",
        config="configs/clm.py",
        baseline="a",
        variants={"a": variant(), "b": variant({"optimizer.learning_rate": 0.1})},
        budget=raw_tokens(100),
        measures={"loss": heldout_loss()},
    )
    return study(**fields | changes)


def test_a_study_keeps_what_its_file_says():
    made = make_study(
        _fields(
            variants={
                "a": variant(),
                "b": variant({"seed_like": 1}, config="configs/mlm.py", start=stage("configs/clm.py", 0.25)),
            },
            published=[published("T5", measure="loss", metric="GLUE", values={"a": 1.0}, better_than=[("b", "a")])],
        ),
        "x.py",
    )
    assert made.config_of("a") == "configs/clm.py" and made.config_of("b") == "configs/mlm.py"
    assert made.variants["a"].start is None and made.variants["b"].start.share == 0.25
    assert made.published[0].better_than == (("b", "a"),)
    assert made.first_measure == "loss" and made.seeds == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "c"}, r"baseline='c' is not a variant: use a, b"),
        ({"variants": {"a": variant()}}, "or a sweep of one, and this one has 1: add a baseline or a sweep"),
        ({"variants": {"a": variant(), "B c": variant()}}, "variant 'B c' must have lower-case letters"),
        ({"seeds": 0}, "seeds=0 must be 1 to 1000"),
        ({"budget": raw_tokens(0)}, "the budget, 0.0, must be above 0"),
        ({"budget": dict(unit="epochs", amount=1.0)}, "budget.unit='epochs' must be one of 'raw_tokens', 'flops'"),
        ({"measures": {}}, "measures must contain one"),
        ({"overrides": {"train.steps": 5}}, "train.steps cannot be overridden, because every run has the study's"),
        ({"variants": {"a": variant(), "b": variant(start=stage("c", 1.0))}}, "start.share=1.0 must be above 0"),
        (
            {"variants": {"a": variant(), "b": variant(sweep={"optimizer.b2": [1]})}},
            "2 different numbers or texts, or more",
        ),
        ({"variants": {"a": variant(), "b": variant(sweep={"train.batch_size": [4, 16]})}}, "only fields of optimizer"),
        ({"sweep": {"optimizer.b2": [0.8, 0.9]}}, "3 different numbers or texts, or more, not [0.8, 0.9]"),
        ({"sweep": {"optimizer.learning_rate": [1, 1.0, 2]}}, "3 different numbers or texts"),
        ({"sweep": {"optimizer.learning_rate": [1, 2, 3]}}, "variant b: optimizer.learning_rate is both swept and"),
        (
            {
                "sweep": {"optimizer.b2": [1, 2, 3]},
                "variants": {"a": variant(), "b": variant(sweep={"optimizer.b2": [1, 2]})},
            },
            "variant b and the study both have a sweep: remove one",
        ),
        (
            {"overrides": {"data.heldout": "validation"}},
            "data.heldout cannot be overridden, because the runs of a sweep",
        ),
        (
            {"measures": {"loss": heldout_loss(overrides={"data.heldout": "test"})}},
            "measure loss: data.heldout cannot be overridden",
        ),
        ({"measures": {"main": heldout_loss()}}, "measure 'main' must have another name: study.json has a run or a"),
        (
            {"measures": {"loss": heldout_loss(only=("b",))}},
            "only=('b',) must have two variants of the study or more",
        ),
        ({"measures": {"loss": heldout_loss(only=("a", "c"))}}, "must have two variants of the study or more"),
        ({"variants": {"a": variant(), "b": variant(sweep={"x": [1, 2], "y": [1, 2]})}}, "sweep one field"),
        ({"published": [published("T5", measure="nope", metric="GLUE")]}, "T5: measure='nope' is not of the study"),
        ({"published": [published("T5", measure="loss", metric="GLUE", values={"b": 1.0})]}, "have the baseline 'a'"),
        ({"measures": {"rate": success_rate(throughput(), at=0.9)}}, "measure rate: success_rate needs a measure of"),
        ({"measures": {"rate": success_rate(heldout_loss(), at=float("nan"))}}, "a measure of quality and a finite at"),
    ],
)
def test_a_study_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ConfigError, match=r"--study=x\.py: ") as error:
        make_study(_fields(**changes), "x.py")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_success_rate_has_eight_seeds():
    measures = {"loss": heldout_loss(), "rate": success_rate(heldout_loss(metric="accuracy", better="higher"), at=0.9)}
    made = make_study(_fields(measures=measures), "x.py")
    assert made.seeds == 8 and made.measures["rate"]["success_at"] == 0.9
    assert make_study(_fields(measures=measures, seeds=3), "x.py").seeds == 3
    assert make_measure("rate", made.measures["rate"]) == make_measure(
        "rate", heldout_loss(metric="accuracy", better="higher")
    )


def test_a_sweep_of_the_study_is_that_of_every_variant():
    sweep = {"optimizer.b2": [0.8, 0.9, 0.95]}
    made = make_study(_fields(sweep=sweep), "x.py")
    assert [each.sweep for each in made.variants.values()] == [sweep, sweep] and made.sweep == sweep


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="unknown variant: did you mean variants"):
        make_study(_fields() | {"variant": {}}, "x.py")


def test_a_file_that_is_not_a_study_is_refused(tmp_path):
    message = r"--study=nope.py does not exist: name a file of yours, or one of configs/studies \(.*masking_rate"
    with pytest.raises(ConfigError, match=message):
        load_study("nope.py")
    broken = tmp_path / "broken.py"
    broken.write_text("1/0\n")
    with pytest.raises(ConfigError, match="cannot be read: ZeroDivisionError: division by zero"):
        load_study(str(broken))
    for body in ("raise Own('why')", "def get_study():\n    raise Own('why')"):
        broken.write_text(f"class Own(BaseException): pass\n{body}\n")
        with pytest.raises(ConfigError, match="cannot be read: Own: why"):
            load_study(str(broken))
    broken.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="has no function get_study that returns"):
        load_study(str(broken))


def test_seeds_and_budget_of_the_command_line():
    made = with_changes(make_study(_fields(budget=flops(5)), "x.py"), seeds=7, budget=Budget("flops", 9.0))
    assert made.seeds == 7 and made.budget.amount == 9.0 and made.budget.unit == "flops"
    with pytest.raises(ConfigError, match="must be"):
        with_changes(made, seeds=None, budget=Budget("flops", 0.0))
