"""Given texts under a run's own objective: their windows, and the batch of these, a row for each window."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contract import rng
from contract.batch import Batch
from contract.errors import ConfigError
from contract.windows import Windows, WindowSpec
from experiment.experiment import Experiment

Text = str | tuple[str, str] | np.ndarray  # a text, a prompt and its response, or ids, int [n]

_DENOISER = 0  # tag of the draw of a denoiser
_UNAVAILABLE = {"others": "pairs of texts", "labels": "texts with labels"}


class TextWindows(NamedTuple):
    """The windows of T texts, a row for each window, in the order of the texts."""

    windows: Windows
    owners: np.ndarray  # int [E], the text of each window
    denoiser_ids: np.ndarray  # int [T]


def text_windows(
    experiment: Experiment,
    texts: Sequence[Text],
    *,
    denoiser: str | None = None,
    seed: int = 0,
    cut: bool = False,
    needs_labels: bool = True,
    names: Sequence[str] | None = None,
) -> TextWindows:
    """Returns the windows of `texts`. A text is a document, with an EOS where the objective's windows have one.

    What is hidden in a text, and its denoiser, are a function of the seed and the text's tokens alone.

    Args:
      experiment: its objective.
      texts: for a run on prompts and responses, pairs of these.
      denoiser: the name of the denoiser; None: drawn for each text with the shares of the mixture (at its end, if they
        change during the run); not for data.rates="num_examples" with denoisers that read some of the corpora.
      seed: of the draws.
      cut: whether a text that is longer than a window becomes several windows; by default such a text is an error.
      needs_labels: False: of an objective on labelled texts, each text has the first class. The loss has no meaning.
      names: of the texts, in messages; None: "text 1", "text 2", ...

    Raises ConfigError for an objective whose examples are made of more than a text, an unknown denoiser, an empty text
    and a text that is too long.
    """
    if not len(texts):
        raise ConfigError("there are no texts: give at least one")
    for name in (name for row in experiment.denoisers for name in row.objective.extra_columns):
        if name in _UNAVAILABLE and (needs_labels or name != "labels"):
            raise ConfigError(
                f"objective.name={experiment.objective_name!r} makes examples of {_UNAVAILABLE[name]}, which a text "
                "alone is not: read the batches of the run's corpus instead"
            )
    specs, has_prompt = experiment.heldout_spec.windows, takes_pairs(experiment, denoiser)
    names = [f"text {number}" for number in range(1, len(texts) + 1)] if names is None else names
    tokens, prompt_lengths = zip(
        *(_tokens(experiment, text, has_prompt, name) for text, name in zip(texts, names, strict=True)), strict=True
    )
    keys = np.array([_hash(ids) for ids in tokens], np.uint64) ^ np.uint64(rng.seed_bits(seed, "texts"))
    chosen = _denoiser_ids(experiment, denoiser, rng.mix64(keys))
    pieces, owners, numbers = [], [], []
    for k, (ids, denoiser_id) in enumerate(zip(tokens, chosen, strict=True)):
        spec = specs[denoiser_id]
        ids = np.append(ids, np.int32(experiment.vocab.eos)) if spec.eos else ids
        parts = _cut(ids, prompt_lengths[k], spec, names[k], cut)
        pieces += parts
        owners += [k] * len(parts)
        numbers += range(len(parts))
    owners, numbers = np.array(owners), np.array(numbers)
    lengths = np.array(list(map(len, pieces)))
    padded = np.full((len(pieces), int(lengths.max())), experiment.vocab.pad, np.int32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(pieces)
    windows = Windows(
        tokens=padded,
        lengths=lengths,
        row_ids=np.arange(len(pieces), dtype=np.int32),
        keys=rng.mix64(keys[owners] + rng.GOLDEN * numbers.astype(np.uint64)),
        denoiser_ids=chosen[owners].astype(np.int32),
        prompt_lengths=np.array(prompt_lengths, np.int32)[owners],
        labels=None if needs_labels else np.zeros(len(pieces), np.int32),
        begins_document=numbers == 0,
        ends_document=np.append(owners[1:] != owners[:-1], True),
    )
    return TextWindows(windows, owners, chosen)


def takes_pairs(experiment: Experiment, denoiser: str | None) -> bool:
    """Returns whether a text of the run is a pair of strings, a prompt and its response.

    denoiser: the name of the denoiser that reads it; None: any. Raises ConfigError for None if they differ.
    """
    reads_prompts = {row.name: "prompt_lengths" in row.objective.extra_columns for row in experiment.denoisers}
    if denoiser in reads_prompts:
        return reads_prompts[denoiser]
    if len(set(reads_prompts.values())) > 1:
        of_pairs = [name for name, reads in reads_prompts.items() if reads]
        raise ConfigError(
            f"denoiser={denoiser!r} must be one of {', '.join(map(repr, reads_prompts))}: a text of "
            f"{', '.join(map(repr, of_pairs))} is a pair of a prompt and its response, and one of the others is not"
        )
    return all(reads_prompts.values())


def batch_of(experiment: Experiment, windows: Windows) -> Batch:
    """Returns the batch of `windows`, a row for each of them, with attention as at the end of the run."""
    return dataclasses.replace(experiment.collate, annealing_steps=0)(windows, len(windows.row_ids))


def _tokens(experiment: Experiment, text: Text, has_prompt: bool, where: str) -> tuple[np.ndarray, int]:
    """Returns the ids of a text, and the number of those of its prompt."""
    is_pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text)
    if is_pair != has_prompt or not (is_pair or isinstance(text, str | np.ndarray)):
        expected = "a pair of strings, a prompt and its response" if has_prompt else "a string or an array of ids"
        raise ConfigError(f"{where} must be {expected}, not {type(text).__name__}")
    if isinstance(text, np.ndarray):
        if text.ndim != 1 or text.dtype.kind not in "iu" or ((text < 0) | (text >= experiment.vocab.size)).any():
            raise ConfigError(f"{where} must be ids from 0 to {experiment.vocab.size - 1}, one-dimensional")
        parts = [text.astype(np.int32)]
    else:
        strings = text if is_pair else [text]
        parts = [experiment.tokenizer.encode_with_specials(part, (), where=where) for part in strings]
    ids = np.concatenate(parts)
    if not len(ids):
        raise ConfigError(f"{where} is empty: remove it")
    return ids, len(parts[0]) if is_pair else 0


def _cut(ids: np.ndarray, prompt_length: int, spec: WindowSpec, where: str, cut: bool) -> list[np.ndarray]:
    if spec.documents == "whole":
        of_parts = {"prompt": prompt_length, "response": len(ids) - prompt_length}
        for capacity in spec.capacities:
            needed = sum(length for part, length in of_parts.items() if getattr(capacity, part)) + capacity.special
            if needed > capacity.positions:
                raise ConfigError(
                    f"{where} takes {needed} positions of {capacity.field}={capacity.positions}: shorten it"
                )
        return [ids]
    if len(ids) > spec.raw_length and not cut:
        raise ConfigError(
            f"{where} has {len(ids)} tokens, and a window of {spec.name!r} has {spec.raw_length}: shorten or divide it"
        )
    return np.split(ids, range(spec.raw_length, len(ids), spec.raw_length))


def _denoiser_ids(experiment: Experiment, name: str | None, keys: np.ndarray) -> np.ndarray:
    """Returns the number of the task of each text, int [T]. keys: uint64 [T]."""
    if name is not None:
        tasks = experiment.tasks_of_denoisers
        if name not in tasks:
            raise ConfigError(f"denoiser={name!r} must be one of {', '.join(map(repr, tasks))}")
        return np.full(len(keys), tasks[name][0])  # of several corpora the first: the text is of neither
    if experiment.data.rates == "num_examples" and any(row.corpora for row in experiment.denoisers):
        names = ", ".join(map(repr, experiment.denoiser_names))
        raise ConfigError(
            f"denoiser=None must be one of {names}: with data.rates='num_examples' their shares depend on the "
            "corpora, which a text alone does not show"
        )
    spec = experiment.heldout_spec
    by_token = spec.mix_by == "token"
    weights = [windows.final_weight / (windows.raw_length if by_token else 1) for windows in spec.windows]
    ends = np.cumsum(weights) / sum(weights)
    drawn = rng.uniform(rng.fold_in(keys, _DENOISER), 1)[:, 0]
    return np.minimum(np.searchsorted(ends, drawn, side="right"), len(ends) - 1)


def _hash(ids: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=8).digest(), "little")
