"""Every study of configs/studies: its configs are valid, its variants differ, and its models have the sizes it says."""

import functools
import itertools
import json
import math
import pathlib

import jax
import pytest
from absl import flags

from command.flags import config_fields, config_overrides, define_config, parse_flags, same_model_fields
from configs.studies.common import CLASSIFICATION_NOTE
from configs.studies.english import TASKS
from evaluation.cross_evaluate import scoring_experiment
from evaluation.probes import PROBES
from experiment.experiment import Experiment, make_experiment
from models.parameters import leaf_name
from studies.plan import find_confounders
from studies.study import Study, load_study

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).parents[2] / "configs" / "studies"
NAMES = {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("[!_]*.py")}
STUDIES = sorted(NAMES - {"base", "common", "english", "gym/common"})
# Studies whose variants have different numbers of parameters on purpose, as their notes say.
DIFFERENT_SIZES = {"architectures_t5", "complete_p", "mtp", "scaling"}
# Probes whose texts are files of their own: labelled texts, pairs, and instances of the gym.
OF_FILES = ("exact_match", "linear", "minimal_pairs")


def fields_of(config: str, overrides: dict) -> tuple[dict, dict]:
    """The config's fields and the overrides, through the command line."""
    argv = ["test", f"--config={config}", *(f"--config.{field}={value}" for field, value in overrides.items())]
    values = flags.FlagValues()
    define_config(values, argv=argv)
    parse_flags(values, "", argv)
    return config_fields(values), config_overrides(values)


def shared_fields(study: Study) -> dict:
    """The overrides of all runs. The tokenizer is that of bytes: the repository has no file of another one."""
    shared = (same_model_fields(study.same_model, "") if study.same_model else {}) | study.overrides
    return shared | ({"data.tokenizer": "byte"} if "data.tokenizer" in shared else {})


def experiment_of(study: Study, name: str) -> Experiment:
    variant = study.variants[name]
    fields, _ = fields_of(study.config_of(name), shared_fields(study) | variant.overrides)
    return make_experiment(fields)


