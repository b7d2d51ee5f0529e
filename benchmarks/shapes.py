"""Config file of GPT-2, BERT and T5 v1.1 at any size, for benchmarks.step: AdamW, no dropout, z-loss or clipping.

python -m benchmarks.step --config=benchmarks/shapes.py:architecture=encoder_only,d_model=512
"""

from typing import Any

from ml_collections import ConfigDict

from configs import clm, mlm, span_corruption

CONFIGS = {"decoder_only": clm, "encoder_only": mlm, "encoder_decoder": span_corruption}  # GPT-2, BERT, T5 v1.1
SHAPE = {
    "architecture": "decoder_only",
    "d_model": 256,
    "num_layers": 4,
    "num_heads": 4,
    "d_ff": 1024,
    "batch_size": 8,
    "length": 256,  # of a row; of an encoder-decoder's inputs
    "target_length": 64,  # of an encoder-decoder's targets
    "precision": "float32",
}


def get_config(preset: str = "") -> ConfigDict:
    """Returns the experiment of a shape. preset: the values that differ from SHAPE, as in "d_model=512,num_heads=8"."""
    shape = SHAPE | _values(preset)
    if shape["d_model"] % shape["num_heads"]:
        raise ValueError(f"d_model={shape['d_model']} must be a multiple of num_heads={shape['num_heads']}")
    config = CONFIGS[shape["architecture"]].get_config("base")
    config.model.update({name: shape[name] for name in ("d_model", "num_layers", "num_heads", "d_ff")})
    config.model.num_kv_heads = shape["num_heads"]
    config.model.head_dim = shape["d_model"] // shape["num_heads"]
    config.model.dropout_rate = 0.0
    config.model.remat = "none"
    config.data.inputs_length, config.data.targets_length = shape["length"], shape["target_length"]
    config.data.num_sentinels = shape["length"]  # enough for any length
    config.train.batch_size, config.train.grad_accum_steps = shape["batch_size"], 1
    config.precision = shape["precision"]
    config.loss.z_loss = 0.0
    config.optimizer.update({"name": "adamw", "schedule": "constant", "learning_rate": 1e-4, "warmup_steps": 0})
    config.optimizer.update({"b2": 0.999, "weight_decay": 0.01, "clip_norm": 0.0})
    return config


def _values(preset: str) -> dict[str, Any]:
    """Returns the values of a preset, converted to the types of SHAPE's values."""
    texts = dict(part.split("=") for part in filter(None, preset.split(",")))
    unknown = texts.keys() - SHAPE.keys()
    if unknown:
        raise ValueError(f"unknown part of a shape {min(unknown)!r}: use {', '.join(SHAPE)}")
    return {name: type(SHAPE[name])(text) for name, text in texts.items()}
