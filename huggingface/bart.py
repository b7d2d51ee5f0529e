"""BART: BartForConditionalGeneration of `transformers`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family
from huggingface.tensors import Tensor, linear, norm
from models.config import ModelConfig

# Rows of each table of positions that no position reads, as in fairseq; not in the option's number.
_EXTRA_POSITIONS = 2
_SAME_IN_DECODER = ("attention_heads", "layers", "ffn_dim")


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
    fields: ClassVar = {
        "architecture": ("encoder_decoder",),
        "positions": ("learned",),
        "norm": ("layer",),
        "norm_position": ("post",),
        "norm_epsilon": (1e-5,),
        "mlp": ("exact_gelu", "gelu", "relu", "silu"),
        "use_bias": (True,),
        "embedding_norm": (True,),
        "prediction_head": ("linear",),
        "tie_embeddings": (True,),
        "scale_attention": (True,),
        "scale_logits": (False,),
        "share_stacks": (False,),
        "num_token_types": (0,),
        "predicts_tokens": (True,),
    }
    equal = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "encoder_layers", "d_model": "d_model",
        "num_heads": "encoder_attention_heads", "num_kv_heads": "encoder_attention_heads", "d_ff": "encoder_ffn_dim",
        "initializer_range": "init_std", "max_length": "max_position_embeddings",
    }  # fmt: skip
    activation = ("activation_function", ACTIVATIONS)
    start_option = "decoder_start_token_id"
    dropouts = ("dropout", "attention_dropout", "activation_dropout")

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        for name in _SAME_IN_DECODER:
            options.require(f"decoder_{name}", options[f"encoder_{name}"])
        return {}

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        sizes = {"attention_heads": model.num_heads, "layers": model.num_layers, "ffn_dim": model.d_ff}
        return {f"decoder_{name}": sizes[name] for name in _SAME_IN_DECODER} | {
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
