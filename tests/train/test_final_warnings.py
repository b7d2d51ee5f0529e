"""A loss above the logarithm of the vocabulary, and a best evaluation that was the first, are said at the end."""

import json
import math
import re

import pytest
from train.final_warnings import final_warnings

from experiment.experiment import make_experiment
from tests.table import reads_corpus, small_config, small_experiment
from train.loop import train_and_evaluate


def warnings_of(tmp_path, losses, name="clm", architecture="decoder_only"):
    experiment = small_experiment(name, architecture)
    lines = [{"step": 10 * k, "split": "eval", "loss": loss} for k, loss in enumerate(losses, start=1)]
    lines = [{"step": 1, "split": "train", "loss": 0.1}, *lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = final_warnings(experiment, tmp_path)
    assert all("\n" not in warning for warning in found)
    return found


def test_a_run_that_learns_has_no_warning(tmp_path):
    assert warnings_of(tmp_path, [3.0, 2.0, 2.1]) == []
    assert warnings_of(tmp_path, [3.0]) == []
    assert warnings_of(tmp_path, []) == []
    assert warnings_of(tmp_path, [3.0, 3.0]) == []


def test_a_loss_above_the_logarithm_of_the_vocabulary(tmp_path):
    size = small_experiment("clm", "decoder_only").vocab.size
    assert size == 366
    assert warnings_of(tmp_path, [7.0, math.log(size) - 0.001]) == []
    [warning] = warnings_of(tmp_path, [7.0, 5.91])
    assert warning.startswith(
        "the held-out loss at step 20, 5.910, is above 5.903, the logarithm of the vocabulary (366 ids)"
    )
    assert "lower optimizer.learning_rate" in warning


def test_losses_that_are_not_of_tokens_have_no_such_bound(tmp_path):
    assert warnings_of(tmp_path, [9.0, 8.0], "classification", "encoder_only") == []
    assert warnings_of(tmp_path, [9.0, 8.0], "simcse", "encoder_only") == []
    assert len(warnings_of(tmp_path, [9.0, 8.0], "electra", "encoder_only")) == 1


def test_a_loss_that_is_not_finite(tmp_path):
    found = warnings_of(tmp_path, [3.0, None])
    assert found[0].startswith("the held-out loss at step 20 is not finite: lower optimizer.learning_rate")


def test_the_first_evaluation_was_the_best(tmp_path):
    [warning] = warnings_of(tmp_path, [2.0, 2.4, 2.3])
    expected = "the lowest held-out loss, 2.000, is that of the first evaluation, at step 10; at step 30 it is 2.300: "
    assert warning.startswith(expected) and "train for fewer steps or on more text" in warning


@pytest.mark.parametrize(("rate", "warned"), [(1e-2, False), (30.0, True)])
def test_a_run_prints_its_warnings_at_the_end(corpus, tmp_path, capsys, rate, warned):
    """At a rate of 30 the loss rises far above the logarithm of the vocabulary; two evaluations."""
    fields = small_config("clm", "decoder_only", **reads_corpus("clm", corpus))
    fields["train"] |= {"steps": 4, "eval_every": 2}
    fields["optimizer"] |= {"learning_rate": rate, "warmup_steps": 1, "schedule": "constant", "name": "adamw"}
    train_and_evaluate(make_experiment(fields), str(tmp_path / "run"))
    printed = capsys.readouterr().out
    assert ("WARNING: the held-out loss at step 4, " in printed) == warned
    assert "trigram  " in printed and re.search(r"copies  of \d+ held-out documents, 0 are identical", printed)
