"""T5, T5 v1.1, UL2 and Flan-T5: T5ForConditionalGeneration of `transformers`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from contract.errors import ConfigError
from contract.vocab import Vocab
from models.config import ModelConfig
from models.parameters import Params
from train.huggingface.family import Family
from train.huggingface.options import Options
from train.huggingface.tensors import Tensor, linear, norm

# feed_forward_proj -> model.mlp. T5's "gated-gelu" is the tanh formula: transformers replaces it by "gelu_new".
_MLP = {
    "relu": "relu",
    "gelu_new": "gelu",
    "silu": "silu",
    "gated-gelu": "gated_gelu",
    "gated-gelu_new": "gated_gelu",
    "gated-silu": "gated_silu",
}
_FEED_FORWARD = {mlp: name for name, mlp in reversed(_MLP.items())}


class T5(Family):
    """Deviation of the numbers of a folder: none. Dropout: one rate, as in T5.

    The output table is the input table if there is no lm_head.weight, or if it equals shared.weight. Whether logits are
    scaled is an option of its own in transformers 5, `scale_decoder_outputs`, which by default is on unless
    tie_word_embeddings is false.
    """

    architecture = "T5ForConditionalGeneration"
    aliases = ("T5WithLMHeadModel",)
    model_type = "t5"
    defaults = {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
        "num_heads": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "tie_word_embeddings": True,
        "scale_decoder_outputs": None, "is_encoder_decoder": True,
    }  # fmt: skip
    fields = {
        "architecture": ("encoder_decoder",),
        "positions": ("relative",),
        "mlp": tuple(_FEED_FORWARD),
        "norm": ("rms",),
        "norm_position": ("pre",),
        "use_bias": (False,),
        "embedding_norm": (False,),
        "prediction_head": ("linear",),
        "scale_attention": (False,),
        "share_stacks": (False,),
        "num_token_types": (0,),
        "predicts_tokens": (True,),
    }
    # Cross-attention of old folders has a table of relative positions that no release of transformers reads.
    unused = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)

    def mismatches(self, model: ModelConfig) -> list[str]:
        found = super().mismatches(model)
        if model.num_kv_heads != model.num_heads:
            found.append(
                f"model.num_kv_heads={model.num_kv_heads}: T5ForConditionalGeneration of transformers has "
                f"model.num_heads={model.num_heads}"
            )
        if model.embedding_width != model.d_model:
            found.append(
                f"model.embedding_size={model.embedding_size}: T5ForConditionalGeneration of transformers has 0"
            )
        return found

    def _model_fields(self, options: Options, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        options.require("is_encoder_decoder", True)
        layers, decoder_layers = options["num_layers"], options["num_decoder_layers"]
        if decoder_layers not in (None, layers):
            raise ConfigError(
                f"config.json: num_decoder_layers={decoder_layers} is not supported, only num_layers={layers}"
            )
        if not options["tie_word_embeddings"] and not options.given("scale_decoder_outputs"):
            if "lm_head.weight" not in tensors:
                raise ConfigError("1 tensor (lm_head.weight) is missing: tie_word_embeddings is false in config.json")
        scaled, tied = _is_scaled(options), _is_tied(tensors)
        if scaled and not tied:
            raise ConfigError(
                "tensors shared.weight and lm_head.weight must be equal: config.json scales the logits, which this "
                "project does for a shared table only; tie_word_embeddings=false does not scale them"
            )
        return {
            "architecture": "encoder_decoder",
            "num_layers": layers,
            "d_model": options["d_model"],
            "num_heads": options["num_heads"],
            "num_kv_heads": options["num_heads"],
            "head_dim": options["d_kv"],
            "d_ff": options["d_ff"],
            "embedding_size": 0,
            "mlp": options.choose("feed_forward_proj", _MLP),
            "positions": "relative",
            "relative_num_buckets": options["relative_attention_num_buckets"],
            "relative_max_distance": options["relative_attention_max_distance"],
            "rope_theta": 10000.0,
            "norm": "rms",
            "norm_position": "pre",
            "norm_epsilon": options["layer_norm_epsilon"],
            "use_bias": False,
            "tie_embeddings": tied,
            "share_stacks": False,
            "scale_logits": scaled,
            "scale_attention": False,
            "embedding_norm": False,
            "prediction_head": "linear",
            "num_token_types": 0,
            "initializer": "t5",
            "initializer_range": 0.02,
            "dropout_rate": float(options["dropout_rate"]),
            "dropout_broadcast_positions": True,
            "vocab_size": options["vocab_size"],
            "max_length": 0,
        }

    def huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        self.check_model(model)
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": model.vocab_size,
            "d_model": model.d_model,
            "d_kv": model.head_dim,
            "d_ff": model.d_ff,
            "num_layers": model.num_layers,
            "num_decoder_layers": model.num_layers,
            "num_heads": model.num_heads,
            "relative_attention_num_buckets": model.relative_num_buckets,
            "relative_attention_max_distance": model.relative_max_distance,
            "dropout_rate": model.dropout_rate,
            "layer_norm_epsilon": model.norm_epsilon,
            "feed_forward_proj": _FEED_FORWARD[model.mlp],
            # Releases of transformers before 5 share the tables if this is true; all scale the logits if it is true.
            "tie_word_embeddings": model.scale_logits,
            "is_encoder_decoder": True,
            "pad_token_id": vocab.pad,
            "eos_token_id": vocab.eos,
            "decoder_start_token_id": vocab.pad,
        }

    def to_tensors(self, params: Params, model: ModelConfig, hf_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See Family. A shared table without scaled logits is there twice: only transformers 5 could share it."""
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


def _is_scaled(options: Options) -> bool:
    if options.given("scale_decoder_outputs"):
        return options["scale_decoder_outputs"]
    return options["tie_word_embeddings"]


def _is_tied(tensors: Mapping[str, np.ndarray]) -> bool:
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    table = next((tensors[name] for name in names if name in tensors), None)
    head = tensors.get("lm_head.weight")
    return head is None or (table is not None and np.array_equal(head, table))
