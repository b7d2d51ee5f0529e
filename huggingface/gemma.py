"""The Gemma family of `transformers`: Gemma, Gemma 2, the text models of Gemma 3, and T5Gemma."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.decoders import Llama, query_key_norms
from huggingface.family import Tensor, linear, norm
from huggingface.layer_options import GLOBAL, LOCAL, global_every, layer_types, require_rope, theta_of
from models.config import ModelConfig

_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
# Options of T5Gemma's sections that may differ.
_OF_STACK = {"is_decoder", "cross_attention_hidden_size", "model_type", "use_cache", "architectures"}


class Gemma(Llama):
    """GemmaForCausalLM: Llama with scaled embeddings and GELU. A scale of a norm is 1 plus its tensor."""

    architecture = "GemmaForCausalLM"
    aliases = ("GemmaModel",)
    model_type = "gemma"
    defaults: ClassVar = {name: Llama.defaults[name] for name in Llama.defaults if name != "mlp_bias"} | {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "bos_token_id": 2, "use_bidirectional_attention": False,
    }  # fmt: skip
    required: ClassVar = {
        "attention_bias": False, "partial_rotary_factor": 1.0, "use_bidirectional_attention": False,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    fields: ClassVar = Llama.fields | {"mlp": ("gated_gelu",), "scale_embeddings": (True,)}
    activation = ("hidden_act", {"gelu_pytorch_tanh": "gated_gelu", "gelu": "gated_gelu"})  # "gelu" in first folders
    scale_offset = 1.0

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        # Null, because the class's default is 0, an id: see GPT2.
        return super()._huggingface_config(model, vocab) | {"pad_token_id": None}


class Gemma2(Gemma):
    """Gemma2ForCausalLM: Gemma with norms of the outputs of blocks, soft caps, and every second layer local.

    A local layer reads as many tokens as the option sliding_window, its own among them.
    """

    architecture = "Gemma2ForCausalLM"
    aliases = ("Gemma2Model",)
    model_type = "gemma2"
    defaults: ClassVar = Gemma.defaults | {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": None,
        "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    }  # fmt: skip
    fields: ClassVar = Gemma.fields | {"sandwich_norm": (True,)}
    # Without local layers nothing reads these fields.
    equal: ClassVar = Llama.equal | {
        "first_layer_global": lambda model: model.first_layer_global and model.global_every == 1,
        "local_rope_theta": lambda model: model.local_rope_theta if model.global_every == 1 else model.rope_theta,
    }
    names: ClassVar = Llama.names | {
        "attention_softcap": "attn_logit_softcapping", "logits_softcap": "final_logit_softcapping",
    }  # fmt: skip
    activation = ("hidden_activation", {"gelu_pytorch_tanh": "gated_gelu"})
    free = ("global_every", "local_distance", "attention_softcap", "logits_softcap")
    norms: ClassVar = {
        "input_layernorm": "self_attention_norm", "post_attention_layernorm": "self_attention_post_norm",
        "pre_feedforward_layernorm": "mlp_norm", "post_feedforward_layernorm": "mlp_post_norm",
    }  # fmt: skip

    def options(self, hf_config: Mapping[str, Any]) -> Options:
        """Returns the options. A soft cap of null is none, and not the default of the class."""
        caps = {name: 0.0 for name in _CAPS if hf_config.get(name, 0.0) is None}
        return super().options(dict(hf_config) | caps)

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        options.require("query_pre_attn_scalar", options["head_dim"])
        for name in ("rope_parameters", "rope_scaling"):  # the wavelengths of local layers have no scaling here
            require_rope(name, options[name], "default")
        fields = super()._model_fields(options, tensors)
        return fields | {
            "global_every": global_every(options, 2, first_layer_global=False),
            "first_layer_global": False,
            "local_distance": options["sliding_window"] - 1,
            "local_rope_theta": fields["rope_theta"],
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return super()._huggingface_config(model, vocab) | {
            "query_pre_attn_scalar": model.head_dim,
            "sliding_window": model.local_distance + 1,
            "layer_types": layer_types(model),
            "attn_logit_softcapping": model.attention_softcap or None,
            "final_logit_softcapping": model.logits_softcap or None,
        }


class Gemma3(Gemma2):
    """Gemma3ForCausalLM: Gemma 2 with norms of queries and keys, and local layers with wavelengths of their own."""

    architecture = "Gemma3ForCausalLM"
    aliases = ("Gemma3TextModel",)
    model_type = "gemma3_text"
    defaults: ClassVar = Gemma2.defaults | {
        "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "final_logit_softcapping": 0.0, "attn_logit_softcapping": 0.0, "sliding_window_pattern": 6,
    }  # fmt: skip
    required: ClassVar = Gemma2.required | {"attn_logit_softcapping": 0.0}  # which transformers does not read
    fields: ClassVar = Gemma2.fields | {"qk_norm": (True,)}
    equal: ClassVar = {name: value for name, value in Gemma2.equal.items() if name != "local_rope_theta"}
    free = ("global_every", "local_distance", "local_rope_theta", "logits_softcap")

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return super()._model_fields(options, tensors) | {
            "global_every": global_every(options, options["sliding_window_pattern"], first_layer_global=False),
            "rope_theta": theta_of(options, GLOBAL, "rope_theta"),
            "local_rope_theta": theta_of(options, LOCAL, "rope_local_base_freq"),
        }

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        thetas = {GLOBAL: model.rope_theta, LOCAL: model.local_rope_theta}
        return super()._huggingface_config(model, vocab) | {
            "rope_parameters": {name: {"rope_type": "default", "rope_theta": base} for name, base in thetas.items()},
            # Read by transformers 4.
            "rope_local_base_freq": model.local_rope_theta,
            "sliding_window_pattern": model.global_every,
        }

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        return super().table(model, hf_config) + query_key_norms(self.scale_offset)


class T5Gemma(Gemma2):
    """T5GemmaForConditionalGeneration: two stacks of Gemma 2, each with its own token table, and cross-attention.

    config.json has a section for each stack. Stacks of two sizes, as in T5Gemma 9B-2B, are not supported. A local layer
    of the encoder reads fewer than sliding_window tokens to each side, as in Gemma's own code and in the releases of
    transformers with which the models were published. Deviation: transformers 5 reads one more on each side.
    """

    architecture = "T5GemmaForConditionalGeneration"
    model_type = "t5gemma"
    defaults: ClassVar = Gemma2.defaults | {"dropout_rate": 0.0, "is_encoder_decoder": True}
    required: ClassVar = Gemma2.required | {"is_encoder_decoder": True}
    fields: ClassVar = {name: values for name, values in Gemma2.fields.items() if name != "has_prefix"} | {
        "architecture": ("encoder_decoder",), "share_embeddings": (False,), "share_stacks": (False,),
    }  # fmt: skip
    equal: ClassVar = Gemma2.equal | {
        "num_decoder_layers": lambda model: model.num_layers if model.num_decoder_layers == model.num_layers else 0,
    }  # fmt: skip
    dropouts = ("dropout_rate", "attention_dropout")

    def flat(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the options of the decoder and those outside the sections. Raises ConfigError if stacks differ."""
        if "encoder" not in hf_config and "decoder" not in hf_config:
            return hf_config
        stacks = [hf_config.get(name) for name in ("encoder", "decoder")]
        if not all(isinstance(stack, dict) for stack in stacks):
            raise ConfigError("config.json: encoder and decoder must each be a section of options")
        encoder, decoder = stacks
        for name in sorted((encoder.keys() | decoder.keys()) - _OF_STACK):
            if encoder.get(name) != decoder.get(name):
                raise ConfigError(
                    f"config.json: {name} is {encoder.get(name)!r} in encoder and {decoder.get(name)!r} in decoder: "
                    "only stacks with the same options are supported"
                )
        # As transformers does, which also writes its own default of vocab_size outside the sections.
        own = {name: value for name, value in hf_config.items() if name not in ("encoder", "decoder", "vocab_size")}
        return decoder | own

    def nested(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """See Family."""
        own = ("architectures", "model_type", "is_encoder_decoder", *self.dropouts)
        section = {name: value for name, value in config.items() if name not in own}
        stacks = {name: section | {"is_decoder": name == "decoder"} for name in ("encoder", "decoder")}
        ids = {name: config[name] for name in config if name.endswith("_token_id")}
        kept = {name: config[name] for name in (*own, "vocab_size", "tie_word_embeddings", "initializer_range")}
        return kept | ids | stacks

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return super()._model_fields(options, tensors) | {"dropout_rate": float(options["dropout_rate"])}

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        return super()._huggingface_config(model, vocab) | {"pad_token_id": vocab.pad}

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        head = "lm_head.out_proj"
        copies = (f"{head}.weight",) if model.tie_embeddings else ()
        rows = [
            Tensor("model.encoder.embed_tokens.weight", ("transformer/encoder_token_embedder/embedding",)),
            Tensor("model.decoder.embed_tokens.weight", ("transformer/token_embedder/embedding",), copies=copies),
        ]
        if not model.tie_embeddings:
            rows += linear(head, "transformer/logits_dense", bias=False)
        for stack in ("encoder", "decoder"):
            ours, theirs = f"transformer/{stack}", f"model.{stack}"
            blocks = {"self_attn": "self_attention"} | ({"cross_attn": "cross_attention"} if stack == "decoder" else {})
            norms = {}
            for name, path in (blocks | {"feedforward": "mlp"}).items():
                norms |= {f"pre_{name}_layernorm": f"{path}_norm", f"post_{name}_layernorm": f"{path}_post_norm"}
            rows += norm(f"{theirs}.norm", f"{ours}/final_norm", bias=False, offset=self.scale_offset)
            rows += self.layers(f"{theirs}.layers.{{}}", f"{ours}/layers", norms, blocks)
        return rows
