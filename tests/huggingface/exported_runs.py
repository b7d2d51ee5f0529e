"""Runs with random parameters of every kind that train.export writes."""

import sys

from configs import architectures
from huggingface import export

SIZES = ("num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")


def shape(published):
    """Overrides of `small_config` with the fields of a published shape, but small sizes."""
    return {f"model__{name}": value for name, value in published.items() if name not in SIZES}


CAUSAL = shape(architectures.LLAMA["7b"]) | {"data__bidirectional_inputs": False}
RUNS = {
    "t5": ("span_corruption", "encoder_decoder", {}),
    "gpt2": ("clm", "decoder_only", shape(architectures.GPT2["small"])),
    "llama": ("clm", "decoder_only", shape(architectures.LLAMA["7b"])),
    "bert": ("mlm", "encoder_only", shape(architectures.BERT["base"])),
    "nsp": ("nsp", "encoder_only", shape(architectures.BERT["base"]) | {"data__document_per": "paragraph"}),
    "ul2": ("ul2", "encoder_decoder", {}),
    "bart": ("bart", "encoder_decoder", shape(architectures.BART["base"])),
    "prefix_lm": ("prefix_lm", "encoder_decoder", {}),
    "span_decoder": ("span_corruption", "decoder_only", CAUSAL),
    "ul2_decoder": ("ul2", "decoder_only", CAUSAL),
    "fim": ("fim", "decoder_only", CAUSAL),
}


def run_export(*arguments):
    sys.argv = ["train.export", *map(str, arguments)]
    export.main()


def text_fields(corpus):
    return {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
