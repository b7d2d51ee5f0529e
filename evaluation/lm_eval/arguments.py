"""What --model_args and a task's generation_kwargs may contain."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from contract.errors import ConfigError
from generate.sampling import Sampling

_SAMPLING = ("temperature", "top_p", "top_k")
_MAX_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names that lm-eval accepts
_GENERATION = ("until", "max_gen_toks", "do_sample", *_SAMPLING)
# Arguments of other models' decoding algorithms, with the values that change nothing.
_NEUTRAL = {"num_beams": (1,), "num_return_sequences": (1,), "repetition_penalty": (1,), "length_penalty": (1,)}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The fields of --model_args, and the flags that lm-eval adds to them.

    workdir: the folder of the run.
    step: the checkpoint; None: the newest.
    mode: a mode token, such as [S]; None: that of the first denoiser that continues texts.
    batch_size: rows of a batch, or "auto": as many as fit a number of positions. lm-eval's "auto:N" is "auto".
    max_batch_size: the most rows of a batch with "auto"; None: no limit.
    max_gen_toks: the most tokens of an answer where a task names no number; None: 256, or half a row if that is less.
    seed: of sampled answers.
    device, trust_remote_code: without effect. JAX chooses the device, and a run contains no code.
    """

    workdir: str
    step: int | None = None
    mode: str | None = None
    batch_size: int | str = "auto"
    max_batch_size: int | None = None
    max_gen_toks: int | None = None
    seed: int = 0
    device: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> "Arguments":
        """Returns the checked arguments. Raises ConfigError for an unknown name or value, and without a workdir."""
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ConfigError(f"--model_args has the unknown {unknown[0]}={given[unknown[0]]}: use {', '.join(names)}")
        if "workdir" not in given:
            raise ConfigError("--model_args has no workdir: write --model_args workdir=RUN, the folder of a run")
        if not isinstance(given["workdir"], str):  # lm-eval parses a folder "1" as a number
            raise ConfigError(f"--model_args workdir={given['workdir']} is read as a number: write ./ before it")
        arguments = cls(**given)
        for name, least in {"step": 0, "max_batch_size": 1, "max_gen_toks": 1, "seed": 0}.items():
            value = getattr(arguments, name)
            if value is not None and (type(value) is not int or not least <= value < 2**32):
                raise ConfigError(f"--model_args {name}={value} must be an integer of {least} or more")
        _rows(arguments.batch_size)
        return arguments

    @property
    def rows_per_batch(self) -> int | None:
        """The most rows of a batch; None: as many as fit."""
        return _rows(self.batch_size) or self.max_batch_size


def _rows(batch_size: int | str) -> int | None:
    """The number of rows of --batch_size; None for "auto". Raises ConfigError for another value."""
    name = str(batch_size)
    if name.partition(":")[0] == "auto":
        return None
    if not name.isdecimal() or int(name) < 1:
        raise ConfigError(f"--batch_size={name} must be auto, or a number of rows of 1 or more")
    return int(name)


@dataclasses.dataclass(frozen=True)
class GenerationArguments:
    """The checked generation_kwargs of a request."""

    until: tuple[str, ...]  # stop strings
    max_tokens: int
    sampling: Sampling


def generation_arguments(given: Mapping[str, Any], default_max_tokens: int) -> GenerationArguments:
    """Returns the generation_kwargs of a request, normalized as for lm-eval's own models. A null argument is not set.

    Raises ConfigError for an unsupported argument, such as num_beams=4, and for values that cannot work.
    """
    given = {name: _checked(name, value) for name, value in given.items() if value is not None}
    normalized: dict[str, Any] = dict(normalize_gen_kwargs(given, default_max_tokens))
    for name, value in normalized.items():
        if name not in _GENERATION and value not in _NEUTRAL.get(name, (None,)):
            raise ConfigError(f"generation_kwargs: {name}={value} is not supported: use {', '.join(_GENERATION)}")
    until = tuple(stop for stop in normalized["until"] if stop)
    if not all(isinstance(stop, str) for stop in until):
        raise ConfigError(f"generation_kwargs: until={normalized['until']} must be strings")
    if normalized["max_gen_toks"] < 1:
        raise ConfigError(f"generation_kwargs: max_gen_toks={normalized['max_gen_toks']} must be 1 or more")
    temperature = float(normalized.get("temperature", 1.0)) if normalized["do_sample"] else 0.0
    sampling = Sampling(temperature, normalized.get("top_k", 0), normalized.get("top_p", 1.0))
    if not 0 <= sampling.temperature < float("inf") or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
        values = ", ".join(f"{name}={normalized[name]}" for name in _SAMPLING if name in normalized)
        raise ConfigError(f"generation_kwargs: {values} must satisfy 0 <= temperature, 0 <= top_k, 0 < top_p <= 1")
    return GenerationArguments(until, normalized["max_gen_toks"], sampling)


def _checked(name: str, value: Any) -> Any:
    """Returns the value of an argument, numbers as int or float. They may be strings: YAML reads 1e-3 as one.

    Raises ConfigError for a value that is not a number, not whole, or not a boolean, where it must be.
    """
    if name == "do_sample" and not isinstance(value, bool):
        raise ConfigError(f"generation_kwargs: do_sample={value!r} must be true or false")
    if name not in (*_SAMPLING, *_MAX_TOKENS):
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_whole = name == "top_k" or name in _MAX_TOKENS
    if math.isnan(number) or (is_whole and not number.is_integer()):
        raise ConfigError(f"generation_kwargs: {name}={value!r} must be {'an integer' if is_whole else 'a number'}")
    return int(number) if is_whole else number
