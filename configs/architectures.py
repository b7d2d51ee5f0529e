"""Published shapes, as fields of config.model: `config.model.update(T5_V1_1["base"])`.

A shape sets every field of config.model except attention, remat, scan_unroll, vocab_size and max_length: by default
the tokenizer sets the size of the vocabulary, and config.data the number of learned positions. To lay out a shape in
another way, set model.architecture after it.

GELU is that of the authors' code: the tanh formula in google-research/bert, google-research/electra, GPT-2 and T5; the
exact one in fairseq (RoBERTa, BART) and in microsoft/MASS. Hugging Face's BERT and ELECTRA have the exact one.

| shape | parameters | with a vocabulary of |
|---|---|---|
| T5 v1.1 small, base, large, xl, xxl | 77.0M, 247.6M, 783.2M, 2.850B, 11.135B | 32128 |
| T5 v1.0 small, base, large, 3b, 11b | 60.5M, 222.9M, 737.7M, 2.852B, 11.307B | 32128 |
| UL2 20b | 19.59B | 32128 |
| BERT base, large (no pooler, no sentence types) | 109.5M, 335.2M | 30522, 512 positions |
| RoBERTa base, large | 124.7M, 355.4M | 50265, 512 positions |
| ELECTRA small; base, large (no head, no sentence types) | 13.5M; as BERT | 30522, 512 positions |
| ModernBERT base, large | 149.7M, 395.9M | 50368 |
| Ettin 17m, 32m, 68m, 150m, 400m, 1b | 16.9M, 32.1M, 68.5M, 149.7M, 395.9M, 1.03B | 50368 |
| mmBERT small, base | 140.9M, 307.8M | 256000 |
| NeoBERT base | 245.1M | 30522 |
| BART base, large | 139.4M, 406.3M | 50265, 1024 positions |
| GPT-2 small, medium, large, xl | 124.4M, 354.8M, 774.0M, 1.558B | 50257, 1024 positions |
| Llama 7b, 13b; Llama 2 70b | 6.738B, 13.016B; 68.977B | 32000 |
"""

from configs import base


def _size(
    num_layers: int, d_model: int, num_heads: int, d_ff: int, *, head_dim: int = 0, num_kv_heads: int = 0
) -> dict[str, int]:
    """Returns the sizes of a shape. By default head_dim is d_model / num_heads, and num_kv_heads is num_heads."""
    return dict(
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_dim=head_dim or d_model // num_heads,
        d_ff=d_ff,
    )


# Every shape sets every field, so that an update replaces all fields of another shape. A field that a shape does not
# name, such as one that was added later, has the default of configs/base.py.
_DEFAULTS = {
    name: value
    for name, value in base.get_config().model.items()
    if name not in ("attention", "remat", "scan_unroll", "vocab_size", "max_length")
}

_T5_V1_1 = (
    _DEFAULTS
    | dict(architecture="encoder_decoder", positions="relative", mlp="gated_gelu")
    | dict(dropout_rate=0.0, dropout_broadcast_positions=True)
    | dict(norm="rms", norm_position="pre", norm_epsilon=1e-6, embedding_norm=False, use_bias=False)
    | dict(prediction_head="linear", tie_embeddings=False, scale_logits=False)
    | dict(initializer="t5", scale_attention=False)
)
T5_V1_1 = {
    "small": _T5_V1_1 | _size(num_layers=8, d_model=512, num_heads=6, d_ff=1024, head_dim=64),
    "base": _T5_V1_1 | _size(num_layers=12, d_model=768, num_heads=12, d_ff=2048),
    "large": _T5_V1_1 | _size(num_layers=24, d_model=1024, num_heads=16, d_ff=2816),
    "xl": _T5_V1_1 | _size(num_layers=24, d_model=2048, num_heads=32, d_ff=5120),
    "xxl": _T5_V1_1 | _size(num_layers=24, d_model=4096, num_heads=64, d_ff=10240),
}

