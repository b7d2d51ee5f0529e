"""Experiments of a few thousand parameters, one for each objective, for tests that need a model and its vocabulary."""

import functools

import jax
import numpy as np

from configs import clm, mlm
from configs.base import get_config
from experiment.experiment import Experiment, make_experiment
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import init_params

SPANS = {
    "name": "span_corruption",
    "noise_density": 0.3,
    "mean_noise_span_length": 3.0,
    "random_roll": False,
    "span_length_distribution": "composition",
}
PREFIX_LM = {"name": "prefix_lm", "target_fraction": 0.5, "split": "uniform", "sentinel": False}
OBJECTIVES = {
    "clm": {"name": "clm"},
    "mlm": {"name": "mlm", **mlm.VARIANTS["bert"]},
    "prefix_lm": PREFIX_LM,
    "span_corruption": SPANS,
    "ul2": {
        "name": "mixture",
        "mix_by": "example",
        "schedule": "constant",
        "denoisers": {
            "r": {"weight": 1.0, "mode": "[R]", **SPANS},
            "s": {"weight": 1.0, "mode": "[S]", **PREFIX_LM},
            "x": {"weight": 1.0, "mode": "[X]", **SPANS, "noise_density": 0.5},
        },
    },
}


def tiny_experiment(
    objective: str | dict, architecture: str, *, data: dict | None = None, model: dict | None = None, **config
) -> Experiment:
    """An experiment with one layer per stack and rows of 48 tokens.

    Args:
      objective: a name in OBJECTIVES, or the fields of `config.objective`.
      architecture: `config.model.architecture`.
      data, model: fields to change in these sections of the config.
      **config: other fields of the config to replace, such as `mesh`.
    """
    fields = get_config().to_dict()
    fields["objective"] = OBJECTIVES[objective] if isinstance(objective, str) else objective
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "d_ff": 16}
    fields["model"] |= sizes | {"architecture": architecture} | (model or {})
    fields["data"] |= {"inputs_length": 48, "targets_length": 48, "num_sentinels": 20} | (data or {})
    fields["train"] |= {"batch_size": 32}
    return make_experiment(fields | config)


@functools.cache
def shapes_of(model: ModelConfig) -> Params:
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def random_params(experiment: Experiment, *, scale: float = 1.0, seed: int = 0) -> Params:
    """Parameters of the model's shapes: matrices of variance scale^2 / fan-in, and vectors around 1.

    The model's own initialiser takes seconds to compile.
    """
    rng = np.random.default_rng(seed)

    def draw(shape: jax.ShapeDtypeStruct) -> np.ndarray:
        noise = rng.normal(size=shape.shape).astype(shape.dtype)
        return 1 + 0.1 * noise if len(shape.shape) == 1 else scale * noise * shape.shape[-2] ** -0.5

    return jax.tree.map(draw, shapes_of(experiment.model))


def paragraph_experiment(steps: int, cache_dir: str) -> Experiment:
    """A decoder-only CLM of 8 dimensions on the paragraphs of tests/fixtures/text.txt. The current folder is ROOT."""
    config = clm.get_config("tiny")
    config.model.update(
        dict(num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=8, tie_embeddings=True)
    )
    config.data.update(dict(source="text", path="tests/fixtures/text.txt", document_per="paragraph", inputs_length=16))
    config.data.update(dict(heldout_fraction=0.3, num_sentinels=1, cache_dir=cache_dir))
    config.optimizer.update(dict(schedule="constant", warmup_steps=1))
    config.train.update(dict(steps=steps, batch_size=8, log_every=1, eval_every=2, eval_windows=8, checkpoint_every=2))
    config.train.update(dict(keep_checkpoints=1, trackers=()))
    return make_experiment(config.to_dict())
