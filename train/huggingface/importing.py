"""The model of a Hugging Face folder: its config, tokenizer and parameters in this project's terms."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from contract.errors import ConfigError
from contract.vocab import sentinel_name
from data.config import CorpusConfig
from data.tokenizer import Tokenizer, make_tokenizer
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import init_params
from train.huggingface.families import family_of_folder_config
from train.huggingface.family import Family
from train.huggingface.folder import HuggingFaceFolder, open_folder
from train.huggingface.known_options import check_options
from train.sharding import put_params

# The files of a tokenizer that can be read, in the order of preference.
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")

# Options of config.json about generation, which a model here does not hold; train.export writes them again.
KEPT_OPTIONS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)


@dataclasses.dataclass(frozen=True, eq=False)
class FolderModel:
    """The model in a Hugging Face folder. Made by `open_model`; tensors are read by `params` and `load` alone.

    Attributes:
      folder: the folder.
      family: the class of `transformers` that it is of.
      fields: of config.model, without the fields of the machine.
      model: computes in float32.
      tokenizer_file: its file in the folder.
      objective_fields: of config.objective, for train.convert.
    """

    folder: HuggingFaceFolder
    family: Family
    fields: dict[str, Any]
    model: ModelConfig
    tokenizer_file: Path
    objective_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def where(self) -> str:
        """The flag or config field that names the folder."""
        return self.folder.where

    @property
    def architectures(self) -> list[str]:
        """The class of `transformers`."""
        return [self.family.architecture]

    @property
    def origins(self) -> dict[str, dict[str, Any]]:
        """What train.export keeps of config.json: {"": the class and KEPT_OPTIONS}."""
        kept = {name: self.folder.config[name] for name in KEPT_OPTIONS if name in self.folder.config}
        return {"": {"architecture": self.family.architecture, "options": kept}}

    @property
    def notes(self) -> list[str]:
        """A line for each option of config.json that this project lacks and that changes no logits."""
        notes = self.family.notes(self.folder.config)
        bos, start = self.folder.config.get("bos_token_id"), self.tokenizer.vocab.pad
        if self.model.architecture == "decoder_only" and bos not in (None, start):
            notes.append(f"config.json has bos_token_id={bos}: decoders here start with pad, whose id is {start}")
        return notes

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer, with the special tokens that its model has."""
        return make_tokenizer(_tokenizer_fields(self.tokenizer_file, num_own_sentinels(self.tokenizer_file)))

    @property
    def shapes(self) -> Params:
        """The shapes of the arrays that `load` returns."""
        return jax.eval_shape(lambda: init_params(self._with_head, jax.random.key(0)))

    def params(self) -> Params:
        """Returns the parameters, float32 on the host: {"transformer": ...} and the heads of the class.

        Raises ConfigError that names missing and surplus tensors, and tensors of other shapes.
        """
        with errors_naming(self.where):
            return self.family.to_params(self.folder.tensors, self.model, self.folder.config)

    def load(self, mesh: Mesh) -> Params:
        """Returns the Transformer on `mesh`. A class without an output head gets a newly initialized one.

        This is what train.learners.electra.ElectraLearner.transformer does for ELECTRA's discriminator.
        """
        transformer = self.params()["transformer"]
        if not self.model.predicts_tokens:
            transformer = jax.device_get(init_params(self._with_head, jax.random.key(0))) | transformer
        return put_params(transformer, mesh)

    @property
    def _with_head(self) -> ModelConfig:
        return dataclasses.replace(self.model, predicts_tokens=True)


def open_model(path: str | os.PathLike, where: str) -> FolderModel:
    """Returns the model in the Hugging Face folder `path`, without reading its tensors.

    where: the flag or config field that names the folder, for messages.

    Raises ConfigError, one line, for a folder that cannot be read (open_folder), an unknown architecture, an option
    that this project's models lack, and a folder without a tokenizer that can be read.
    """
    folder = open_folder(path, where)
    with errors_naming(where):
        family = family_of_folder_config(folder.config)
        model = family.model(folder.config, folder.tensors, "float32")
        fields = family.model_fields(folder.config, folder.tensors)
        check_options(folder.config, family.defaults)
    return FolderModel(folder, family, fields, model, _tokenizer_file(folder))


def num_own_sentinels(file: Path) -> int:
    """Returns how many sentinels (<extra_id_0>, ...) the model of the tokenizer in `file` has."""
    names = {name.lstrip("\u2581") for _, name in make_tokenizer(_tokenizer_fields(file, 0)).vocab.own_names}
    return next(k for k in range(len(names) + 1) if sentinel_name(k) not in names)


def _tokenizer_fields(file: Path, num_sentinels: int) -> CorpusConfig:
    """Returns config.data's fields of the tokenizer in `file` with the special tokens of its model alone."""
    return CorpusConfig(
        source="",
        path="",
        heldout_path="",
        document_per="file",
        on_unreadable="error",
        tokenizer=str(file),
        num_sentinels=num_sentinels,
        mode_tokens=(),
        append_special_tokens=False,
        cache_dir="",
    )


@contextlib.contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Within this context, the message of a ConfigError begins with `where`."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from error


def _tokenizer_file(folder: HuggingFaceFolder) -> Path:
    for name in TOKENIZER_FILES:
        if (folder.path / name).exists():
            return folder.path / name
    raise ConfigError(
        f"{folder.where} has no tokenizer.json: write it there with AutoTokenizer.from_pretrained(MODEL)"
        ".save_pretrained(FOLDER) of transformers"
    )