_T5_V1_0 = _T5_V1_1 | dict(mlp="relu", dropout_rate=0.1, tie_embeddings=True, scale_logits=True)
T5_V1_0 = {
    "small": _T5_V1_0 | _size(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
    "base": _T5_V1_0 | _size(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
    "large": _T5_V1_0 | _size(num_layers=24, d_model=1024, num_heads=16, d_ff=4096),
    "3b": _T5_V1_0 | _size(num_layers=24, d_model=1024, num_heads=32, d_ff=16384, head_dim=128),
    "11b": _T5_V1_0 | _size(num_layers=24, d_model=1024, num_heads=128, d_ff=65536, head_dim=128),
}

# The released 20B (Hugging Face google/ul2), with untied tables, as its config.json says.
_UL2 = _T5_V1_1 | dict(mlp="gated_silu")
UL2 = {"20b": _UL2 | _size(num_layers=32, d_model=4096, num_heads=16, d_ff=16384)}

# prediction_head="bert": masked tokens are predicted through a dense layer and the tied table.
_BERT = (
    _DEFAULTS
    | dict(architecture="encoder_only", positions="learned", mlp="gelu")
    | dict(dropout_rate=0.1, dropout_broadcast_positions=False)
    | dict(norm="layer", norm_position="post", norm_epsilon=1e-12, embedding_norm=True, use_bias=True)
    | dict(prediction_head="bert", tie_embeddings=True, scale_logits=False)
    | dict(initializer="normal", scale_attention=True)
)
_BERT_SIZES = {
    "base": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
    "large": dict(num_layers=24, d_model=1024, num_heads=16, d_ff=4096),
}
BERT = {name: _BERT | _size(**sizes) for name, sizes in _BERT_SIZES.items()}

_ROBERTA = _BERT | dict(mlp="exact_gelu", norm_epsilon=1e-5)
ROBERTA = {name: _ROBERTA | _size(**sizes) for name, sizes in _BERT_SIZES.items()}

# ModernBERT (AnswerDotAI/ModernBERT), Ettin's encoders (JHU-CLSP/ettin-encoder-vs-decoder), mmBERT (JHU-CLSP/mmBERT):
# pre-norm, no biases but that of the logits, and a norm of the embeddings in place of the first layer's. Two of three
# layers attend to 64 positions to each side. The bases of the wavelengths are those of the training on rows of 1,024
# tokens; released models, extended to rows of 8,192, have 160,000 in global layers, and Ettin and mmBERT in all.
_MODERN_BERT = _BERT | dict(
    positions="rope",
    mlp="gated_exact_gelu",
    norm_position="pre",
    norm_epsilon=1e-5,
    use_bias=False,
    logits_bias=True,
    first_attention_norm=False,
    global_every=3,
    local_distance=64,
    dropout_rate=0.0,
    initializer="gpt2",
)
_MODERN_BERT_SIZES = {
    "ettin_17m": dict(num_layers=7, d_model=256, num_heads=4, d_ff=384),
    "ettin_32m": dict(num_layers=10, d_model=384, num_heads=6, d_ff=576),
    "ettin_68m": dict(num_layers=19, d_model=512, num_heads=8, d_ff=768),
    "ettin_150m": dict(num_layers=22, d_model=768, num_heads=12, d_ff=1152),
    "ettin_400m": dict(num_layers=28, d_model=1024, num_heads=16, d_ff=2624),
    "ettin_1b": dict(num_layers=28, d_model=1792, num_heads=28, d_ff=3840),
    "mmbert_small": dict(num_layers=22, d_model=384, num_heads=6, d_ff=1152),
    "mmbert_base": dict(num_layers=22, d_model=768, num_heads=12, d_ff=1152),
    "modernbert_base": dict(num_layers=22, d_model=768, num_heads=12, d_ff=1152),
    "modernbert_large": dict(num_layers=28, d_model=1024, num_heads=16, d_ff=2624),
}
ENCODERS = {name: _MODERN_BERT | _size(**sizes) for name, sizes in _MODERN_BERT_SIZES.items()}
# Ettin's decoders have the shapes of its encoders.
ETTIN_DECODERS = {
    name: shape | dict(architecture="decoder_only") for name, shape in ENCODERS.items() if name.startswith("ettin")
}

# The discriminators: google-research/electra, and the small one as released.
ELECTRA = {
    "small": _BERT | _size(num_layers=12, d_model=256, num_heads=4, d_ff=1024) | dict(embedding_size=128),
    "base": BERT["base"],
    "large": BERT["large"],
}

# For the tiny presets of BERT's objectives. Positions are rotary: with learned positions the first 500 steps learn no
# more than the frequencies of the tokens.
TINY_ENCODER = _BERT | base.TINY_SIZES | dict(num_layers=4, positions="rope", dropout_rate=0.0)

# Each stack has its own learned positions and embedding norm, as every encoder-decoder here.
_BART = _ROBERTA | dict(architecture="encoder_decoder", prediction_head="linear")
BART = {
    "base": _BART | _size(num_layers=6, d_model=768, num_heads=12, d_ff=3072),
    "large": _BART | _size(num_layers=12, d_model=1024, num_heads=16, d_ff=4096),
}

# 6 layers in each stack, as in the authors' code (microsoft/MASS, MASS-unsupNMT), which is XLM's. Deviations: both
# stacks have one table of tokens, where theirs have one each, and initial values are N(0, 0.02), where theirs are
# PyTorch's, and N(0, 1 / d_model) in tables.
MASS = {"base": _BART | _size(num_layers=6, d_model=1024, num_heads=8, d_ff=4096) | dict(norm_epsilon=1e-12)}

# Pre-norm stacks. The positions of the paper are sinusoidal; learned ones are nearest of those here. Further deviations
# from google-research/pegasus, whose initial values are Glorot's: its attention has no biases, embeddings are
# multiplied by sqrt(d_model) and drawn from N(0, 1 / d_model), and all positions of a row share one dropout mask.
_PEGASUS = _BART | dict(norm_position="pre", norm_epsilon=1e-6, embedding_norm=False, mlp="relu")
PEGASUS = {
    "base": _PEGASUS | _size(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
    "large": _PEGASUS | _size(num_layers=16, d_model=1024, num_heads=16, d_ff=4096),
}

_GPT2 = _BERT | dict(
    architecture="decoder_only",
    norm_position="pre",
    norm_epsilon=1e-5,
    embedding_norm=False,
    prediction_head="linear",
    initializer="gpt2",
)
GPT2 = {
    "small": _GPT2 | _size(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
    "medium": _GPT2 | _size(num_layers=24, d_model=1024, num_heads=16, d_ff=4096),
    "large": _GPT2 | _size(num_layers=36, d_model=1280, num_heads=20, d_ff=5120),
    "xl": _GPT2 | _size(num_layers=48, d_model=1600, num_heads=25, d_ff=6400),
}
# BERT's sizes, with the blocks and the initial values of Megatron-LM's GPT-2.
GLM = {"base": GPT2["small"], "large": GPT2["medium"]}

_LLAMA = (
    _DEFAULTS
    | dict(architecture="decoder_only", positions="rope", mlp="gated_silu")
    | dict(dropout_rate=0.0, dropout_broadcast_positions=False)
    | dict(norm="rms", norm_position="pre", norm_epsilon=1e-6, embedding_norm=False, use_bias=False)
    | dict(prediction_head="linear", tie_embeddings=False, scale_logits=False)
    | dict(initializer="normal", scale_attention=True)
)
LLAMA = {
    "7b": _LLAMA | _size(num_layers=32, d_model=4096, num_heads=32, d_ff=11008),
    "13b": _LLAMA | _size(num_layers=40, d_model=5120, num_heads=40, d_ff=13824),
}
# Llama 2's 7b and 13b have Llama's shapes. In its 70b eight query heads share each key/value head.
_LLAMA2 = _LLAMA | dict(norm_epsilon=1e-5)
LLAMA2 = {"70b": _LLAMA2 | _size(num_layers=80, d_model=8192, num_heads=64, d_ff=28672, num_kv_heads=8)}

# chandar-lab/NeoBERT: Llama's blocks, read in both directions. Its initial values are uniform in [-0.02, 0.02], whose
# standard deviation these have. Deviation: NeoBERT's logits have a bias, and these have none.
_NEOBERT = _LLAMA | dict(architecture="encoder_only", norm_epsilon=1e-5, initializer_range=0.0115)
ENCODERS["neobert_base"] = _NEOBERT | _size(num_layers=28, d_model=768, num_heads=12, d_ff=2048)
