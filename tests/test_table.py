"""Every supported pair of config and architecture trains, every preset is valid, and imports respect the floors."""

import ast
import functools
import graphlib
import importlib
import pathlib
import subprocess
import sys

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


# The packages and the libraries, besides the standard library, that the files of a package may import; None for any
# library. A package does not include the subpackages that have a line of their own.
FLOORS = {
    "contract": ({"contract"}, {"numpy"}),
    "objectives": ({"contract", "objectives"}, {"numpy"}),
    "objectives.losses": ({"contract", "objectives.losses"}, {"numpy", "jax"}),
    "models": ({"models"}, {"numpy", "jax", "flax"}),
    "configs": ({"configs"}, {"ml_collections"}),
    "data": ({"contract", "data"}, None),
    "train.learners": ({"contract", "objectives", "objectives.losses", "models", "train.learners"}, {"jax"}),
    "train": ({"contract", "objectives", "models", "data", "train.learners", "train"}, None),
    "cloze": ({"contract", "objectives", "models", "data", "train.learners", "train", "cloze"}, None),
}
PACKAGES = {*(package.partition(".")[0] for package in FLOORS), "benchmarks", "tests"}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (ROOT / package).glob("**/*.py")
}


def imported_names(path):
    """The absolute names that a file imports, anywhere in it: "package.module", or "package.module.name"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def package_of(name):
    """The line of FLOORS that a module belongs to, the innermost one; None for benchmarks and tests."""
    packages = [package for package in FLOORS if f"{name}.".startswith(f"{package}.")]
    return max(packages, key=len, default=None)


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_imports_only_the_floors_below_it_and_the_libraries_named(package):
    floors, libraries = FLOORS[package]
    files = {module: path for module, path in FILES.items() if package_of(module) == package}
    assert files
    for module, path in files.items():
        for name in imported_names(path):
            top = name.partition(".")[0]
            if top in PACKAGES:
                assert package_of(name) in floors, f"{module} imports {name}"
            elif libraries is not None:
                assert top in libraries or top in sys.stdlib_module_names, f"{module} imports {name}"


def test_no_imports_are_circular():
    """Including imports within functions and under TYPE_CHECKING."""

    def module_of(name):  # of "package.name" where that is a module, otherwise of package/__init__.py
        return name if name in FILES else name.rpartition(".")[0]

    imports = {module: {module_of(name) for name in imported_names(path)} for module, path in FILES.items()}
    imports = {module: names & FILES.keys() for module, names in imports.items()}
    assert {"objectives", "objectives.rows.lengths"} <= imports["train.experiment"]  # a package, and a module
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_objectives_import_no_jax():
    program = "import sys, objectives; print(*sorted({'jax', 'flax', 'optax'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
