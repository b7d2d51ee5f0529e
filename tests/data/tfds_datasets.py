"""Small TFDS datasets on this machine, of the layout of public ones, for the tests of data.source="tfds"."""

import importlib.resources
import sys

import pytest

tfds = pytest.importorskip("tensorflow_datasets")


def write_dataset(name, examples, folder, file_format="array_record", other_split=("", ()), config=None, **features):
    """Prepares `examples` as split `train` of the dataset name/config:1.0.0.

    other_split: the name and the examples of another split.
    """

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            splits = {"train": examples, other_split[0]: other_split[1]}
            return {split: self._generate_examples(of_split) for split, of_split in splits.items() if split}

        def _generate_examples(self, of_split):
            yield from enumerate(of_split)

    Builder.name = name
    with pytest.MonkeyPatch.context() as patch:
        # TFDS writes datasets through importlib_resources without declaring it; reading needs neither.
        patch.setitem(sys.modules, "importlib_resources", importlib.resources)
        Builder(data_dir=folder, file_format=file_format).download_and_prepare()


def read_from(folder):
    """Makes `folder` the one in which TFDS looks for datasets, besides TFDS_DATA_DIR."""
    tfds.core.utils.file_utils.clear_registered_data_dirs()
    tfds.core.add_data_dir(folder)


# Public datasets: configuration, held-out split and features, as in TFDS' catalog.
PUBLIC = {
    "c4": ("en", "validation", ["text", "timestamp", "url", "content-type", "content-length"]),
    "wikipedia": ("20230601.en", "", ["text", "title"]),
    "lm1b": (None, "test", ["text"]),
}
