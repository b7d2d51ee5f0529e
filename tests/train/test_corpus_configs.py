"""The configs of configs/corpora: the data fields that they set, their presets, and two steps of training on each."""

import importlib
import json

import pytest
import tensorflow_datasets as tfds

from configs import corpora
from tests.data.tfds_datasets import PUBLIC, read_from, write_dataset
from tests.in_process import run_here
from tests.table import CONFIGS
from train import main

pytestmark = pytest.mark.slow

# What a preset of configs/corpora changes in the config that it names.
DATA = {
    "c4": dict(source="tfds", path="c4/en", heldout_path="validation"),
    "wikipedia": dict(source="tfds", path="wikipedia/20230601.en", heldout_fraction=0.01),
    "lm1b": dict(source="tfds", path="lm1b", heldout_path="test"),
}
SMALL = {
    "data.inputs_length": 32,
    "data.targets_length": 32,
    "train.steps": 2,
    "optimizer.warmup_steps": 1,
    "train.batch_size": 2,
}


def test_every_config_of_plain_text_has_a_preset():
    assert set(corpora.EXPERIMENTS) == set(CONFIGS) - {"classification", "sft", "teacherless"}, (
        "those read labels and responses"
    )


@pytest.mark.parametrize("preset", ["ul2", "ul2,base,packed", "mlm,whole_word", "clm,7b"])
@pytest.mark.parametrize("corpus", DATA)
def test_a_preset_changes_the_corpus_of_another_config_alone(corpus, preset):
    name, _, own_preset = preset.partition(",")
    expected = importlib.import_module(f"configs.{name}").get_config(own_preset or "tiny")
    expected.data.update(DATA[corpus])
    assert importlib.import_module(f"configs.corpora.{corpus}").get_config(preset).to_dict() == expected.to_dict()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder of TFDS with a dataset of the layout of each corpus. The texts of a split name it."""
    folder = tmp_path_factory.mktemp("public")
    text = tfds.features.Text()
    for name, (config, split, features) in PUBLIC.items():
        heldout, train = (
            [{feature: f"{feature} {i} of {side} in {name}. " * 6 for feature in features} for i in range(60)]
            for side in ("heldout", "train")
        )
        other_split = (split, heldout) if split else ("", ())
        write_dataset(name, train, folder, other_split=other_split, config=config, **dict.fromkeys(features, text))
    return folder


@pytest.mark.parametrize("corpus", DATA)
def test_each_corpus_trains_two_steps_through_the_command_line(corpus, prepared, tmp_path):
    read_from(prepared)
    fields = SMALL | {"data.cache_dir": tmp_path / "cache"}
    if corpus == "wikipedia":
        fields["data.heldout_fraction"] = 0.1  # 60 articles have no hundredth
    arguments = [f"--config.{name}={value}" for name, value in fields.items()]
    command = f"--config=configs/corpora/{corpus}.py", f"--workdir={tmp_path / 'run'}", *arguments
    assert "done: 2 steps" in run_here(main.main, *command)[1]
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["split"] == "eval" and line["loss"] > 0 for line in metrics)
