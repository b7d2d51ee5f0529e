"""Small studies on the tests' corpus."""

import pathlib

from configs.studies.base import heldout_loss, raw_tokens, study, variant
from studies.study import Study, make_study

# A model that trains in milliseconds.
ALLOWED = {"train.init_from_overlap": "allow"}
SMALL = {
    "model.d_model": 16,
    "model.d_ff": 16,
    "model.num_layers": 1,
    "model.num_heads": 1,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "data.inputs_length": 32,
    "train.batch_size": 4,
    "train.eval_windows": 8,
    "optimizer.warmup_steps": 1,
}


def on(corpus: pathlib.Path) -> dict[str, str]:
    """Overrides that read the tests' corpus."""
    return {"data.source": "text", "data.path": str(corpus / "text"), "data.cache_dir": str(corpus / "cache")}


def small_fields(corpus: pathlib.Path, **changes) -> dict:
    """The fields of a study of CLM with two learning rates, each of four steps."""
    fields = dict(
        question="Which rate?",
        config="configs/clm.py",
        baseline="slow",
        variants={"slow": variant(), "fast": variant({"optimizer.learning_rate": 0.01})},
        overrides=SMALL | on(corpus),
        budget=raw_tokens(512),
        seeds=2,
        measures={"loss": heldout_loss()},
    )
    return study(**fields | changes)


def small_study(corpus: pathlib.Path, **changes) -> Study:
    """The study of `small_fields`, checked."""
    return make_study(small_fields(corpus, **changes), "small.py")


def write_study(path: pathlib.Path, fields: dict) -> pathlib.Path:
    """Writes a file whose get_study() returns `fields`."""
    path.write_text(f"def get_study():\n    return {fields!r}\n", encoding="utf-8")
    return path
