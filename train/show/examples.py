"""Rows as training reads them, with the raw windows that they were made from, and taken apart into examples again."""

from typing import NamedTuple

import numpy as np

from contract.batch import Batch
from contract.windows import Windows
from data.batches import Batches, batches
from data.documents import Documents
from data.order import weights_at
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from train.experiment import Experiment

_CHUNK_POSITIONS = 1 << 17


class Chunk(NamedTuple):
    """Some rows of the run, one after another, whatever `train.batch_size` is."""

    windows: Windows
    batch: Batch


class Examples(NamedTuple):
    """E examples, in the order of their rows and segments."""

    rows: np.ndarray  # int [E], of the chunk
    segments: np.ndarray  # int [E], from 1
    denoiser_ids: np.ndarray  # int [E]
    raw: Sequences
    inputs: Sequences  # what the encoder reads; of a decoder alone, the tokens that are not scored
    targets: Sequences  # what is predicted; beside `selected`, all of the original
    scored: np.ndarray  # int [E], tokens
    selected: np.ndarray | None  # encoder_only: bool [E, W], the positions that are scored
    used: np.ndarray  # int [E], positions of the row, of all stacks
    share: np.ndarray  # float [E], positions of the row that fall to the example: used, and a part of the padding


def chunks(experiment: Experiment, documents: Documents) -> tuple[Batches, int]:
    """A dataset of `Chunk`s, and how many rows each has: together the rows of training's batches, in their order."""
    shape, collator = experiment.collator.shape, experiment.collator
    positions = shape.inputs_length + (shape.targets_length if shape.architecture == "encoder_decoder" else 0)
    num_rows = max(_CHUNK_POSITIONS // positions, 1)
    dataset = batches(
        documents,
        collator.specs,
        lambda windows, rows: Chunk(windows, collator(windows, rows)),
        batch_size=num_rows,
        examples_per_row=shape.examples_per_row,
        seed=experiment.seed,
        shuffle=True,
        rows=range(num_rows),
        pad_id=experiment.tokenizer.vocab.pad,
        plan=collator.plan,
    )
    return dataset, num_rows


def chunk_numbers(experiment: Experiment, num_chunks: int, chunk_rows: int) -> list[int]:
    """The chunks to look at: the first ones or, where the mixture changes for longer than these last, as many from all
    over the run up to where it has changed."""
    ends = [spec.ramp.end for spec in experiment.collator.specs if spec.ramp]
    last = max(ends, default=0) // (chunk_rows * experiment.collator.shape.examples_per_row) + 1
    if not ends or last < num_chunks:
        return list(range(num_chunks))
    return np.linspace(0, last, num_chunks).round().astype(int).tolist()


def expected_shares(experiment: Experiment, numbers: list[int], chunk_rows: int) -> np.ndarray:
    """The share of the windows of these chunks that each denoiser should have, float64 [denoisers]."""
    specs, size = experiment.collator.specs, chunk_rows * experiment.collator.shape.examples_per_row
    examples = (np.asarray(numbers)[:, None] * size + np.arange(size)).ravel()
    weights = weights_at([spec.weight for spec in specs], [spec.ramp for spec in specs], examples)
    return (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)


def sides(batch: Batch) -> list[str]:
    """The stacks that the batch feeds: "encoder", "decoder" or both."""
    return [side for side in ("encoder", "decoder") if f"{side}_segment_ids" in batch]


def take_apart(chunk: Chunk) -> Examples:
    """The examples of a chunk's rows. Example k of a row is its segment k + 1, on every side (contract/batch.py)."""
    windows, batch = chunk
    num_examples, num_rows = len(windows.row_ids), len(batch["example_source"])
    first = np.searchsorted(windows.row_ids, np.arange(num_rows))
    present = {side: batch[f"{side}_segment_ids"] > 0 for side in sides(batch)}
    example = {side: first[:, None] + batch[f"{side}_segment_ids"] - 1 for side in present}

    def per_example(side: str, chosen: np.ndarray) -> np.ndarray:
        return np.bincount(example[side][chosen], minlength=num_examples)

    def sequences(side: str, field: str, chosen: np.ndarray) -> Sequences:
        lengths, values = per_example(side, chosen), batch[f"{side}_{field}"]
        out = np.zeros((num_examples, lengths.max(initial=0)), values.dtype)
        out[valid_positions(lengths, out.shape[1])] = values[chosen]
        return Sequences(out, lengths)

    scored = {side: batch[f"{side}_loss_weights"] > 0 for side in present if f"{side}_loss_weights" in batch}
    selected, targets = None, Sequences(np.zeros((num_examples, 0), np.int32), np.zeros(num_examples, np.int64))
    if "encoder" in present:
        inputs = sequences("encoder", "input_tokens", present["encoder"])
        if "encoder" in scored:
            targets = sequences("encoder", "target_tokens", present["encoder"])
            selected = sequences("encoder", "loss_weights", present["encoder"]).tokens > 0
        if "decoder" in present:
            targets = sequences("decoder", "target_tokens", present["decoder"])
    else:
        inputs = sequences("decoder", "target_tokens", present["decoder"] & ~scored["decoder"])
        targets = sequences("decoder", "target_tokens", scored["decoder"])
    examples_in_row = np.bincount(windows.row_ids, minlength=num_rows)[windows.row_ids]
    used = sum(per_example(side, mask) for side, mask in present.items())
    padding = sum((~mask).sum(axis=1) for mask in present.values())
    return Examples(
        rows=windows.row_ids,
        segments=np.arange(num_examples) - first[windows.row_ids] + 1,
        denoiser_ids=windows.denoiser_ids,
        raw=Sequences(windows.tokens, windows.lengths),
        inputs=inputs,
        targets=targets,
        scored=sum(per_example(side, mask) for side, mask in scored.items()) + np.zeros(num_examples, int),
        selected=selected,
        used=used,
        share=used + padding[windows.row_ids] / examples_in_row,
    )
