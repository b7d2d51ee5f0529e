"""Encoder-decoders of `transformers`: T5 (v1.0, v1.1, UL2, Flan-T5, T5-Efficient) and BART."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family, Tensor, holds, linear, norm
from models.config import ModelConfig
from models.parameters import Params

# feed_forward_proj -> model.mlp. T5's "gated-gelu" is the tanh formula: transformers replaces it by "gelu_new".
_MLP = {
    "relu": "relu",
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "silu": "silu",
    "gated-gelu": "gated_gelu",
    "gated-gelu_new": "gated_gelu",
    "gated-silu": "gated_silu",
}


class T5(Family):
    """T5ForConditionalGeneration.

    The output table is the input table if there is no lm_head.weight, or if the two are equal. Logits are scaled if
    tie_word_embeddings is not false; folders written by transformers 5 say so in an option of its own,
    `scale_decoder_outputs`, and always have tie_word_embeddings=true.
    """

    architecture = "T5ForConditionalGeneration"
    aliases = ("T5WithLMHeadModel",)
    model_type = "t5"
    defaults: ClassVar = {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
        "num_heads": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "tie_word_embeddings": True,
        "scale_decoder_outputs": None, "is_encoder_decoder": True, "decoder_start_token_id": 0,
        "dense_act_fn": None, "is_gated_act": None,
    }  # fmt: skip
    option_aliases: ClassVar = {
        "hidden_size": "d_model", "head_dim": "d_kv", "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    }  # fmt: skip
    required: ClassVar = {"is_encoder_decoder": True}
    fields: ClassVar = holds(
        architecture="encoder_decoder", positions="relative", norm="rms", norm_position="pre", use_bias=False,
        mlp=tuple(dict.fromkeys(_MLP.values())), scale_attention=False, scale_logits=(False, True),
        share_stacks=False, num_token_types=0,
    )  # fmt: skip
    equal: ClassVar = {"num_kv_heads": lambda model: model.num_heads, "embedding_width": lambda model: model.d_model}
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "num_layers", "d_model": "d_model", "num_heads": "num_heads",
        "num_kv_heads": "num_heads", "head_dim": "d_kv", "d_ff": "d_ff", "norm_epsilon": "layer_norm_epsilon",
        "relative_num_buckets": "relative_attention_num_buckets",
        "relative_max_distance": "relative_attention_max_distance",
    }  # fmt: skip
    activation = ("feed_forward_proj", _MLP)
    start_option = "decoder_start_token_id"
    dropouts = ("dropout_rate",)
    free = ("num_decoder_layers",)
    # Cross-attention of old folders has a table of relative positions that no release of transformers reads.
    unused = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        given = options["feed_forward_proj"]
        activation = "gelu_new" if given == "gated-gelu" else given.rpartition("-")[2]
        for name, expected in (("dense_act_fn", activation), ("is_gated_act", given.startswith("gated-"))):
            if options[name] not in (None, expected):
                raise ConfigError(f"config.json: {name}={options[name]!r} contradicts feed_forward_proj={given!r}")
        scaled, tied = options["tie_word_embeddings"], _is_tied(tensors)
        if options["scale_decoder_outputs"] is not None:
            scaled = options["scale_decoder_outputs"]
        elif not scaled and "lm_head.weight" not in tensors:
            raise ConfigError("tensor lm_head.weight is missing: config.json has tie_word_embeddings=false")
        if scaled and not tied:
            raise ConfigError(
                "tensors shared.weight and lm_head.weight must be equal: config.json scales the logits, which the "
                "models of this project do with a shared table only"
            )
        return {
            "num_decoder_layers": _decoder_layers(options["num_layers"], options["num_decoder_layers"]),
            "tie_embeddings": tied,
            "scale_logits": scaled,
            "initializer": "t5",
            "initializer_range": 0.02,
            "dropout_broadcast_positions": True,
            "max_length": 0,
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return {
            "num_decoder_layers": model.of_decoder.num_layers,
            "tie_word_embeddings": model.scale_logits,
            "pad_token_id": vocab.pad,
            "eos_token_id": vocab.eos,
            "decoder_start_token_id": vocab.decoder_start,
        }

    def to_tensors(self, params: Params, model: ModelConfig, hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See Family. A shared table without scaled logits is there twice: transformers 4 cannot share such a table."""
        tensors = super().to_tensors(params, model, hf_config)
        if model.tie_embeddings and not model.scale_logits:
            tensors["lm_head.weight"] = tensors["shared.weight"].copy()
        return tensors

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        if model.tie_embeddings:
            copies += ("lm_head.weight",)
        rows = [Tensor("shared.weight", ("transformer/token_embedder/embedding",), copies=copies)]
        if not model.tie_embeddings:
            rows += linear("lm_head", "transformer/logits_dense", bias=False)
        return rows + _stack(model, "encoder") + _stack(model, "decoder")


