"""ELECTRA from two Hugging Face folders, generator and discriminator, which share their embeddings."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from huggingface.importing import FolderModel, open_model
from learners.electra import SHARED, generator_config
from models.config import ModelConfig
from models.parameters import Params

PARTS = ("generator", "discriminator")
# Fields of config.model that only the generator, which predicts tokens, has a use for.
_OF_THE_HEAD = ("prediction_head", "tie_embeddings", "scale_logits")


@dataclasses.dataclass(frozen=True, eq=False)
class ElectraPair:
    """Both models of ELECTRA. Made by `open_pair`. The attributes are those of FolderModel."""

    generator: FolderModel
    discriminator: FolderModel
    where: str
    fields: dict[str, Any]
    objective_fields: dict[str, Any]

    @property
    def architectures(self) -> list[str]:
        """The classes of `transformers`."""
        return [*self.generator.architectures, *self.discriminator.architectures]

    @property
    def origins(self) -> dict[str, dict[str, Any]]:
        """What train.export keeps of each config.json: part -> the class and its options."""
        return {part: getattr(self, part).origins[""] for part in PARTS}

    @property
    def notes(self) -> list[str]:
        """A line for each option of a config.json that this project lacks and that changes no logits."""
        return [*self.generator.notes, *self.discriminator.notes]

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
    return all(Path(path, part, "config.json").exists() for part in PARTS)


def open_pair(path: str | os.PathLike, where: str) -> ElectraPair:
    """Returns the models in the folders generator and discriminator of `path`, without reading their tensors.

    Raises ConfigError as `open_model`, and where the generator is not a smaller copy of the discriminator, as
    objective.generator_size makes it.
    """
    generator, discriminator = (open_model(Path(path, part), f"{where}/{part}") for part in PARTS)
    classes = ("ElectraForMaskedLM", "ElectraForPreTraining")
    for model, expected in zip((generator, discriminator), classes, strict=True):
        if model.family.architecture != expected:
            raise ConfigError(f"{model.where} must be of the class {expected}, not {model.family.architecture}")
    if generator.tokenizer.fingerprint != discriminator.tokenizer.fingerprint:
        raise ConfigError(f"{where}: generator and discriminator have different tokenizers")
    fields = discriminator.fields | {name: generator.fields[name] for name in _OF_THE_HEAD}
    size = generator.fields["d_model"] / discriminator.fields["d_model"]
    model = dataclasses.replace(discriminator.model, predicts_tokens=True, **{n: fields[n] for n in _OF_THE_HEAD})
    _check_generator(generator, generator_config(model, size), where)
    return ElectraPair(generator, discriminator, where, fields, {"generator_size": size})


def _check_generator(generator: FolderModel, expected: ModelConfig, where: str) -> None:
    """Raises ConfigError unless the generator in the folder has the fields that a run of ELECTRA gives it."""
    for name, value in generator.fields.items():
        if getattr(expected, name) != value and getattr(generator.model, name) != getattr(expected, name):
            raise ConfigError(
                f"{where}: model.{name} of the generator is {value!r}, and next to this discriminator it must be "
                f"{getattr(expected, name)!r}: both have the same depth, and all widths differ by one factor"
            )
