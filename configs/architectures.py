"""Published shapes as fields of `config.model`: `config.model.update(T5_V1_1["base"])`. Each is a whole description.

The vocabulary's size comes with the tokenizer and the length with the data; neither is here. Any shape takes another
`architecture` after it, and is then that shape laid out otherwise.

| shape | parameters | with V rows of embedding |
|---|---|---|
| T5 v1.1 small, base, large, xl, xxl | 77.0M, 247.6M, 783.2M, 2.850B, 11.135B | 32128 |
| T5 v1.0 small, base, large, 3b, 11b | 60.5M, 222.9M, 737.7M, 2.852B, 11.307B | 32128 |
| UL2 20b | 19.59B | 32128 |
| BERT base, large (no pooler, no sentence types) | 109.5M, 335.2M | 30522, 512 positions |
| ELECTRA small; base, large (no head, no sentence types) | 13.5M; BERT's | 30522, 512 positions |
| GPT-2 small, medium, large, xl | 124.4M, 354.8M, 774.0M, 1.558B | 50257, 1024 positions |
| Llama 7b, 13b; Llama 2 70b | 6.738B, 13.016B; 68.977B | 32000 |
"""

from configs import base

_UNUSED = dict(  # Said by every shape, read by none whose other fields do not ask for it.
    embedding_size=0,
    num_token_types=0,
    relative_num_buckets=32,
    relative_max_distance=128,
    rope_theta=10000.0,
    initializer_range=0.02,
)


def _heads(d_model: int, num_heads: int) -> dict[str, int]:
    """Ordinary multi-head attention, whose heads share out d_model."""
    return dict(d_model=d_model, num_heads=num_heads, num_kv_heads=num_heads, head_dim=d_model // num_heads)


_T5 = dict(
    _UNUSED,
    architecture="encoder_decoder",
    positions="relative",
    norm="rms",
    norm_position="pre",
    norm_epsilon=1e-6,
    use_bias=False,
    scale_attention=False,
    embedding_norm=False,
    prediction_head="linear",
    initializer="t5",
)
_T5_V1_1 = dict(_T5, mlp="gated_gelu", tie_embeddings=False, scale_logits=False, dropout_rate=0.0)
_T5_V1_0 = dict(_T5, mlp="relu", tie_embeddings=True, scale_logits=True, dropout_rate=0.1)

T5_V1_1 = {
    "small": dict(_T5_V1_1, num_layers=8, d_model=512, num_heads=6, num_kv_heads=6, head_dim=64, d_ff=1024),
    "base": dict(_T5_V1_1, num_layers=12, d_model=768, num_heads=12, num_kv_heads=12, head_dim=64, d_ff=2048),
    "large": dict(_T5_V1_1, num_layers=24, d_model=1024, num_heads=16, num_kv_heads=16, head_dim=64, d_ff=2816),
    "xl": dict(_T5_V1_1, num_layers=24, d_model=2048, num_heads=32, num_kv_heads=32, head_dim=64, d_ff=5120),
    "xxl": dict(_T5_V1_1, num_layers=24, d_model=4096, num_heads=64, num_kv_heads=64, head_dim=64, d_ff=10240),
}

T5_V1_0 = {
    "small": dict(_T5_V1_0, num_layers=6, d_model=512, num_heads=8, num_kv_heads=8, head_dim=64, d_ff=2048),
    "base": dict(_T5_V1_0, num_layers=12, d_model=768, num_heads=12, num_kv_heads=12, head_dim=64, d_ff=3072),
    "large": dict(_T5_V1_0, num_layers=24, d_model=1024, num_heads=16, num_kv_heads=16, head_dim=64, d_ff=4096),
    "3b": dict(_T5_V1_0, num_layers=24, d_model=1024, num_heads=32, num_kv_heads=32, head_dim=128, d_ff=16384),
    "11b": dict(_T5_V1_0, num_layers=24, d_model=1024, num_heads=128, num_kv_heads=128, head_dim=128, d_ff=65536),
}

# The released 20B (Hugging Face google/ul2). Whether its tables are tied is not written there; untied, as in T5 v1.1.
UL2 = {"20b": dict(_T5_V1_1, mlp="gated_silu", num_layers=32, **_heads(4096, 16), d_ff=16384)}

# Post-norm, learned positions; a masked token is predicted through a dense layer and the tied table.
_BERT = dict(
    _UNUSED,
    architecture="encoder_only",
    mlp="gelu",
    positions="learned",
    norm="layer",
    norm_position="post",
    norm_epsilon=1e-12,
    use_bias=True,
    tie_embeddings=True,
    scale_logits=False,
    scale_attention=True,
    embedding_norm=True,
    prediction_head="bert",
    initializer="normal",
    dropout_rate=0.1,
)
BERT = {
    "base": dict(_BERT, num_layers=12, **_heads(768, 12), d_ff=3072),
    "large": dict(_BERT, num_layers=24, **_heads(1024, 16), d_ff=4096),
}

# The discriminators (google-research/electra); the released small one.
ELECTRA = {
    "small": dict(_BERT, num_layers=12, **_heads(256, 4), d_ff=1024) | dict(embedding_size=128),
    "base": BERT["base"],
    "large": BERT["large"],
}

# For tiny presets. With learned positions it predicts no better than the tokens' frequencies do in its first 500 steps.
TINY_ENCODER = BERT["base"] | base.TINY_SIZES | dict(num_layers=4, positions="rope", dropout_rate=0.0)

_GPT2 = dict(
    _BERT,
    architecture="decoder_only",
    norm_position="pre",
    norm_epsilon=1e-5,
    embedding_norm=False,
    prediction_head="linear",
)
GPT2 = {
    "small": dict(_GPT2, num_layers=12, **_heads(768, 12), d_ff=3072),
    "medium": dict(_GPT2, num_layers=24, **_heads(1024, 16), d_ff=4096),
    "large": dict(_GPT2, num_layers=36, **_heads(1280, 20), d_ff=5120),
    "xl": dict(_GPT2, num_layers=48, **_heads(1600, 25), d_ff=6400),
}

_LLAMA = dict(
    _UNUSED,
    architecture="decoder_only",
    mlp="gated_silu",
    positions="rope",
    norm="rms",
    norm_position="pre",
    norm_epsilon=1e-6,
    use_bias=False,
    tie_embeddings=False,
    scale_logits=False,
    scale_attention=True,
    embedding_norm=False,
    prediction_head="linear",
    initializer="normal",
    dropout_rate=0.0,
)
LLAMA = {
    "7b": dict(_LLAMA, num_layers=32, **_heads(4096, 32), d_ff=11008),
    "13b": dict(_LLAMA, num_layers=40, **_heads(5120, 40), d_ff=13824),
}
LLAMA2 = {  # The 7b and 13b are Llama's; the 70b shares each key/value head among eight query heads.
    "70b": dict(_LLAMA, norm_epsilon=1e-5, num_layers=80, **_heads(8192, 64) | dict(num_kv_heads=8), d_ff=28672),
}