def _stack(model: ModelConfig, stack: str) -> list[Tensor]:
    """Returns the rows of the encoder or the decoder."""
    ours, theirs = f"transformer/{stack}", f"{stack}.block.{{}}.layer"
    blocks = ["self_attention", "cross_attention", "mlp"] if stack == "decoder" else ["self_attention", "mlp"]
    rows = []
    for k, block in enumerate(blocks):
        rows += norm(f"{theirs}.{k}.layer_norm", f"{ours}/layers/{block}_norm", bias=False)
        if block == "mlp":
            for name in ("wi_0", "wi_1", "wo") if model.mlp.startswith("gated_") else ("wi", "wo"):
                rows += linear(f"{theirs}.{k}.DenseReluDense.{name}", f"{ours}/layers/mlp/{name}", bias=False)
            continue
        module = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}[block]
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
            rows += linear(f"{theirs}.{k}.{module}.{letter}", f"{ours}/layers/{block}/{name}", bias=False)
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rows.append(Tensor(bias, (f"{ours}/relative_position_bias/embedding",), transposed=True))
    return rows + norm(f"{stack}.final_layer_norm", f"{ours}/final_norm", bias=False)


def _decoder_layers(encoder: int, decoder: int | None) -> int:
    """Returns model.num_decoder_layers of stacks of these depths. decoder: None: as `encoder`."""
    return 0 if decoder in (None, encoder) else decoder


def _is_tied(tensors: Mapping[str, np.ndarray]) -> bool:
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    table = next((tensors[name] for name in names if name in tensors), None)
    head = tensors.get("lm_head.weight")
    return head is None or table is None or np.array_equal(head, table)


# Rows of each table of positions that no position reads, as in fairseq; not in the option's number.
_EXTRA_POSITIONS = 2
_SAME_IN_DECODER = ("attention_heads", "ffn_dim")


class Bart(Family):
    """BartForConditionalGeneration.

    Positions count from 2. final_logits_bias is 0 in all pre-trained models, and must be 0 here.
    """

    architecture = "BartForConditionalGeneration"
    aliases = ("BartModel",)
    model_type = "bart"
    prefix = "model."
    defaults: ClassVar = {
        "vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "activation_function": "gelu", "d_model": 1024,
        "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "init_std": 0.02,
        "scale_embedding": False, "is_encoder_decoder": True, "tie_word_embeddings": True,
        "decoder_start_token_id": 2,
    }  # fmt: skip
    option_aliases: ClassVar = {
        "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }  # fmt: skip
    required: ClassVar = {"scale_embedding": False, "is_encoder_decoder": True, "tie_word_embeddings": True}
    fields: ClassVar = holds(
        architecture="encoder_decoder", positions="learned", norm="layer", norm_position="post", norm_epsilon=1e-5,
        mlp=("exact_gelu", "gelu", "relu", "silu"), use_bias=True, embedding_norm=True, tie_embeddings=True,
        share_stacks=False, num_token_types=0,
    )  # fmt: skip
    equal = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "encoder_layers", "d_model": "d_model",
        "num_heads": "encoder_attention_heads", "num_kv_heads": "encoder_attention_heads", "d_ff": "encoder_ffn_dim",
        "initializer_range": "init_std", "max_length": "max_position_embeddings",
    }  # fmt: skip
    activation = ("activation_function", ACTIVATIONS)
    start_option = "decoder_start_token_id"
    dropouts = ("dropout", "attention_dropout", "activation_dropout")
    free = ("num_decoder_layers",)

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        for name in _SAME_IN_DECODER:
            options.require(f"decoder_{name}", options[f"encoder_{name}"])
        return {"num_decoder_layers": _decoder_layers(options["encoder_layers"], options["decoder_layers"])}

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return {
            "decoder_attention_heads": model.num_heads,
            "decoder_layers": model.of_decoder.num_layers,
            "decoder_ffn_dim": model.d_ff,
            "pad_token_id": vocab.pad,
            "bos_token_id": vocab.bos,
            "eos_token_id": vocab.eos,
            "decoder_start_token_id": vocab.decoder_start,
            "forced_eos_token_id": None,  # the class's default is an id of BART's own vocabulary
        }

    def zeros(self, model: ModelConfig) -> dict[str, tuple[int, ...]]:
        return {"final_logits_bias": (1, model.vocab_size)}

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        rows = [Tensor("model.shared.weight", ("transformer/token_embedder/embedding",), copies=copies)]
        for stack in ("encoder", "decoder"):
            positions = f"transformer/{stack}_position_embedder/embedding"
            rows.append(Tensor(f"model.{stack}.embed_positions.weight", (positions,), extra_rows=_EXTRA_POSITIONS))
            embedding_norm = f"transformer/{stack}_embedding_norm"
            rows += norm(f"model.{stack}.layernorm_embedding", embedding_norm, bias=True)
            rows += _layers(stack, "self_attn", "self_attention")
            if stack == "decoder":
                rows += _layers(stack, "encoder_attn", "cross_attention")
            ours, theirs = f"transformer/{stack}/layers", f"model.{stack}.layers.{{}}"
            rows += linear(f"{theirs}.fc1", f"{ours}/mlp/wi", bias=True)
            rows += linear(f"{theirs}.fc2", f"{ours}/mlp/wo", bias=True)
            rows += norm(f"{theirs}.final_layer_norm", f"{ours}/mlp_norm", bias=True)
        return rows


def _layers(stack: str, module: str, block: str) -> list[Tensor]:
    """Returns the rows of one attention module of a stack's layers, and of its norm."""
    ours, theirs = f"transformer/{stack}/layers/{block}", f"model.{stack}.layers.{{}}.{module}"
    rows = norm(f"{theirs}_layer_norm", f"{ours}_norm", bias=True)
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        rows += linear(f"{theirs}.{letter}_proj", f"{ours}/{name}", bias=True)
    return rows + linear(f"{theirs}.out_proj", f"{ours}/out", bias=True)
