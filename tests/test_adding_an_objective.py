"""The toy objectives that docs/adding_an_objective.md prints pass the tests of every objective."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import objectives
from configs import mlm, span_corruption
from configs.base import mixture
from configs.sizes import DIAL
from contract.batch import check_batch
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from objectives import SpanCorruption
from objectives.algebra.noise import valid_positions
from show.examples import Chunk, examples_of
from tests import test_table
from tests.table import presets_of, small_config

ROOT = pathlib.Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "adding_an_objective.md").read_text()
TOYS = {"every_nth": "EveryNth", "every_nth_in_place": "EveryNthInPlace"}
FILES = dict(re.findall(r"`(\w+/\w+\.py)`\n\n```python\n(.*?)```", GUIDE, re.DOTALL))


@pytest.fixture(scope="module")
def toy():
    """The modules of the guide's files by name, with the toy objectives in the table of objectives."""
    modules = {}
    for path, source in FILES.items():
        name = path.removesuffix(".py").replace("/", ".")
        modules[name] = sys.modules[name] = types.ModuleType(name)
        exec(compile(source, path, "exec"), modules[name].__dict__)
    table = {name: getattr(modules[f"objectives.{name}"], cls) for name, cls in TOYS.items()}
    objectives.OBJECTIVES.update(table)
    yield modules
    for name in table:
        del objectives.OBJECTIVES[name]
    for name in modules:
        del sys.modules[name]


def test_the_guide_prints_an_objective_and_a_config_of_each_kind():
    assert list(FILES) == [f"{room}/{name}.py" for name in TOYS for room in ("objectives", "configs")]


