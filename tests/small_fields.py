"""The fields of a config with tiny sizes. Imports that config alone, since many processes of the tests read one."""

import importlib

SMALL_OBJECTIVE = {
    "classification": {"classes": ("a", "b")},
    "electra": {"generator_size": 0.5},
    "fim": {"min_document_length": 8},
    "multi_token_prediction:deepseek_v3": {"denoisers": {"fim": {"min_document_length": 8}}},
    "masked_diffusion:padded_response": {"padded_length": 16},
}
SMALL_MODEL = {"num_layers": 2, "d_model": 32, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "d_ff": 48}


def small_config(name: str, architecture: str, **overrides):
    """A config with tiny sizes and two steps, as nested dicts.

    Args:
      name: a file of configs/, or "file:preset".
      architecture: `model.architecture`.
      **overrides: config fields, with __ for the dot: `data__inputs_length=8`.
    """
    config_name, _, preset = name.partition(":")
    config = importlib.import_module(f"configs.{config_name}").get_config(preset or "tiny")
    config.objective.update(SMALL_OBJECTIVE.get(config_name, {}) | SMALL_OBJECTIVE.get(name, {}))
    config.model.update(SMALL_MODEL | {"architecture": architecture})
    config.data.update({"inputs_length": 40, "targets_length": 40, "num_sentinels": 100})
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 8, "log_every": 1, "eval_every": 2, "eval_windows": 8})
    config.train.checkpoint_every = 2
    if "end_step" in config.objective:  # the schedule of a mixture, over the two steps
        config.objective.update({"begin_step": 0, "end_step": 2})
    fields = config.to_dict()
    for field, value in overrides.items():
        section, _, name = field.rpartition("__")
        (fields[section] if section else fields)[name] = value
    return fields
