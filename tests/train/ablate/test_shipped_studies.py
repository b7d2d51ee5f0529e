"""Every study of configs/studies: its configs are valid, its variants differ, and its models have the sizes it says."""

import itertools
import pathlib

import jax
import pytest
from absl import flags

from train.ablate.study import Study, load_study
from train.command import config_fields, config_overrides, define_config, parse_flags
from train.experiment import Experiment, make_experiment
from train.probes import PROBES
from train.scoring import scoring_experiment

FOLDER = pathlib.Path(__file__).parents[3] / "configs" / "studies"
STUDIES = sorted({path.stem for path in FOLDER.glob("[!_]*.py")} - {"base", "common"})
# Studies whose variants have different numbers of parameters on purpose, as their notes say.
DIFFERENT_SIZES: set[str] = set()


def fields_of(config: str, overrides: dict) -> tuple[dict, dict]:
    """The config's fields and the overrides, through the command line."""
    argv = ["test", f"--config={config}", *(f"--config.{field}={value}" for field, value in overrides.items())]
    values = flags.FlagValues()
    define_config(values, argv=argv)
    parse_flags(values, "", argv)
    return config_fields(values), config_overrides(values)


def experiment_of(study: Study, name: str) -> Experiment:
    variant = study.variants[name]
    fields, _ = fields_of(study.config_of(name), study.overrides | variant.overrides)
    return make_experiment(fields)


@pytest.fixture(scope="module", params=STUDIES)
def study(request, tmp_path_factory) -> tuple[str, Study, dict[str, Experiment]]:
    study = load_study(str(FOLDER / f"{request.param}.py"))
    return request.param, study, {name: experiment_of(study, name) for name in study.variants}


def transformer_sizes(experiment: Experiment) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(experiment.params_shapes["transformer"]))


def test_variants_differ_and_have_one_vocabulary_and_one_split(study):
    _, _, experiments = study
    for (first, a), (second, b) in itertools.combinations(experiments.items(), 2):
        assert a.config != b.config, f"{first} and {second} are equal"
        assert (a.data.tokenizer, a.data.num_sentinels) == (b.data.tokenizer, b.data.num_sentinels), (first, second)
        assert (a.data.mode_tokens, a.data.split) == (b.data.mode_tokens, b.data.split), (first, second)
        assert a.data.source == b.data.source


def test_variants_have_equal_transformers(study):
    name, _, experiments = study
    sizes = {variant: transformer_sizes(experiment) for variant, experiment in experiments.items()}
    assert (len(set(sizes.values())) > 1) == (name in DIFFERENT_SIZES), sizes


def test_a_run_has_room_for_its_warm_up_and_five_evaluations(study):
    _, study, experiments = study
    assert study.budget.unit == "raw_tokens"
    for name, experiment in experiments.items():
        specs, train = experiment.window_specs, experiment.train
        windows = sum(spec.weight * spec.raw_length for spec in specs) / sum(spec.weight for spec in specs)
        steps = study.budget.amount / (windows * train.batch_size * experiment.data.examples_per_row)
        assert experiment.optimizer.warmup_steps <= steps / 4, name
        assert 2 <= steps / train.eval_every <= 10, (name, steps)


def test_measures_fit_their_variants(study):
    _, study, experiments = study
    for measure, fields in study.measures.items():
        for name in fields.get("only") or study.variants:
            if fields["kind"] not in ("samples", "throughput", "tokens_to_loss"):
                check_measure(fields, experiments[name], f"{measure} of {name}")


def check_measure(fields: dict, experiment: Experiment, where: str) -> None:
    """Raises ConfigError or AssertionError for a measure that the run cannot have."""
    if fields["kind"] == "fine_tuning":
        config, _ = fields_of(fields["config"], fields["overrides"])
        config["model"] = experiment.config["model"]
        for field in ("tokenizer", "num_sentinels", "mode_tokens"):
            config["data"][field] = experiment.config["data"][field]
        fine_tuned = make_experiment(config).params_shapes["transformer"]
        assert jax.tree.all(
            jax.tree.map(lambda a, b: a.shape == b.shape, fine_tuned, experiment.params_shapes["transformer"])
        ), where
        return
    if fields["config"]:
        config, overrides = fields_of(fields["config"], fields["overrides"])
        experiment = scoring_experiment(experiment, config, name=fields["config"], overrides=overrides)
    if fields["kind"] == "probe":
        probe = PROBES[fields["probe"]](**fields["fields"])
        probe.check(experiment)
        assert probe.denoisers(experiment), f"{where}: the run has no such layout"
        is_masked = "masked_" in fields["metric"]
        assert is_masked == (
            fields["probe"] == "infilling" and "per_byte" in fields["metric"] and not experiment.model.has_decoder
        ), where
