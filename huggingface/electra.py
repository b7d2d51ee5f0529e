"""ELECTRA: ElectraForPreTraining, the discriminator, and ElectraForMaskedLM, the generator, of `transformers`."""

from typing import Any, ClassVar

import jax
from jax import Array

from contract.vocab import Vocab
from huggingface.bert import Encoder
from huggingface.tensors import Tensor, linear
from models.config import ModelConfig
from models.heads import init_head
from models.parameters import Params


class Electra(Encoder):
    """An encoder whose embeddings may be narrower than its layers."""

    model_type = "electra"
    prefix = "electra."
    defaults: ClassVar = Encoder.defaults | {
        "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
    }  # fmt: skip
    equal: ClassVar = {name: value for name, value in Encoder.equal.items() if name != "embedding_width"}

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return super()._huggingface_config(model, vocab) | {"embedding_size": model.embedding_width}


class ElectraMaskedLM(Electra):
    """ElectraForMaskedLM. Its head always has the exact GELU."""

    architecture = "ElectraForMaskedLM"
    fields: ClassVar = Encoder.fields | {"mlp": ("exact_gelu",)}
    output_table = "generator_lm_head.weight"
    head_names = ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias", ())


class ElectraPreTraining(Electra):
    """ElectraForPreTraining: a Transformer without an output table, and the head of the discriminator."""

    architecture = "ElectraForPreTraining"
    heads = ("discriminator_head",)
    fields: ClassVar = Encoder.fields | {"prediction_head": ("bert", "linear"), "predicts_tokens": (False,)}

    def init_params(self, model: ModelConfig, key: Array) -> Params:
        transformer_key, head_key = jax.random.split(key)
        return super().init_params(model, transformer_key) | {"discriminator_head": init_head(model, head_key)}

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        rows = linear("discriminator_predictions.dense", "discriminator_head/dense", bias=True)
        return rows + linear("discriminator_predictions.dense_prediction", "discriminator_head/logits", bias=True)
