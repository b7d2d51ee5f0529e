"""Encoders of `transformers`: BERT, RoBERTa, and ELECTRA's generator and discriminator."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family, Tensor, holds, linear, norm
from models.config import ModelConfig
from models.heads import Classifier, DiscriminatorHead
from models.parameters import Params, init_module

_NUM_CLASSES = 2  # labels of a sentence pair: 0, B follows A


class Encoder(Family):
    """A post-norm encoder with learned positions. BERT, RoBERTa and ELECTRA name the tensors of their layers alike.

    These classes have at least one token type. A model without token types is written with one type, whose embedding is
    0, and such a folder is read as a model without token types.
    """

    output_table: ClassVar[str]  # the tensor of the output table, a copy of that of the words if they are shared
    head_names: ClassVar[tuple[str, str, str, tuple[str, ...]]]  # dense, norm, bias of the logits and copies of it
    defaults: ClassVar = {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0, "tie_word_embeddings": True,
        "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
    }  # fmt: skip
    required: ClassVar = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
    fields: ClassVar = holds(
        architecture="encoder_only", positions="learned", norm="layer", norm_position="post", use_bias=True,
        mlp=("gelu", "exact_gelu", "relu", "silu"), embedding_norm=True, prediction_head="bert",
    )  # fmt: skip
    equal: ClassVar = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
        "num_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads", "d_ff": "intermediate_size",
        "norm_epsilon": "layer_norm_eps", "tie_embeddings": "tie_word_embeddings",
        "initializer_range": "initializer_range",
    }  # fmt: skip
    activation = ("hidden_act", ACTIVATIONS)
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    # Buffers, and a pooler and a sentence head, which folders of pre-trained encoders often have in addition.
    unused = (
        r"\w+\.embeddings\.(position_ids|token_type_ids)",
        r"\w+\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
    )

    def extra_positions(self, pad: int) -> int:
        """Returns the number of rows at the beginning of the table of positions that no position reads."""
        return 0

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        width, token_types = options["hidden_size"], options["type_vocab_size"]
        table = tensors.get(self._token_types)
        if token_types == 1 and table is not None and not np.any(table):
            token_types = 0
        embedding_size = options["embedding_size"] if "embedding_size" in self.defaults else width
        return {
            "embedding_size": 0 if embedding_size == width else embedding_size,
            "prediction_head": "bert",
            "num_token_types": token_types,
            "max_length": options["max_position_embeddings"] - self.extra_positions(options["pad_token_id"]),
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return {
            "max_position_embeddings": model.max_length + self.extra_positions(vocab.pad),
            "type_vocab_size": max(model.num_token_types, 1),
            "pad_token_id": vocab.pad,
        }

    @property
    def _token_types(self) -> str:
        return f"{self.prefix}embeddings.token_type_embeddings.weight"

    def zeros(self, model: ModelConfig) -> dict[str, tuple[int, ...]]:
        return {} if model.num_token_types else {self._token_types: (1, model.embedding_width)}

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        extra_rows = self.extra_positions(self.options(hf_config)["pad_token_id"])
        return self.encoder_rows(model, extra_rows) + self.head_rows(model)

    def encoder_rows(self, model: ModelConfig, extra_rows: int) -> list[Tensor]:
        """Returns the rows of the model without its heads."""
        words, positions = (f"{self.prefix}embeddings.{name}_embeddings.weight" for name in ("word", "position"))
        copies = (self.output_table,) if model.predicts_tokens and model.tie_embeddings else ()
        rows = [
            Tensor(words, ("transformer/token_embedder/embedding",), copies=copies),
            Tensor(positions, ("transformer/position_embedder/embedding",), extra_rows=extra_rows),
            *norm(f"{self.prefix}embeddings.LayerNorm", "transformer/embedding_norm", bias=True),
        ]
        if model.num_token_types:
            rows.append(Tensor(self._token_types, ("transformer/token_type_embedder/embedding",)))
        if model.embedding_width != model.d_model:
            rows += linear(f"{self.prefix}embeddings_project", "transformer/input_projection", bias=True)
        ours, theirs = "transformer/encoder/layers", f"{self.prefix}encoder.layer.{{}}"
        for name in ("query", "key", "value"):
            rows += linear(f"{theirs}.attention.self.{name}", f"{ours}/self_attention/{name}", bias=True)
        rows += linear(f"{theirs}.attention.output.dense", f"{ours}/self_attention/out", bias=True)
        rows += norm(f"{theirs}.attention.output.LayerNorm", f"{ours}/self_attention_norm", bias=True)
        rows += linear(f"{theirs}.intermediate.dense", f"{ours}/mlp/wi", bias=True)
        rows += linear(f"{theirs}.output.dense", f"{ours}/mlp/wo", bias=True)
        return rows + norm(f"{theirs}.output.LayerNorm", f"{ours}/mlp_norm", bias=True)

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        """Returns the rows of the heads: here of the head that predicts masked tokens."""
        dense, head_norm, bias, copies = self.head_names
        rows = linear(dense, "transformer/prediction_head/dense", bias=True)
        rows += norm(head_norm, "transformer/prediction_head/norm", bias=True)
        # The bias of an own output table is that of the table's module. transformers 5 does not share it, and reads no
        # other one.
        own = not model.tie_embeddings
        first, *others = (*copies, bias) if own else (bias, *copies)
        bias_path = ("transformer/prediction_head/bias",)
        rows.append(Tensor(first, bias_path, copies=tuple(others), is_repeated=own))
        if own:
            rows.append(Tensor(self.output_table, ("transformer/logits_dense/kernel",), transposed=True))
        return rows


class BertMaskedLM(Encoder):
    """BertForMaskedLM."""

    architecture = "BertForMaskedLM"
    model_type = "bert"
    prefix = "bert."
    output_table = "cls.predictions.decoder.weight"
    head_names = (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        ("cls.predictions.decoder.bias",),
    )


class BertPreTraining(BertMaskedLM):
    """BertForPreTraining: a masked language model with a classifier of sentence pairs."""

    architecture = "BertForPreTraining"
    heads = ("pair_classifier",)
    unused = (r"bert\.embeddings\.(position_ids|token_type_ids)",)

    def init_params(self, model: ModelConfig, key: Array) -> Params:
        transformer_key, classifier_key = jax.random.split(key)
        classifier = init_module(Classifier, model, _NUM_CLASSES, key=classifier_key)
        return super().init_params(model, transformer_key) | {"pair_classifier": classifier}

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        rows = super().head_rows(model) + linear("bert.pooler.dense", "pair_classifier/pooler/dense", bias=True)
        return rows + linear("cls.seq_relationship", "pair_classifier/classes_dense", bias=True)


class RobertaMaskedLM(Encoder):
    """RobertaForMaskedLM. Its head always has the exact GELU. Positions count from pad_token_id + 1, as in fairseq."""

    architecture = "RobertaForMaskedLM"
    model_type = "roberta"
    prefix = "roberta."
    defaults: ClassVar = Encoder.defaults | {"vocab_size": 50265, "pad_token_id": 1}
    # A model with the exact GELU and more token types is written as BertForMaskedLM, the more common of the two.
    fields: ClassVar = Encoder.fields | {"mlp": ("exact_gelu",), "num_token_types": (0, 1)}
    output_table = "lm_head.decoder.weight"
    head_names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", ("lm_head.decoder.bias",))

    def extra_positions(self, pad: int) -> int:
        return pad + 1

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        ends = {"bos_token_id": vocab.cls, "eos_token_id": vocab.sep}
        return super()._huggingface_config(model, vocab) | ends


class SequenceClassifier(Encoder):
    """An encoder without an output table, with the classifier of a run of configs/classification.py. Export alone.

    classes: the names of the classes, in the order of their ids.
    """

    heads = ("classifier",)
    classifier_names: ClassVar[tuple[str, str]]  # of the dense layer before tanh, and of the classes

    def __init__(self, classes: Sequence[str]):
        self.classes = tuple(classes)

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        pooler, classes = self.classifier_names
        rows = linear(pooler, "classifier/pooler/dense", bias=True)
        return rows + linear(classes, "classifier/classes_dense", bias=True)

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        names = {str(number): name for number, name in enumerate(self.classes)}
        ids = {name: number for number, name in enumerate(self.classes)}
        return super()._huggingface_config(model, vocab) | {"id2label": names, "label2id": ids}


class BertClassifier(SequenceClassifier, BertMaskedLM):
    """BertForSequenceClassification: the class from the state at [CLS]."""

    architecture = "BertForSequenceClassification"
    fields: ClassVar = BertMaskedLM.fields | {"prediction_head": ("bert", "linear"), "predicts_tokens": (False,)}
    classifier_names = ("bert.pooler.dense", "classifier")


class RobertaClassifier(SequenceClassifier, RobertaMaskedLM):
    """RobertaForSequenceClassification: the class from the state at the first token."""

    architecture = "RobertaForSequenceClassification"
    fields: ClassVar = RobertaMaskedLM.fields | {"prediction_head": ("bert", "linear"), "predicts_tokens": (False,)}
    classifier_names = ("classifier.dense", "classifier.out_proj")


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
        return super().init_params(model, transformer_key) | {
            "discriminator_head": init_module(DiscriminatorHead, model, key=head_key)
        }

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        rows = linear("discriminator_predictions.dense", "discriminator_head/dense", bias=True)
        return rows + linear("discriminator_predictions.dense_prediction", "discriminator_head/logits", bias=True)
