"""Every supported pair of config and architecture trains, and every preset is valid."""

import functools
import importlib
import pathlib

import jax
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from models.transformer import init_params
from objectives import OBJECTIVES, Mixture, denoisers_of
from tests.table import CASES, CONFIGS, PAIRS, objective_of, presets_of, reads_corpus, small_config
from train.loop import train_and_evaluate

ROOT = pathlib.Path(__file__).parent.parent


def test_every_objective_has_a_config():
    used = {type(denoiser.objective) for name, _ in CASES for denoiser in denoisers_of(objective_of(name), name)}
    assert set(OBJECTIVES.values()) - {Mixture} == used


@pytest.mark.parametrize(("config", "preset"), [(name, preset) for name in CONFIGS for preset in presets_of(name)])
def test_every_preset_of_every_config_is_valid(config, preset):
    fields = importlib.import_module(f"configs.{config}").get_config(preset).to_dict()
    experiment = make_experiment(fields)
    shapes = jax.eval_shape(functools.partial(init_params, experiment.model), jax.random.key(0))
    params = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    variants = getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", ())
    assert params > (1e5 if preset == "tiny" or preset in variants else 9e6)
    for architecture in sorted(objective_of(f"{config}:{preset}").architectures):
        make_experiment(fields | {"model": fields["model"] | {"architecture": architecture}})


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_presets_raise_with_the_known_presets(config):
    with pytest.raises(ValueError, match="unknown preset 'huge': use 'tiny', "):
        importlib.import_module(f"configs.{config}").get_config("huge")


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_every_supported_pair_trains_two_steps(name, architecture, corpus, tmp_path, capsys):
    fields = small_config(name, architecture, **reads_corpus(name, corpus))
    train_and_evaluate(make_experiment(fields), str(tmp_path / "run"))
    printed = capsys.readouterr().out
    assert "done: 2 steps" in printed and "eval at step 2" in printed
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "config.json",
        "first_checkpoint.json",
        "metrics.jsonl",
        "tensorboard",
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_unsupported_architectures_raise(name):
    for architecture in {"encoder_decoder", "decoder_only", "encoder_only"} - objective_of(name).architectures:
        with pytest.raises(ConfigError, match=rf"model.architecture='{architecture}' does not go with objective"):
            make_experiment(small_config(name, architecture))
