"""Decoders of `transformers`: GPT-2, Llama, and Mistral, Qwen 2 and Qwen 3, which differ from Llama in little."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from huggingface.config_json import Options
from huggingface.family import ACTIVATIONS, ALL_HEADS, Family, Tensor, holds, linear, norm
from huggingface.layer_options import rope_fields, rope_options
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
    fields: ClassVar = holds(
        architecture="decoder_only", positions="learned", norm="layer", norm_position="pre", use_bias=True,
        mlp=("gelu", "exact_gelu", "relu", "silu"), scale_attention=(True, False), has_prefix=False,
    )  # fmt: skip
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


_ATTENTION = {"self_attn": "self_attention"}
_MLP = {"silu": "gated_silu", "gelu_new": "gated_gelu", "gelu_pytorch_tanh": "gated_gelu"}


class Llama(Family):
    """LlamaForCausalLM, without scaling of positions (`rope_scaling`) or with that of Llama 3.1.

    bos_token_id and pad_token_id: see GPT2. Llama has dropout in attention only, so a folder's rate is read as none.
    """

    architecture = "LlamaForCausalLM"
    aliases: ClassVar[tuple[str, ...]] = ("LlamaModel",)
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
    fields: ClassVar = holds(
        architecture="decoder_only", positions="rope", norm="rms", norm_position="pre", use_bias=False,
        mlp=("gated_silu", "gated_gelu"), has_prefix=False,
    )  # fmt: skip
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
    free = ("rope_scaling_factor", "rope_original_length")
    norms: ClassVar = {"input_layernorm": "self_attention_norm", "post_attention_layernorm": "mlp_norm"}
    scale_offset: ClassVar[float] = 0.0  # Tensor.offset of norms

    def options(self, hf_config: Mapping[str, Any]) -> Options:
        """Returns the options. num_key_value_heads of null is num_attention_heads, and not the default of the class."""
        heads = {"num_key_value_heads": 0} if hf_config.get("num_key_value_heads", 0) is None else {}
        return super().options(dict(hf_config) | heads)

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {
            "num_kv_heads": options["num_key_value_heads"] or options["num_attention_heads"],
            "head_dim": options["head_dim"] or options.quotient("hidden_size", "num_attention_heads"),
            "dropout_rate": 0.0,
        } | rope_fields(options)

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        rope = {"rope_theta": model.rope_theta} | rope_options(model)  # transformers 4 reads the first
        return {"bos_token_id": vocab.decoder_start, "eos_token_id": vocab.eos} | rope

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        copies = ("lm_head.weight",) if model.tie_embeddings else ()
        rows = [Tensor("model.embed_tokens.weight", ("transformer/token_embedder/embedding",), copies=copies)]
        if not model.tie_embeddings:
            rows += linear("lm_head", "transformer/logits_dense", bias=False)
        rows += norm("model.norm", "transformer/decoder/final_norm", bias=False, offset=self.scale_offset)
        return rows + self.layers("model.layers.{}", "transformer/decoder/layers", self.norms, _ATTENTION)

    def layers(self, theirs: str, ours: str, norms: Mapping[str, str], attentions: Mapping[str, str]) -> list[Tensor]:
        """Returns the rows of the layers of a stack. norms, attentions: name there -> name here."""
        rows = []
        for name, path in norms.items():
            rows += norm(f"{theirs}.{name}", f"{ours}/{path}", bias=False, offset=self.scale_offset)
        for block, path in attentions.items():
            for letter, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
                rows += linear(f"{theirs}.{block}.{letter}_proj", f"{ours}/{path}/{name}", bias=False)
        for name, path in (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo")):
            rows += linear(f"{theirs}.mlp.{name}_proj", f"{ours}/mlp/{path}", bias=False)
        return rows


_WITHOUT_BIASES = {name: value for name, value in Llama.defaults.items() if not name.endswith("_bias")}


class Mistral(Llama):
    """MistralForCausalLM without a sliding window: Llama under another name (Mistral 7B v0.3, Mistral NeMo)."""

    architecture = "MistralForCausalLM"
    aliases = ("MistralModel",)
    model_type = "mistral"
    defaults: ClassVar = _WITHOUT_BIASES | {
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": None,
    }  # fmt: skip
    required: ClassVar = {"partial_rotary_factor": 1.0, "sliding_window": None}

    def options(self, hf_config: Mapping[str, Any]) -> Options:
        """Returns the options. Without `sliding_window` the class has a window of 4096; null is no window."""
        return super().options({"sliding_window": 4096} | dict(hf_config))


class Qwen2(Llama):
    """Qwen2ForCausalLM (Qwen 2 and 2.5): Llama with biases of queries, keys and values, without local layers."""

    architecture = "Qwen2ForCausalLM"
    aliases = ("Qwen2Model",)
    model_type = "qwen2"
    defaults: ClassVar = _WITHOUT_BIASES | {
        "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
        "bos_token_id": None, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
        "layer_types": None,
    }  # fmt: skip
    required: ClassVar = {"partial_rotary_factor": 1.0, "use_sliding_window": False}
    fields: ClassVar = Llama.fields | {"qkv_bias": (True,)}

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        if not isinstance(types := options["layer_types"] or [], list) or {*map(str, types)} - {"full_attention"}:
            raise ConfigError(f"config.json: layer_types={types} is not supported, only full_attention")
        return super()._model_fields(options, tensors)

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        ours, theirs = "transformer/decoder/layers/self_attention", "model.layers.{}.self_attn"
        names = ("query", "key", "value") if model.qkv_bias else ()
        biases = [Tensor(f"{theirs}.{name[0]}_proj.bias", (f"{ours}/{name}/bias",)) for name in names]
        return super().table(model, hf_config) + biases


class Qwen3(Qwen2):
    """Qwen3ForCausalLM: Llama with a norm of each head's queries and keys, without local layers."""

    architecture = "Qwen3ForCausalLM"
    aliases = ("Qwen3Model",)
    model_type = "qwen3"
    defaults: ClassVar = Qwen2.defaults | {"head_dim": 128, "attention_bias": False}
    required: ClassVar = Qwen2.required | {"attention_bias": False}
    fields: ClassVar = Llama.fields | {"qk_norm": (True,)}

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        return super().table(model, hf_config) + query_key_norms(self.scale_offset)


