"""Every declared pair trains, every config stands at every preset, and the floors hold."""

import ast
import functools
import importlib
import pathlib

import jax
import pytest

from contract.errors import ConfigError
from models.transformer import init_params
from objectives import OBJECTIVES, Mixture, denoisers_of
from tests.table import CASES, CONFIGS, PAIRS, objective_of, presets_of, reads_corpus, small_config
from train.experiment import make_experiment
from train.loop import train_and_evaluate

ROOT = pathlib.Path(__file__).parent.parent


def test_every_objective_has_a_config():
    used = {type(one.objective) for name, _ in CASES for one in denoisers_of(objective_of(name), name)}
    assert set(OBJECTIVES.values()) - {Mixture} == used


@pytest.mark.parametrize(("config", "preset"), [(name, preset) for name in CONFIGS for preset in presets_of(name)])
def test_every_config_stands_at_every_preset(config, preset):
    fields = importlib.import_module(f"configs.{config}").get_config(preset).to_dict()
    experiment = make_experiment(fields)
    shapes = jax.eval_shape(functools.partial(init_params, experiment.model), jax.random.key(0))
    params = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    variants = getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", ())
    assert params > (1e5 if preset == "tiny" or preset in variants else 9e6)
    for architecture in sorted(objective_of(f"{config}:{preset}").architectures):
        make_experiment(fields | {"model": fields["model"] | {"architecture": architecture}})


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_presets_name_those_there_are(config):
    with pytest.raises(ValueError, match="unknown preset 'huge': use 'tiny', "):
        importlib.import_module(f"configs.{config}").get_config("huge")


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_every_pair_trains_two_steps(name, architecture, corpus, tmp_path, capsys):
    fields = small_config(name, architecture, **reads_corpus(name, corpus))
    train_and_evaluate(make_experiment(fields), str(tmp_path / "run"))
    printed = capsys.readouterr().out
    assert "done: 2 steps" in printed and "eval at step 2" in printed
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "tensorboard",
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_undeclared_pairs_are_refused_at_the_door(name):
    for architecture in {"encoder_decoder", "decoder_only", "encoder_only"} - objective_of(name).architectures:
        with pytest.raises(ConfigError, match=rf"model.architecture='{architecture}' does not go with objective"):
            make_experiment(small_config(name, architecture))


FLOORS = {
    "contract": ({"contract"}, {"numpy"}),
    "objectives": ({"contract", "objectives.algebra", "objectives.rows", "objectives"}, {"numpy"}),
    "objectives/losses": ({"contract", "objectives.losses"}, {"numpy", "jax"}),
    "models": ({"models"}, {"numpy", "jax", "flax"}),
    "configs": ({"configs"}, {"ml_collections"}),
    "data": ({"data", "contract"}, None),
    "train": ({"train", "data", "models", "objectives", "contract"}, None),
    "train/learners": ({"train.learners", "models", "objectives", "contract"}, {"jax"}),
}
OURS = {*FLOORS, "benchmarks", "tests"}


@pytest.mark.parametrize("package", FLOORS)
def test_floors(package):
    """Each package imports only from the floors below it; objectives and models only from the libraries named."""
    ours, libraries = FLOORS[package]
    inner = [ROOT / other for other in FLOORS if other.startswith(f"{package}/")]
    for path in (ROOT / package).glob("**/*.py"):
        if any(folder in path.parents for folder in inner):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top in OURS:
                    assert any(name == o or name.startswith(o + ".") for o in ours), f"{path.name} imports {name}"
                elif libraries is not None:
                    import sys

                    assert top in libraries or top in sys.stdlib_module_names, f"{path.name} imports {name}"
