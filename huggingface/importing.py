"""The model of a Hugging Face folder, or of ELECTRA's two: its config, tokenizer and parameters."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from contract.errors import ConfigError, errors_naming
from contract.vocab import DecoderStart, Vocab, sentinel_name
from data.sources.config import CorpusConfig
from data.sources.filters import OFF
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from huggingface.config_json import check_options
from huggingface.families import family_of_folder_config
from huggingface.family import Family
from huggingface.folder import HuggingFaceFolder, open_folder
from learners.electra import SHARED, generator_config
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import init_params
from run.sharding import put_params

# The files of a tokenizer that can be read, in the order of preference.
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")

# Options of config.json about generation, which a model here does not hold; train.export writes them again.
KEPT_OPTIONS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)

# The folders of a run of ELECTRA.
PARTS = ("generator", "discriminator")
# Fields of config.model that only the generator, which predicts tokens, has a use for.
_HEAD_FIELDS = ("prediction_head", "tie_embeddings", "scale_logits")


@dataclasses.dataclass(frozen=True, eq=False)
class FolderModel:
    """The model in a Hugging Face folder. Made by `open_model`; tensors are read by `params` and `load` alone.

    Attributes:
      folder: the folder.
      family: the class of `transformers` that it is of.
      fields: of config.model, without the fields of the machine.
      model: computes in float32.
      tokenizer_file: its file in the folder.
      decoder_start_token: the value of data.decoder_start_token with which the decoder reads what it was trained on.
      objective_fields: of config.objective, for train.convert.
    """

    folder: HuggingFaceFolder
    family: Family
    fields: dict[str, Any]
    model: ModelConfig
    tokenizer_file: Path
    decoder_start_token: DecoderStart
    objective_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def where(self) -> str:
        """The flag or config field that names the folder."""
        return self.folder.where

    @property
    def parts(self) -> "dict[str, FolderModel]":
        """The models by the names of their folders: this one alone."""
        return {"": self}

    @property
    def origin(self) -> dict[str, Any]:
        """What train.export keeps of config.json: the class and KEPT_OPTIONS."""
        kept = {name: self.folder.config[name] for name in KEPT_OPTIONS if name in self.folder.config}
        return {"architecture": self.family.architecture, "options": kept}

    @property
    def notes(self) -> list[str]:
        """A line for each option of config.json that this project lacks and that changes no logits."""
        notes = self.family.notes(self.folder.config)
        given, start = _start_id(self.family, self.folder.config), self.tokenizer.vocab.decoder_start
        if self.model.has_decoder and given != start:
            notes.append(
                f"config.json has {self.family.start_option}={given}, which is neither pad, bos nor eos of the "
                f"tokenizer: texts start with {self.decoder_start_token}, whose id is {start}"
            )
        return notes

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer, with the special tokens that its model has."""
        return _own_tokenizer(self.tokenizer_file, self.decoder_start_token)

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

        This is what learners.electra.ElectraLearner.transformer does for ELECTRA's discriminator.
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
        folder = dataclasses.replace(folder, config=family.flat(folder.config))
        model = family.model(folder.config, folder.tensors, "float32")
        fields = family.model_fields(folder.config, folder.tensors)
        _check_ids(folder.config, family.defaults, model.vocab_size)
        check_options(folder.config, {**family.defaults, **family.option_aliases})
        file = _tokenizer_file(folder)
        start = _decoder_start_token(family, folder.config, _own_tokenizer(file, "pad").vocab)
    return FolderModel(folder, family, fields, model, file, start)


def _check_ids(hf_config: Mapping[str, Any], defaults: Mapping[str, Any], num_ids: int) -> None:
    """Raises ConfigError for a special id of config.json that the embedding table does not have.

    Many folders of small vocabularies have the default of their class, which is an id of the class's own vocabulary.
    """
    for name in KEPT_OPTIONS:
        value = hf_config.get(name)
        for id_ in value if isinstance(value, list) else [value]:
            is_id = type(id_) is int and (0 <= id_ < num_ids or id_ in defaults.values())
            if id_ is not None and not is_id:
                raise ConfigError(f"config.json: {name}={value!r} must be an id of the token table's {num_ids} rows")


