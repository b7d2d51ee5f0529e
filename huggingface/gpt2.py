"""GPT-2: GPT2LMHeadModel of `transformers`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family
from huggingface.tensors import Tensor, linear, norm
from models.config import ModelConfig


class GPT2(Family):
    """GPT2LMHeadModel. Its kernels are [inputs, outputs], and those of queries, keys and values are one tensor.

    bos_token_id is the token with which every segment begins (data.decoder_start_token). There is no pad_token_id:
    `generate` would otherwise mask the first token.
    """

    architecture = "GPT2LMHeadModel"
    aliases = ("GPT2Model",)
    model_type = "gpt2"
    prefix = "transformer."
    defaults: ClassVar = {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "tie_word_embeddings": True,
        "bos_token_id": 50256,
    }  # fmt: skip
    option_aliases: ClassVar = {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }  # fmt: skip
    required: ClassVar = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    fields: ClassVar = {
        "architecture": ("decoder_only",),
        "positions": ("learned",),
        "norm": ("layer",),
        "norm_position": ("pre",),
        "mlp": ("gelu", "exact_gelu", "relu", "silu"),
        "use_bias": (True,),
        "embedding_norm": (False,),
        "prediction_head": ("linear",),
        "scale_logits": (False,),
        "predicts_tokens": (True,),
        "has_prefix": (False,),
    }
    equal = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "n_layer", "d_model": "n_embd", "num_heads": "n_head",
        "num_kv_heads": "n_head", "d_ff": "n_inner", "norm_epsilon": "layer_norm_epsilon",
        "tie_embeddings": "tie_word_embeddings", "scale_attention": "scale_attn_weights",
        "initializer_range": "initializer_range", "max_length": "n_positions",
    }  # fmt: skip
    activation = ("activation_function", ACTIVATIONS)
    start_option = "bos_token_id"
    dropouts = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    unused = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",)  # buffers: the causal mask

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"d_ff": options["n_inner"] or 4 * options["n_embd"], "initializer": "gpt2"}

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return {"bos_token_id": vocab.decoder_start, "eos_token_id": vocab.eos}

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("lm_head.weight",) if model.tie_embeddings else ()
        rows = [
            Tensor("transformer.wte.weight", ("transformer/token_embedder/embedding",), copies=copies),
            Tensor("transformer.wpe.weight", ("transformer/position_embedder/embedding",)),
            *norm("transformer.ln_f", "transformer/decoder/final_norm", bias=True),
        ]
        if not model.tie_embeddings:
            rows += linear("lm_head", "transformer/logits_dense", bias=False)
        ours, theirs = "transformer/decoder/layers", "transformer.h.{}"
        rows += norm(f"{theirs}.ln_1", f"{ours}/self_attention_norm", bias=True)
        rows += norm(f"{theirs}.ln_2", f"{ours}/mlp_norm", bias=True)
        for name, paths in (
            ("attn.c_attn", tuple(f"self_attention/{name}" for name in ("query", "key", "value"))),
            ("attn.c_proj", ("self_attention/out",)),
            ("mlp.c_fc", ("mlp/wi",)),
            ("mlp.c_proj", ("mlp/wo",)),
        ):
            rows.append(Tensor(f"{theirs}.{name}.weight", tuple(f"{ours}/{path}/kernel" for path in paths)))
            rows.append(Tensor(f"{theirs}.{name}.bias", tuple(f"{ours}/{path}/bias" for path in paths)))
        return rows