def query_key_norms(offset: float) -> list[Tensor]:
    """Returns the rows of the norms of queries and keys. offset: of their scales."""
    rows = []
    for letter, name in (("q", "query"), ("k", "key")):
        ours = f"transformer/decoder/layers/self_attention/{name}_norm"
        rows += norm(f"model.layers.{{}}.self_attn.{letter}_norm", ours, bias=False, offset=offset)
    return rows


class GPTNeoX(Family):
    """GPTNeoXForCausalLM (Pythia). Queries, keys and values are one tensor, head by head."""

    architecture = "GPTNeoXForCausalLM"
    aliases = ("GPTNeoXModel",)
    model_type = "gpt_neox"
    prefix = "gpt_neox."
    defaults: ClassVar = {
        "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "hidden_act": "gelu", "max_position_embeddings": 2048, "initializer_range": 0.02,
        "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "use_parallel_residual": True, "rotary_pct": 0.25,
        "rotary_emb_base": 10000.0, "partial_rotary_factor": None, "rope_theta": None, "rope_scaling": None,
        "rope_parameters": None, "attention_bias": True, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "bos_token_id": 0,
    }  # fmt: skip
    required: ClassVar = {"attention_bias": True}
    fields: ClassVar = holds(
        architecture="decoder_only", positions="rope", norm="layer", norm_position="pre", use_bias=True,
        mlp=("exact_gelu", "gelu", "relu", "silu"), has_prefix=False,
    )  # fmt: skip
    equal = ALL_HEADS
    names: ClassVar = {
        "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "d_model": "hidden_size",
        "num_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads", "d_ff": "intermediate_size",
        "norm_epsilon": "layer_norm_eps", "tie_embeddings": "tie_word_embeddings",
        "initializer_range": "initializer_range", "max_length": "max_position_embeddings",
        "parallel_residual": "use_parallel_residual",
    }  # fmt: skip
    activation = ("hidden_act", ACTIVATIONS)
    start_option = "bos_token_id"
    dropouts = ("hidden_dropout", "attention_dropout")
    unused = (r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",)
    free = ("parallel_residual", "partial_rotary_factor", *Llama.free)

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        for older, name in (("rotary_emb_base", "rope_theta"), ("rotary_pct", "partial_rotary_factor")):
            options.require(name, None, options[older])  # some releases wrote both
        return rope_fields(options, "rotary_emb_base", options["rotary_pct"])

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        rope, part = rope_options(model), model.partial_rotary_factor
        rope = {name: given | {"partial_rotary_factor": part} for name, given in rope.items()}
        older = {"rotary_emb_base": model.rope_theta, "rotary_pct": part}  # transformers 4 reads these
        return {"bos_token_id": vocab.decoder_start, "eos_token_id": vocab.eos} | older | rope

    def table(self, model: ModelConfig, hf_config: Mapping[str, Any]) -> list[Tensor]:
        # lm_head is the name in transformers 5, which writes folders with the older one.
        copies = ("embed_out.weight", "lm_head.weight") if model.tie_embeddings else ()
        rows = [Tensor("gpt_neox.embed_in.weight", ("transformer/token_embedder/embedding",), copies=copies)]
        if not model.tie_embeddings:
            rows += linear("embed_out", "transformer/logits_dense", bias=False, copies=("lm_head.weight",))
        rows += norm("gpt_neox.final_layer_norm", "transformer/decoder/final_norm", bias=True)
        ours, theirs = "transformer/decoder/layers", "gpt_neox.layers.{}"
        rows += norm(f"{theirs}.input_layernorm", f"{ours}/self_attention_norm", bias=True)
        rows += norm(f"{theirs}.post_attention_layernorm", f"{ours}/mlp_norm", bias=True)
        for name, path in (
            ("attention.dense", "self_attention/out"),
            ("mlp.dense_h_to_4h", "mlp/wi"),
            ("mlp.dense_4h_to_h", "mlp/wo"),
        ):
            rows += linear(f"{theirs}.{name}", f"{ours}/{path}", bias=True)
        for end, leaf in (("weight", "kernel"), ("bias", "bias")):
            paths = tuple(f"{ours}/self_attention/{name}/{leaf}" for name in ("query", "key", "value"))
            name, transposed = f"{theirs}.attention.query_key_value.{end}", leaf == "kernel"
            rows.append(Tensor(name, paths, transposed=transposed, heads=model.num_heads))
        return rows
