"""Llama: LlamaForCausalLM of `transformers`."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import Family
from huggingface.tensors import Tensor, linear, norm
from models.config import ModelConfig

_MLP = {"silu": "gated_silu", "gelu_new": "gated_gelu", "gelu_pytorch_tanh": "gated_gelu"}


class Llama(Family):
    """LlamaForCausalLM, with rotary embeddings as in the paper: without scaling of positions (`rope_scaling`).

    bos_token_id and pad_token_id: see GPT2. Llama has dropout in attention only, so a folder's rate is read as none.
    """

    architecture = "LlamaForCausalLM"
    model_type = "llama"
    prefix = "model."
    defaults: ClassVar = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "silu", "max_position_embeddings": 2048,
        "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0,
        "rope_scaling": None, "rope_parameters": None, "attention_bias": False, "attention_dropout": 0.0,
        "mlp_bias": False, "head_dim": None, "partial_rotary_factor": 1.0, "bos_token_id": 1,
    }  # fmt: skip
    required: ClassVar = {"attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0}
    fields: ClassVar = {
        "architecture": ("decoder_only",),
        "positions": ("rope",),
        "norm": ("rms",),
        "norm_position": ("pre",),
        "mlp": ("gated_silu", "gated_gelu"),
        "use_bias": (False,),
        "embedding_norm": (False,),
        "prediction_head": ("linear",),
        "scale_attention": (True,),
        "scale_logits": (False,),
        "predicts_tokens": (True,),
        "has_prefix": (False,),
    }
    equal: ClassVar = {"embedding_width": lambda model: model.d_model}
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
        "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads", "head_dim": "head_dim",
        "d_ff": "intermediate_size", "norm_epsilon": "rms_norm_eps", "tie_embeddings": "tie_word_embeddings",
        "initializer_range": "initializer_range", "max_length": "max_position_embeddings",
    }  # fmt: skip
    activation = ("hidden_act", _MLP)
    start_option = "bos_token_id"
    dropouts = ("attention_dropout",)
    unused = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

    def mismatches(self, model: ModelConfig) -> list[str]:
        found = super().mismatches(model)
        if model.d_model % model.num_heads:  # the class checks this, although it has an option head_dim
            found.append(
                f"model.num_heads={model.num_heads}: {self.architecture} of transformers has a divisor of "
                f"model.d_model={model.d_model}"
            )
        return found

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {
            "num_kv_heads": options["num_key_value_heads"] or options["num_attention_heads"],
            "head_dim": options["head_dim"] or options.quotient("hidden_size", "num_attention_heads"),
            "rope_theta": _rope_theta(options),
            "dropout_rate": 0.0,
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return {
            "rope_theta": model.rope_theta,  # read by transformers 4; transformers 5 reads rope_parameters
            "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
            "bos_token_id": vocab.decoder_start,
            "eos_token_id": vocab.eos,
        }

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("lm_head.weight",) if model.tie_embeddings else ()
        rows = [Tensor("model.embed_tokens.weight", ("transformer/token_embedder/embedding",), copies=copies)]
        if not model.tie_embeddings:
            rows += linear("lm_head", "transformer/logits_dense", bias=False)
        rows += norm("model.norm", "transformer/decoder/final_norm", bias=False)
        ours, theirs = "transformer/decoder/layers", "model.layers.{}"
        rows += norm(f"{theirs}.input_layernorm", f"{ours}/self_attention_norm", bias=False)
        rows += norm(f"{theirs}.post_attention_layernorm", f"{ours}/mlp_norm", bias=False)
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
            rows += linear(f"{theirs}.self_attn.{letter}_proj", f"{ours}/self_attention/{name}", bias=False)
        for name, path in (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo")):
            rows += linear(f"{theirs}.mlp.{name}_proj", f"{ours}/mlp/{path}", bias=False)
        return rows


def _rope_theta(options: Options) -> float:
    """Returns the base of the wavelengths.

    As in transformers 5, this is the entry of rope_scaling, or else of rope_parameters, or else the option rope_theta.
    Raises ConfigError for scaled positions and for a base that is not a number above 0.
    """
    scaling, parameters = options["rope_scaling"], options["rope_parameters"]
    for name, given in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        kind = (given or {}).get("rope_type", (given or {}).get("type", "default"))
        if kind != "default" or (given or {}).get("partial_rotary_factor", 1.0) != 1.0:
            raise ConfigError(f"config.json: {name}={given} is not supported, only rotary embeddings without scaling")
    theta = (scaling or parameters or {}).get("rope_theta", options["rope_theta"])
    if type(theta) not in (int, float) or not 0 < theta < math.inf:
        raise ConfigError(f"config.json: rope_theta={theta!r} must be a number above 0")
    return float(theta)
