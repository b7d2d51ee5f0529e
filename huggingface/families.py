"""FAMILIES: the classes of `transformers` that models of this project can come from and go to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from contract.errors import ConfigError
from huggingface.decoders import GPT2, GPTNeoX, Llama, Mistral, Qwen2, Qwen3
from huggingface.encoder_decoders import T5, Bart
from huggingface.encoders import (
    BertClassifier,
    BertMaskedLM,
    BertPreTraining,
    ElectraMaskedLM,
    ElectraPreTraining,
    ModernBertMaskedLM,
    RobertaClassifier,
    RobertaMaskedLM,
)
from huggingface.family import Family
from huggingface.gemma import Gemma, Gemma2, Gemma3, T5Gemma
from learners.classification import ClassificationLearner
from learners.electra import ElectraLearner
from learners.learner import Learner
from learners.sentence_pairs import SentencePairsLearner
from models.config import ModelConfig
from models.parameters import Params
from run.restore import without_output_head

# In the order of preference: a model that several classes can hold is written as the first one.
FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        T5(),
        Bart(),
        T5Gemma(),
        Llama(),
        Mistral(),
        Qwen2(),
        Qwen3(),
        Gemma(),
        Gemma2(),
        Gemma3(),
        GPT2(),
        GPTNeoX(),
        RobertaMaskedLM(),
        BertMaskedLM(),
        ModernBertMaskedLM(),
        ElectraMaskedLM(),
        ElectraPreTraining(),
        BertPreTraining(),
    )
}


class Folder(NamedTuple):
    """What a folder is written from."""

    family: Family
    model: ModelConfig
    params: Params  # of the family: {"transformer": ...} and the family's heads


def family_of_folder_config(hf_config: Mapping[str, Any]) -> Family:
    """Returns the family of a folder with this config.json.

    A config.json without "architectures" is that of the first family with its model_type. Raises ConfigError for any
    other class, with the known ones, and for a model_type of another class.
    """
    names, model_type = hf_config.get("architectures") or [], hf_config.get("model_type")
    if not isinstance(names, list):
        raise ConfigError(f"config.json: architectures={names!r} must be a list with the name of a class")
    if not names:
        names = [family.architecture for family in FAMILIES.values() if family.model_type == model_type][:1]
    for family in FAMILIES.values():
        own = vars(type(family)).get("aliases", ())  # another class's folders hold other tensors
        if len(names) == 1 and names[0] in (family.architecture, *own):
            if model_type not in (None, family.model_type):
                of_class = f"{family.model_type!r}, as of {names[0]}"
                raise ConfigError(f"config.json: model_type={model_type!r} is not {of_class}")
            return family
    given = f"architectures={names!r}" if names else f"model_type={model_type!r} without architectures"
    raise ConfigError(f"config.json: {given} is not one of the known models: {', '.join(FAMILIES)}")


def family_of_model(model: ModelConfig) -> Family:
    """Returns the first family that can hold `model`.

    Raises ConfigError that names the first field which the nearest family of the same model.architecture lacks.
    """
    mismatches = {
        family: family.mismatches(model)
        for family in FAMILIES.values()
        if model.architecture in family.fields["architecture"] and not family.heads
    }
    nearest = min(mismatches, key=lambda family: len(mismatches[family]))
    nearest.check_model(model)
    return nearest


def folders_of(learner: Learner, params: Params) -> dict[str, Folder]:
    """Returns what the folders of a run are written from, by name; the name is "" if the run has one folder.

    A run of ELECTRA has two, "discriminator" and "generator", each with whole tables, whatever they share in training.
    ElectraForMaskedLM can hold a generator with model.mlp='exact_gelu' only; for others `Family.huggingface_config` of
    the folder "generator" raises ConfigError.

    params: the learner's, or their shapes. Raises ConfigError for a learner without a language model, and as
    `family_of_model`.
    """
    if isinstance(learner, ElectraLearner):
        are_shapes = isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)
        merged = learner.discriminator_params
        transformer = jax.eval_shape(merged, params) if are_shapes else merged(params)
        discriminator = {"transformer": transformer, "discriminator_head": params["discriminator_head"]}
        generator, transformer = learner.language_model(params)
        family = _family("ElectraForPreTraining", learner.discriminator)
        return {
            "discriminator": Folder(family, learner.discriminator, discriminator),
            "generator": Folder(FAMILIES["ElectraForMaskedLM"], generator, {"transformer": transformer}),
        }
    if isinstance(learner, SentencePairsLearner):
        return {"": Folder(_family("BertForPreTraining", learner.model), learner.model, params)}
    if isinstance(learner, ClassificationLearner):
        return {"": _classifier_folder(learner, params)}
    language_model = learner.language_model(params)
    if language_model is None:
        raise ConfigError(f"{type(learner).__name__} trains no language model, which every class here is")
    model, transformer = language_model
    return {"": Folder(family_of_model(model), model, {"transformer": transformer})}


def _classifier_folder(learner: ClassificationLearner, params: Params) -> Folder:
    """Returns what the folder of a classifier is written from. Raises ConfigError if no class can hold it."""
    if learner.objective.pooling != "position" or learner.model.architecture != "encoder_only":
        raise ConfigError(
            f"objective.pooling={learner.objective.pooling!r} with model.architecture={learner.model.architecture!r}: "
            "classifiers of transformers that have this one's layers read the state at [CLS] of an encoder alone, and "
            "train.generate classifies with this run"
        )
    model, transformer = without_output_head(learner.model, params["transformer"])
    families = [family(learner.objective.classes) for family in (RobertaClassifier, BertClassifier)]
    nearest = min(families, key=lambda family: len(family.mismatches(model)))
    nearest.check_model(model)
    return Folder(nearest, model, {"transformer": transformer, "classifier": params["classifier"]})


def _family(architecture: str, model: ModelConfig) -> Family:
    """Returns the family. Raises ConfigError, which names the first field, if it cannot hold `model`."""
    FAMILIES[architecture].check_model(model)
    return FAMILIES[architecture]