@pytest.fixture
def unscored_sentinels(monkeypatch):
    """The guide's span corruption that does not score its sentinels, in the table of objectives."""
    [source] = re.findall(r"```python\n(class UnscoredSentinels.*?)```", GUIDE, re.DOTALL)
    exec(source, names := {"SpanCorruption": SpanCorruption, "np": np})
    monkeypatch.setitem(objectives.OBJECTIVES, "unscored", names["UnscoredSentinels"])


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_the_guides_targets_with_weights_score_all_but_the_sentinels(unscored_sentinels, architecture):
    """In packed rows, with rows of the same views that score them and, in a decoder, rows that predict in place."""
    spans = small_config("span_corruption", architecture)["objective"] | {"weight": 1.0}
    rows = {"own": spans | {"name": "unscored", "mode": ""}, "plain": spans | {"mode": ""}}
    tables = [rows]
    if architecture == "decoder_only":
        tables.append(rows | {"mntp": small_config("hybrid", architecture)["objective"]["denoisers"]["mntp"]})
    for table in tables:
        fields = dict(data__documents="join", data__examples_per_row=2, objective=mixture(table))
        experiment = make_experiment(small_config("clm", architecture, **fields))
        batch = experiment.collate(test_table.random_windows(experiment, 6, same_keys=False), 6)
        check_batch(batch, architecture)
        vocab, weights = experiment.vocab, batch["decoder_loss_weights"]
        is_sentinel = np.isin(batch["decoder_target_tokens"], vocab.sentinels)
        scored = [is_sentinel & (weights > 0) & (batch["example_source"] == k) for k in range(2)]
        assert not scored[0].any() and scored[1].any()
        ends = (batch["decoder_target_tokens"] == vocab.eos) & (weights == 1)
        assert [(ends & (batch["example_source"] == k)).sum() for k in range(2)] == [6 // len(table) * 2] * 2


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_train_show_has_targets_without_weight_among_the_targets(unscored_sentinels, architecture):
    fields = small_config("span_corruption", architecture, data__examples_per_row=2)
    shown = []
    for name in ("span_corruption", "unscored"):
        experiment = make_experiment(fields | {"objective": fields["objective"] | {"name": name}})
        windows = test_table.random_windows(experiment, 4, same_keys=False)
        shown.append(examples_of(Chunk(windows, experiment.collate(windows, 4)), experiment.vocab))
    for field in ("inputs", "targets"):
        for expected, found in zip(*(getattr(one, field) for one in shown), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_the_guides_targets_with_weights_pass_the_tests_of_every_objective(unscored_sentinels, architecture):
    fields = small_config("span_corruption", architecture)
    experiment = make_experiment(fields | {"objective": fields["objective"] | {"name": "unscored"}})
    test_table.assert_no_prediction_depends_on_its_token(experiment)
    [denoiser] = experiment.denoisers
    for test in OF_EVERY_OBJECTIVE:
        test(objective=denoiser.objective)


OF_EVERY_OBJECTIVE = [
    test_table.test_restored_text_equals_the_raw_text_and_lengths_and_sentinels_keep_their_bounds,
    test_table.test_inputs_do_not_depend_on_hidden_tokens_and_contain_all_other_tokens,
    test_table.test_an_example_does_not_depend_on_the_other_examples_of_its_batch,
    test_table.test_measured_corruption_rates_agree_with_the_expected_ones,
]


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("test", OF_EVERY_OBJECTIVE, ids=lambda test: test.__name__)
def test_the_toy_objective_passes_the_tests_of_every_objective(toy, test, name):
    objective = objectives.OBJECTIVES[name](4)
    test(objective=objective)
    assert test_table.examples_of(objective, "random")[1].any(), "it hides tokens, so there was something to test"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("every_nth", "encoder_decoder"), ("every_nth_in_place", "encoder_only"), ("every_nth_in_place", "decoder_only")],
)
def test_no_prediction_of_a_toy_objective_depends_on_its_token(toy, name, architecture):
    config = small_config("clm", architecture, data__documents="join", objective={"name": name, "period": 4})
    test_table.assert_no_prediction_depends_on_its_token(make_experiment(config))


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_a_token_sees_those_whose_attention_order_is_at_most_its_own_as_the_guide_says(toy, architecture, monkeypatch):
    """Each order of the guide's table: a changed token changes the logits of exactly the positions that see it."""
    rows = re.findall(r"^\| `(\d(?: \d)+)` \|", GUIDE, re.MULTILINE)
    assert len(rows) == 4
    cls = objectives.OBJECTIVES["every_nth_in_place"]
    fields = {"data__documents": "join", "data__inputs_length": 5, "model__num_layers": 1}
    for row in rows:
        order = np.array(row.split(), np.int32)
        monkeypatch.setattr(toy["objectives.every_nth_in_place"], "left_to_right", lambda _, order=order: order[None])
        config = small_config("clm", architecture, objective={"name": "every_nth_in_place", "period": 5}, **fields)
        experiment = make_experiment(config)
        assert type(experiment.denoisers[0].objective) is cls
        batch = experiment.collate(test_table.random_windows(experiment, 1, same_keys=False), 1)
        [tokens] = (name for name in batch if name.endswith("_input_tokens"))
        before = test_table.logits(experiment, batch)
        for place in range(5):
            other = batch[tokens].copy()
            other[0, place] += 1
            after = test_table.logits(experiment, batch | {tokens: other})
            differs = (before != after).any(axis=-1)[0]
            np.testing.assert_array_equal(differs, order[place] <= order, err_msg=f"{row}, token {place}")


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("every_nth", "encoder_decoder"), ("every_nth_in_place", "encoder_only"), ("every_nth_in_place", "decoder_only")],
)
def test_batches_of_a_toy_config_pass_the_test_of_every_config(toy, name, architecture):
    test_table.test_batches_are_valid_and_score_no_more_positions_than_their_bound(name, architecture)