@dataclasses.dataclass(frozen=True, eq=False)
class ElectraPair:
    """Both models of ELECTRA, with the attributes of FolderModel. Made by `open_pair`."""

    generator: FolderModel
    discriminator: FolderModel
    where: str
    fields: dict[str, Any]
    objective_fields: dict[str, Any]

    @property
    def parts(self) -> dict[str, FolderModel]:
        """The models by the names of their folders."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def tokenizer_file(self) -> Path:
        """The file of the tokenizer, which both models have."""
        return self.discriminator.tokenizer_file

    def params(self) -> Params:
        """Returns the parameters of learners.electra.ElectraLearner, float32 on the host.

        Raises ConfigError as FolderModel.params, and where the embeddings of the two models differ.
        """
        generator, discriminator = self.generator.params()["transformer"], self.discriminator.params()
        for module in SHARED:
            if module not in generator:
                continue
            for name, array in generator[module].items():
                if not np.array_equal(array, discriminator["transformer"][module][name]):
                    raise ConfigError(
                        f"{self.where}: {module} of generator and discriminator differ, and ELECTRA's models share it"
                    )
        own = {module: leaves for module, leaves in generator.items() if module not in SHARED}
        return {**discriminator, "generator": own}


def is_pair(path: str | os.PathLike) -> bool:
    """Returns whether `path` has the folders generator and discriminator, as train.export writes a run of ELECTRA."""
    return all(Path(os.path.expanduser(path), part, "config.json").exists() for part in PARTS)


def open_pair(path: str | os.PathLike, where: str) -> ElectraPair:
    """Returns the models in the folders generator and discriminator of `path`, without reading their tensors.

    Raises ConfigError as `open_model`, and where the generator is not a smaller copy of the discriminator, as
    objective.generator_size makes it.
    """
    generator, discriminator = (open_model(Path(path, part), f"{where}/{part}") for part in PARTS)
    classes = ("ElectraForMaskedLM", "ElectraForPreTraining")
    for part, name in zip((generator, discriminator), classes, strict=True):
        if part.family.architecture != name:
            raise ConfigError(f"{part.where} must be of the class {name}, not {part.family.architecture}")
    if generator.tokenizer.fingerprint != discriminator.tokenizer.fingerprint:
        raise ConfigError(f"{where}: generator and discriminator have different tokenizers")
    fields = discriminator.fields | {name: generator.fields[name] for name in _HEAD_FIELDS}
    size = generator.fields["d_model"] / discriminator.fields["d_model"]
    model = dataclasses.replace(discriminator.model, predicts_tokens=True, **{n: fields[n] for n in _HEAD_FIELDS})
    layers = generator.fields["num_layers"] / discriminator.fields["num_layers"]
    expected = generator_config(model, size, layers)
    for name in generator.fields:
        if getattr(generator.model, name) != getattr(expected, name):
            raise ConfigError(
                f"{where}: model.{name} of the generator is {getattr(generator.model, name)!r}, and next to this "
                f"discriminator it must be {getattr(expected, name)!r}: all of its widths are smaller by one factor"
            )
    objective = {"generator_size": size, "generator_layers": layers, "embedding_sharing": "shared"}
    return ElectraPair(generator, discriminator, where, fields, objective)


def vocabulary_fields(source: FolderModel | ElectraPair) -> dict[str, Any]:
    """Returns the fields of config.data that give the vocabulary of a folder; mode tokens are the config's."""
    fields: dict[str, Any] = {"tokenizer": str(source.tokenizer_file), "append_special_tokens": False}
    if own_sentinels := _num_own_sentinels(source.tokenizer_file):
        fields["num_sentinels"] = own_sentinels
    if isinstance(source, FolderModel):
        fields["decoder_start_token"] = source.decoder_start_token
    return fields


def _num_own_sentinels(file: Path) -> int:
    """Returns how many sentinels (<extra_id_0>, ...) the model of the tokenizer in `file` has."""
    names = {name.lstrip("\u2581") for _, name in make_tokenizer(_tokenizer_fields(file, 0, "pad")).vocab.own_names}
    return next(k for k in range(len(names) + 1) if sentinel_name(k) not in names)


def _own_tokenizer(file: Path, start: DecoderStart) -> Tokenizer:
    """Returns the tokenizer in `file` with the special tokens that its model has."""
    return make_tokenizer(_tokenizer_fields(file, _num_own_sentinels(file), start))


def _start_id(family: Family, hf_config: Mapping[str, Any]) -> Any:
    """Returns the id that config.json names as the decoder's first; None without a decoder."""
    return family.options(hf_config)[family.start_option] if family.start_option else None


def _decoder_start_token(family: Family, hf_config: Mapping[str, Any], vocab: Vocab) -> DecoderStart:
    """Returns the name of the token with the id that config.json names as the decoder's first.

    Where several tokens share the id, it is the one that does not change with data.append_special_tokens. The id of
    decoders alone is only a default of `generate`, and many folders have the class's default, which is not a token of
    their vocabulary: such decoders start with the tokenizer's BOS, or its EOS if it has no BOS.

    Raises ConfigError for another id of an encoder-decoder.
    """
    start, names = _start_id(family, hf_config), ("eos", "bos", "pad")
    if not family.start_option:
        return "pad"
    found = next((name for name in names if start is not None and getattr(vocab, name) == start), None)
    if found is None and family.start_option == "decoder_start_token_id":
        ids = ", ".join(f"{name} {getattr(vocab, name)}" for name in names if getattr(vocab, name) >= 0)
        raise ConfigError(
            f"config.json: {family.start_option}={start} is not supported, only the id of a special token that "
            f"data.decoder_start_token can name ({ids})"
        )
    return found or ("bos" if vocab.bos >= 0 else "eos")


def _tokenizer_fields(file: Path, num_sentinels: int, start: DecoderStart) -> CorpusConfig:
    """Returns config.data's fields of the tokenizer in `file` with the special tokens of its model alone."""
    of_text = {field.name: "" for field in dataclasses.fields(CorpusConfig)} | {"filters": OFF, "mode_tokens": ()}
    of_tokens = {"tokenizer": str(file), "num_sentinels": num_sentinels, "decoder_start_token": start}
    return CorpusConfig(**of_text | of_tokens | {"append_special_tokens": False})


def _tokenizer_file(folder: HuggingFaceFolder) -> Path:
    for name in TOKENIZER_FILES:
        if (folder.path / name).exists():
            return folder.path / name
    raise ConfigError(
        f"{folder.where} has no tokenizer ({', '.join(TOKENIZER_FILES)}): write one there with "
        "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER) of transformers"
    )
