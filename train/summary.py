"""Prints the summary of a run, with warnings, before the first step."""

import os

import jax
import numpy as np

from data.coverage import coverage_warnings, describe_coverage
from data.eligible import describe_excluded
from data.trigram import trigram_loss
from models.placement import platform_of
from train.accelerators import accelerator_warnings
from train.counters import Counters
from train.display import Display
from train.distributed import gpus_of_node
from train.epochs import describe_epochs
from train.experiment import Experiment
from train.run import Run, attention_of


def print_summary(run: Run, display: Display, workdir: str) -> None:
    """Prints the lines of `summary_lines`, the documents that are excluded, and the warnings."""
    for name, value in summary_lines(run, workdir).items():
        display.message(f"{name:>10}  {value}")
    for documents in (run.train_documents, run.heldout_documents):
        for reason in describe_excluded(documents, run.experiment.window_specs):
            display.message(f"{'excluded':>10}  {reason}")
    corpus_warnings = (*_skipped_input_warnings(run), *coverage_warnings(run.store))
    for warning in (*run.experiment.warnings, *corpus_warnings, *accelerator_warnings()):
        display.warn(warning)


def summary_lines(run: Run, workdir: str) -> dict[str, str]:
    """Returns name -> text for each line of the summary, in order.

    The baseline is the loss of a model that knows only the frequencies of the tokens in the corpus. The trigram model's
    loss is what a language model must beat to have learned more than spelling.
    """
    experiment, store, devices = run.experiment, run.store, jax.devices()
    data, model, config = experiment.data, experiment.model, experiment.train
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    if devices[0].platform == "gpu":
        processes += ", {} of the {} GPUs of this node".format(*gpus_of_node(os.environ, jax.local_device_count()))
    mesh = " x ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())
    targets = f" + {data.targets_length}" if model.architecture == "encoder_decoder" else ""
    accumulation = f", in {config.grad_accum_steps} microbatches" if config.grad_accum_steps > 1 else ""
    if data.documents == "whole":
        windows = "whole documents, as many as fit in a row"
    else:
        lengths = (f"{name} {experiment.window_length(k)}" for k, name in enumerate(experiment.denoiser_names))
        windows = f"{', '.join(lengths)} raw tokens"
    lines = {
        "workdir": workdir,
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform}{processes}); mesh {mesh}",
        "model": f"{model.architecture}, {experiment.num_params / 1e6:,.2f}M parameters, {model.dtype}",
        "attention": "{} ({})".format(*attention_of(experiment, platform_of(devices[0]))),
        "corpus": (
            f"{data.source}: {count_text(store.meta['num_tokens'])} tokens; "
            f"{len(run.train_documents):,} documents to train on, {len(run.heldout_documents):,} held out"
        ),
        "tokens": describe_coverage(store),
        "copies": str(run.overlap),
        "batch": f"{config.batch_size} rows of {data.inputs_length}{targets} tokens{accumulation}",
        "windows": windows,
    }
    if experiment.tokenizer.adds_pad:
        lines["padding"] = f"id {experiment.vocab.pad}, a row added to the vocabulary: {data.tokenizer} has no pad id"
    if experiment.vocab.pad == experiment.vocab.eos:
        lines["padding"] = f"id {experiment.vocab.pad}, which is EOS: data.append_special_tokens=False adds no pad id"
    if config.ema_decay:
        lines["average"] = f"evaluations read averaged parameters: train.ema_decay={config.ema_decay:g}"
    if config.epochs:
        lines["steps"] = describe_epochs(experiment, run.train_documents)
    if experiment.learner.language_model(run.state_shapes.params) is not None:
        entropy = store.unigram_entropy()
        bits = entropy / np.log(2)
        lines["baseline"] = f"{entropy:.3f} nats per token, {bits:.3f} bits: the unigram entropy of the corpus"
        lines["trigram"] = _trigram_line(run)
    return lines


def _trigram_line(run: Run) -> str:
    """Returns the loss of a trigram model on the text that an evaluation reads, and what the loss compares with."""
    loss = trigram_loss(run.train_documents, run.heldout, run.experiment.vocab.eos)
    is_scored = run.experiment.byte_metric == "bits_per_byte"
    compared = "" if is_scored else ", of text in its order, which is not what this objective scores"
    return (
        f"{loss.nats:.3f} nats per token, {loss.nats / np.log(2):.3f} bits: a trigram model of "
        f"{count_text(loss.train_tokens)} training tokens, on {count_text(loss.heldout_tokens)} tokens of the held-out "
        f"windows that an evaluation reads{compared}"
    )


def count_text(count: int) -> str:
    """Returns a number of tokens: in millions from 100,000 on, in full below."""
    return f"{count / 1e6:,.1f}M" if count >= 100_000 else f"{count:,}"


def print_shares(experiment: Experiment, counters: Counters, display: Display) -> None:
    """Prints a table of the shares of a mixture: those that were set, and those of the examples and raw tokens so far.

    Prints nothing without a mixture, and before the first step.
    """
    shares, mix_by = counters.shares(), experiment.config["objective"].get("mix_by")
    if not shares:
        return
    denoisers, width = experiment.denoisers, max(12, *map(len, experiment.denoiser_names))
    first, last = (sum(getattr(d, name) for d in denoisers) for name in ("weight", "final_weight"))
    display.message(f"{'shares':>{width}}  {'set, by ' + mix_by:>16}  {'of examples':>12}  {'of raw tokens':>14}")
    for denoiser in denoisers:
        begin, end = f"{denoiser.weight / first:.4f}", f"{denoiser.final_weight / last:.4f}"
        as_set = begin if begin == end else f"{begin} to {end}"
        examples, tokens = (shares[f"{metric}/{denoiser.name}"] for metric in ("example_share", "token_share"))
        display.message(f"{denoiser.name:>{width}}  {as_set:>16}  {examples:>12.4f}  {tokens:>14.4f}")


def _skipped_input_warnings(run: Run) -> list[str]:
    """Returns warnings about files and lines that could not be read."""
    meta, warnings = run.store.meta, []
    if files := meta["skipped_files"]:
        warnings.append(f"{len(files)} files could not be read and are excluded; the first is {files[0]}")
    if meta["skipped_lines"]:
        first = meta["first_skipped_line"]
        warnings.append(f"{meta['skipped_lines']} lines could not be read and are excluded; the first is {first}")
    return warnings
