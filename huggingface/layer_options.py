"""Options of layers that several classes have: local layers between global ones, and rotary positions."""

import math
from typing import Any

from contract.errors import ConfigError
from huggingface.config_json import Options
from models.config import ModelConfig

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # entries of layer_types and of rope_parameters


def layer_types(model: ModelConfig) -> list[str]:
    """Returns the option layer_types of a model."""
    return [GLOBAL if model.is_global(layer) else LOCAL for layer in range(model.num_layers)]


def global_every(options: Options, default: int, *, first_layer_global: bool) -> int:
    """Returns model.global_every from layer_types, or `default` where the option is missing.

    Raises ConfigError for layer_types in another order than every n-th layer global.

    first_layer_global: as model.first_layer_global.
    """
    types, num_layers = options["layer_types"], options["num_hidden_layers"]
    if types is None:
        return default
    is_list, first = isinstance(types, list) and len(types) == num_layers, int(first_layer_global)
    others = types[first:] if is_list else []  # than the first layer, which says nothing of their period
    every = others.index(GLOBAL) + 1 if GLOBAL in others else num_layers + 1 - first
    if not is_list or types != [LOCAL if (layer + 1 - first) % every else GLOBAL for layer in range(num_layers)]:
        place = "from the first on" if first_layer_global else "the last of n"
        raise ConfigError(
            f"config.json: layer_types={types} is not supported, only one entry for each layer, of which every n-th is "
            f"{GLOBAL!r}, {place}, and the others are {LOCAL!r}"
        )
    return every


def theta_of(options: Options, kind: str, older: str) -> float:
    """Returns the base of the wavelengths of the layers of a `kind`, or else the option `older`."""
    parameters, name = options["rope_parameters"] or {}, "rope_parameters"
    require_rope("rope_scaling", options["rope_scaling"], "default")
    if not isinstance(parameters, dict):
        raise ConfigError(f"config.json: {name}={parameters!r} is not supported, only an entry for each kind of layers")
    require_rope(f"{name}.{kind}", parameters.get(kind), "default")
    return rope_base((parameters.get(kind) or {}).get("rope_theta", options[older]), older)


_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # of every folder; models.positions.rotation has them


def rope_fields(options: Options, base: str = "rope_theta", part: float | None = None) -> dict[str, Any]:
    """Returns the fields of rotary embeddings.

    As in transformers 5, the entries are those of rope_scaling, or else of rope_parameters, or else the option `base`
    and `part`, which is None for a class that rotates all features of a head. Raises ConfigError for positions with
    another scaling than Llama 3.1's, for a part of the features where the class rotates all, and for a base, a scaling
    or a part that is not a number in its range.
    """
    rope, kind = {}, "default"
    for name in ("rope_parameters", "rope_scaling"):
        found = require_rope(name, options[name], "default", "llama3", rotates_all=part is None)
        rope, kind = (options[name], found) if options[name] else (rope, kind)
    fields = {
        "rope_theta": rope_base(rope.get("rope_theta", options[base]), base),
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0 if part is None else part),
    }
    if kind == "llama3":
        factor, length = rope.get("factor"), rope.get("original_max_position_embeddings")
        has_numbers = type(factor) in (int, float) and type(length) is int
        if not has_numbers or any(rope.get(name) != value for name, value in _LLAMA_3.items()):
            needed = "factor, original_max_position_embeddings, low_freq_factor=1.0 and high_freq_factor=4.0"
            raise ConfigError(f"config.json: the scaling {rope} is not supported: llama3 needs {needed}")
        fields |= {"rope_scaling_factor": float(factor), "rope_original_length": length}
    return fields


def rope_options(model: ModelConfig) -> dict[str, dict[str, Any]]:
    """Returns rope_parameters, which transformers 5 reads, and rope_scaling, which transformers 4 reads, if any."""
    rope = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.rope_scaling_factor == 1:
        return {"rope_parameters": rope}
    scaling = {"factor": model.rope_scaling_factor, "original_max_position_embeddings": model.rope_original_length}
    rope |= {"rope_type": "llama3"} | _LLAMA_3 | scaling
    return {"rope_scaling": rope, "rope_parameters": rope}


def require_rope(name: str, given: Any, *kinds: str, rotates_all: bool = True) -> str:
    """Returns the rope_type of the option `name`.

    Raises ConfigError if it is not one of `kinds`, for a partial_rotary_factor that is no number, and with
    `rotates_all` for one that is not 1.
    """
    rope = given or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    if kind not in kinds:
        raise ConfigError(f"config.json: {name}={given} is not supported, only rope_type={' or '.join(kinds)}")
    part = rope.get("partial_rotary_factor", 1.0)
    if type(part) not in (int, float) or (rotates_all and part != 1):
        allowed = "1.0" if rotates_all else "a number"
        raise ConfigError(f"config.json: partial_rotary_factor={part!r} of {name} is not supported, only {allowed}")
    return kind


def rope_base(theta: Any, name: str) -> float:
    """Returns the base of the wavelengths, the option `name`. Raises ConfigError if it is not a number above 0."""
    if type(theta) not in (int, float) or not 0 < theta < math.inf:
        raise ConfigError(f"config.json: {name}={theta!r} must be a number above 0")
    return float(theta)
