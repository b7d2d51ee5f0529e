"""Encoders of `transformers`: BERT, RoBERTa, ELECTRA's generator and discriminator, and ModernBERT."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family, Tensor, holds, linear, norm
from huggingface.layer_options import GLOBAL, LOCAL, global_every, layer_types, theta_of
from models.config import ModelConfig
from models.heads import Classifier, DiscriminatorHead

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
    heads: ClassVar = {"pair_classifier": functools.partial(Classifier, num_classes=_NUM_CLASSES)}
    unused = (r"bert\.embeddings\.(position_ids|token_type_ids)",)

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
    heads: ClassVar = {"discriminator_head": DiscriminatorHead}
    fields: ClassVar = Encoder.fields | {"prediction_head": ("bert", "linear"), "predicts_tokens": (False,)}

    def head_rows(self, model: ModelConfig) -> list[Tensor]:
        rows = linear("discriminator_predictions.dense", "discriminator_head/dense", bias=True)
        return rows + linear("discriminator_predictions.dense_prediction", "discriminator_head/logits", bias=True)


_GATED = {name: f"gated_{mlp}" for name, mlp in ACTIVATIONS.items() if mlp in ("gelu", "exact_gelu", "silu")}


class ModernBertMaskedLM(Family):
    """ModernBertForMaskedLM, of which Ettin's encoders and mmBERT are too: pre-norm, local layers between global ones.

    Folders of releases before 5 have global_attn_every_n_layers, global_rope_theta and local_rope_theta in place of
    layer_types and rope_parameters. Layer 0 has no norm before its attention.
    """

    architecture = "ModernBertForMaskedLM"
    model_type = "modernbert"
    prefix = "model."
    defaults: ClassVar = {
        "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192,
        "initializer_range": 0.02, "norm_eps": 1e-5, "norm_bias": False, "pad_token_id": 50283,
        "attention_bias": False, "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0,
        "mlp_bias": False, "decoder_bias": True, "classifier_bias": False, "classifier_activation": "gelu",
        "local_attention": 128, "layer_types": None, "global_attn_every_n_layers": 3, "rope_parameters": None,
        "rope_scaling": None, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "tie_word_embeddings": True,
        # Without effect on the logits.
        "bos_token_id": 50281, "eos_token_id": 50282, "cls_token_id": 50281, "sep_token_id": 50282,
        "initializer_cutoff_factor": 2.0, "classifier_pooling": "cls", "classifier_dropout": 0.0,
        "deterministic_flash_attn": False, "sparse_prediction": False, "sparse_pred_ignore_index": -100,
        "reference_compile": False, "repad_logits_with_grad": False, "layer_norm_eps": 1e-5,
        "position_embedding_type": "absolute",
    }  # fmt: skip
    required: ClassVar = {
        "norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
    }  # fmt: skip
    fields: ClassVar = holds(
        architecture="encoder_only", positions="rope", norm="layer", norm_position="pre", use_bias=False,
        mlp=("gated_exact_gelu", "gated_gelu", "gated_silu"), embedding_norm=True, prediction_head="bert",
        first_attention_norm=False, num_token_types=0,
    )  # fmt: skip
    equal = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
        "num_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads", "d_ff": "intermediate_size",
        "norm_epsilon": "norm_eps", "tie_embeddings": "tie_word_embeddings", "logits_bias": "decoder_bias",
        "initializer_range": "initializer_range", "max_length": "max_position_embeddings",
    }  # fmt: skip
    free = ("global_every", "local_distance", "local_rope_theta", "logits_bias")
    activation = ("hidden_activation", _GATED)
    dropouts = ("mlp_dropout", "attention_dropout", "embedding_dropout")
    unused = (r"model\.rotary_emb\.\w+", r"model\.layers\.\d+\.attn\.rotary_emb\.\w+")

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        options.require("classifier_activation", options["hidden_activation"])
        return {
            "global_every": global_every(options, options["global_attn_every_n_layers"], first_layer_global=True),
            "local_distance": options["local_attention"] // 2,
            "rope_theta": theta_of(options, GLOBAL, "global_rope_theta"),
            "local_rope_theta": theta_of(options, LOCAL, "local_rope_theta"),
            "initializer": "gpt2",
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        activation = next(name for name, mlp in _GATED.items() if mlp == model.mlp)
        thetas = {GLOBAL: model.rope_theta, LOCAL: model.local_rope_theta}
        return {
            "classifier_activation": activation,
            "local_attention": 2 * model.local_distance,
            "layer_types": layer_types(model),
            "rope_parameters": {name: {"rope_type": "default", "rope_theta": base} for name, base in thetas.items()},
            # Read by transformers 4.
            "global_attn_every_n_layers": model.global_every,
            "global_rope_theta": model.rope_theta,
            "local_rope_theta": model.local_rope_theta,
            "pad_token_id": vocab.pad,
            "bos_token_id": vocab.cls,
            "eos_token_id": vocab.sep,
            "cls_token_id": vocab.cls,
            "sep_token_id": vocab.sep,
        }

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("decoder.weight",) if model.tie_embeddings else ()
        words = "model.embeddings.tok_embeddings.weight"
        rows = [Tensor(words, ("transformer/token_embedder/embedding",), copies=copies)]
        rows += norm("model.embeddings.norm", "transformer/embedding_norm", bias=False)
        ours, theirs = "transformer/encoder/layers", "model.layers.{}"
        rows.append(Tensor(f"{theirs}.attn_norm.weight", (f"{ours}/self_attention_norm/scale",), first_layer=1))
        for name, paths in (
            ("attn.Wqkv", ("self_attention/query", "self_attention/key", "self_attention/value")),
            ("attn.Wo", ("self_attention/out",)),
            ("mlp.Wi", ("mlp/wi_0", "mlp/wi_1")),
            ("mlp.Wo", ("mlp/wo",)),
        ):
            kernels = tuple(f"{ours}/{path}/kernel" for path in paths)
            rows.append(Tensor(f"{theirs}.{name}.weight", kernels, transposed=True))
        rows += norm(f"{theirs}.mlp_norm", f"{ours}/mlp_norm", bias=False)
        rows += norm("model.final_norm", "transformer/encoder/final_norm", bias=False)
        rows += linear("head.dense", "transformer/prediction_head/dense", bias=False)
        rows += norm("head.norm", "transformer/prediction_head/norm", bias=False)
        if model.logits_bias:
            rows.append(Tensor("decoder.bias", ("transformer/prediction_head/bias",)))
        if not model.tie_embeddings:
            rows += linear("decoder", "transformer/logits_dense", bias=False)
        return rows