def stages_of(study: Study, name: str) -> list[dict]:
    """The configs of a variant's runs that share the budget."""
    variant = study.variants[name]
    starts = [] if variant.start is None else [(variant.start.config, variant.start.overrides)]
    return [
        fields_of(config, shared_fields(study) | overrides)[0]
        for config, overrides in [*starts, (study.config_of(name), variant.overrides)]
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder to start commands in, with the configs and with small files in the formats of data.english."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "configs").symlink_to(FOLDER.parent)
    (folder / "english").mkdir()
    for task, classes in TASKS.items():
        lines = [json.dumps({"text": f"text {k}", "label": classes[k % len(classes)]}) for k in range(600)]
        for part in ("train", "test", "500"):
            (folder / "english" / f"{task}.{part}.jsonl").write_text("\n".join(lines))
    (folder / "english" / "blimp.jsonl").write_text(json.dumps({"good": "She sleeps.", "bad": "She sleep."}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module", params=STUDIES)
def study(request, folder) -> tuple[str, Study, dict[str, Experiment]]:
    study = load_study(str(FOLDER / f"{request.param}.py"))
    return request.param, study, {name: experiment_of(study, name) for name in study.variants}


def test_variants_differ_in_nothing_but_the_question(study):
    _, study, _ = study
    assert find_confounders(study, {name: stages_of(study, name) for name in study.variants}) == {}


def transformer_shapes(experiment: Experiment) -> dict[str, tuple[int, ...]]:
    """The arrays with which other runs start (train.init_from), by name."""
    transformer = jax.eval_shape(experiment.learner.transformer, experiment.params_shapes)
    leaves = jax.tree_util.tree_leaves_with_path(transformer)
    return {leaf_name(path): leaf.shape for path, leaf in leaves}


@functools.cache
def shapes_of_config(config: str) -> dict[str, tuple[int, ...]]:
    """`transformer_shapes` of a config, in JSON: runs of many variants and studies are fine-tuned with the same one."""
    return transformer_shapes(make_experiment(json.loads(config)))


def transformer_size(experiment: Experiment) -> int:
    """The number of parameters of stacks and embeddings, without an output head, which ELECTRA does not have."""
    shapes = transformer_shapes(experiment)
    return sum(math.prod(shape) for name, shape in shapes.items() if not name.startswith("prediction_head"))


def test_variants_differ_and_have_one_vocabulary_and_one_split(study):
    _, study, experiments = study
    starts = {name: variant.start for name, variant in study.variants.items()}
    for (first, a), (second, b) in itertools.combinations(experiments.items(), 2):
        assert (a.config, starts[first]) != (b.config, starts[second]), f"{first} and {second} are equal"
        assert (a.data.tokenizer, a.data.num_sentinels) == (b.data.tokenizer, b.data.num_sentinels), (first, second)
        assert (a.data.mode_tokens, a.data.split) == (b.data.mode_tokens, b.data.split), (first, second)
        assert a.data.source == b.data.source


def test_variants_have_equal_transformers(study):
    name, _, experiments = study
    sizes = {variant: transformer_size(experiment) for variant, experiment in experiments.items()}
    assert (len(set(sizes.values())) > 1) == (name in DIFFERENT_SIZES), sizes


def test_a_run_has_room_for_its_warm_up(study):
    _, study, experiments = study
    for name, experiment in experiments.items():
        specs, train, start = experiment.window_specs, experiment.train, study.variants[name].start
        windows = sum(spec.weight * spec.raw_length for spec in specs) / sum(spec.weight for spec in specs)
        per_step = windows * train.batch_size * experiment.data.examples_per_row
        if study.budget.unit == "flops":
            per_step = experiment.train_step_flops
        steps = study.budget.amount * (1 - start.share if start else 1) / per_step
        assert experiment.optimizer.warmup_steps <= steps / 4, name
        assert steps > 100, name


def test_notes_say_how_coarse_accuracy_is(study):
    _, study, _ = study
    tuned = [fields for fields in study.measures.values() if fields["kind"] == "fine_tuning"]
    has_accuracy = any("data.path" not in fields["overrides"] for fields in tuned)  # of the embedded corpus
    assert study.notes.endswith(CLASSIFICATION_NOTE) == has_accuracy
    assert "  " not in study.notes


def test_measures_of_text_are_among_tokens_of_text(study):
    _, study, _ = study
    for name, fields in study.measures.items():
        is_of_text = fields["kind"] == "probe" and fields["probe"] not in OF_FILES
        assert not is_of_text or fields["fields"]["text_only"], name


def test_measures_fit_their_variants(study):
    _, study, experiments = study
    for measure, fields in study.measures.items():
        for name in fields.get("only") or study.variants:
            if fields["kind"] != "throughput":
                check_measure(fields, experiments[name], f"{measure} of {name}")


def check_measure(fields: dict, experiment: Experiment, where: str) -> None:
    """Raises ConfigError or AssertionError for a measure that the run cannot have."""
    if fields["kind"] == "fine_tuning":
        config, _ = fields_of(fields["config"], fields["overrides"])
        config["model"] = experiment.config["model"]
        for field in ("tokenizer", "num_sentinels", "mode_tokens"):
            config["data"][field] = experiment.config["data"][field]
        fine_tuned, run = shapes_of_config(json.dumps(config)), transformer_shapes(experiment)
        assert {name: fine_tuned.get(name) for name in run} == run, where
        return
    if fields["config"]:
        config, overrides = fields_of(fields["config"], fields["overrides"])
        experiment = scoring_experiment(experiment, config, name=fields["config"], overrides=overrides)
    if fields["kind"] == "probe":
        probe = PROBES[fields["probe"]](**fields["fields"])
        probe.check(experiment)
        assert not probe.sides or probe.denoisers(experiment), f"{where}: the run has no such layout"
        is_masked = "masked_" in fields["metric"]
        assert is_masked == (
            fields["probe"] == "infilling" and "per_byte" in fields["metric"] and not experiment.model.has_decoder
        ), where