@pytest.mark.parametrize("most", [13, 40])
def test_an_encoder_that_computes_more_logits_than_its_objective_allows_fails(toy, monkeypatch, most):
    """So the test of batches can fail for objectives that it does not list."""
    experiment = test_table.experiment_of("every_nth_in_place", "encoder_only")
    assert (experiment.learner.num_logits(40), test_table.own_logits(experiment)) == (10, 10)
    setup = dataclasses.replace(experiment.learner.setup, most_scored=most)
    loose = dataclasses.replace(experiment, learner=dataclasses.replace(experiment.learner, setup=setup))
    monkeypatch.setattr(test_table, "experiment_of", lambda *_: loose)
    with pytest.raises(AssertionError):
        test_table.test_batches_are_valid_and_score_no_more_positions_than_their_bound(
            name="every_nth_in_place", architecture="encoder_only"
        )


@pytest.mark.parametrize(("name", "like"), [("every_nth", span_corruption), ("every_nth_in_place", mlm)])
@pytest.mark.parametrize("preset", DIAL)
def test_a_small_toy_config_has_the_steps_and_rows_of_a_small_config_here(toy, name, like, preset):
    config, expected = toy[f"configs.{name}"].get_config(preset), like.get_config(preset)
    assert config.train.to_dict() == expected.train.to_dict()
    assert config.optimizer.to_dict() == expected.optimizer.to_dict()
    assert config.model.to_dict() == expected.model.to_dict()
    assert config.data.inputs_length == expected.data.inputs_length


@pytest.mark.parametrize("name", TOYS)
def test_the_docstring_of_a_toy_config_lists_its_presets_and_all_are_valid(toy, name):
    [listed] = re.findall(r"^Presets: (.*)\.$", toy[f"configs.{name}"].__doc__, re.MULTILINE)
    presets = presets_of(name)
    assert re.sub(r" \([^)]*\)", "", listed).split(", ") == [*presets]
    for preset in presets:
        test_table.test_every_preset_of_every_config_is_valid(name, preset)


@pytest.mark.slow
def test_the_guides_check_passes_in_a_clone_that_follows_it(tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".git", "__pycache__", "runs", "*.egg-info"))
    for path, source in FILES.items():
        (clone / path).write_text(source)
    table = clone / "objectives" / "__init__.py"
    entries = "".join(f'\n    "{name}": {cls},' for name, cls in TOYS.items())
    changed = re.sub(r"^(OBJECTIVES\b.*\{)$", rf"\1{entries}", table.read_text(), flags=re.MULTILINE)
    imports = "".join(f"from objectives.{name} import {cls}\n" for name, cls in TOYS.items())
    table.write_text(imports + changed)
    [command] = re.findall(r"^    (pytest .*every_nth)", GUIDE, re.MULTILINE)
    environment = os.environ | {"PYTHONPATH": str(clone)}
    run = subprocess.run([sys.executable, "-m", *command.split()], cwd=clone, env=environment, capture_output=True)
    assert run.returncode == 0, run.stdout.decode()[-3000:]


def test_an_objective_whose_inputs_show_what_they_hide_fails(toy):
    """So the test above can fail."""
    objective = toy["objectives.every_nth"].EveryNth(4)
    everything = lambda self, tokens, lengths, *_: valid_positions(lengths, tokens.shape[1])  # noqa: E731
    wrong = type("Wrong", (type(objective),), {"hidden_mask": everything})(4)
    with pytest.raises(AssertionError):
        test_table.test_inputs_do_not_depend_on_hidden_tokens_and_contain_all_other_tokens(objective=wrong)


def test_the_toy_config_is_valid_on_both_architectures(toy):
    for preset in ("xxl", "tiny"):
        config = toy["configs.every_nth"].get_config(preset)
        for architecture in ("encoder_decoder", "decoder_only"):
            config.model.architecture = architecture
            experiment = make_experiment(config.to_dict())
            assert (
                0.75 * experiment.data.inputs_length
                < experiment.window_specs[0].raw_length
                < experiment.data.inputs_length
            )
    config.objective.period = 1
    with pytest.raises(ConfigError, match=r"objective.period=1 must be 2 or more"):
        make_experiment(config.to_dict())
