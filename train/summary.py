"""What a person should know before the first step: one short summary, and a loud word where something looks wrong."""

import glob
import os

import jax
import numpy as np

from data.eligible import describe_excluded
from models.placement import platform_of
from train.display import Display
from train.run import Run, attention_of


def print_summary(run: Run, display: Display, workdir: str) -> None:
    """Prints devices, mesh, parameters, corpus, batch, windows and the entropy to beat; then the warnings."""
    for name, value in summary_lines(run, workdir).items():
        display.message(f"{name:>10}  {value}")
    for documents in (run.train_documents, run.heldout_documents):
        for what in describe_excluded(documents, run.experiment.window_specs):
            display.message(f"{'left out':>10}  {what}")
    for warning in (*run.experiment.warnings, *_skipped(run), *accelerator_warning()):
        display.warn(warning)


def summary_lines(run: Run, workdir: str) -> dict[str, str]:
    """Name -> text, in the order of the summary."""
    experiment, store, devices = run.experiment, run.store, jax.devices()
    data, model, config = experiment.data, experiment.model, experiment.train
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    mesh = " x ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())
    targets = f" + {data.targets_length}" if model.architecture == "encoder_decoder" else ""
    accumulation = f", in {config.grad_accum_steps} parts" if config.grad_accum_steps > 1 else ""
    specs, collator = experiment.window_specs, experiment.collate
    windows = ", ".join(f"{spec.name} {collator.window(k)}" for k, spec in enumerate(specs)) + " raw tokens"
    if data.documents == "whole":
        windows = "whole documents, as many as fit in a row"
    entropy = store.unigram_entropy()
    to_beat = f"{entropy:.3f} nats a token, {entropy / np.log(2):.3f} bits: the corpus' unigram entropy"
    predicts_tokens = experiment.learner.language_model(run.state_shapes.params) is not None
    return {
        "workdir": workdir,
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform}{processes}); mesh {mesh}",
        "model": f"{model.architecture}, {run.num_params / 1e6:,.2f}M parameters, {experiment.config['precision']}",
        "attention": "{} ({})".format(*attention_of(experiment, platform_of(devices[0]))),
        "corpus": (
            f"{data.source}: {store.meta['num_tokens'] / 1e6:,.1f}M tokens; "
            f"{len(run.train_documents):,} documents to train on, {len(run.heldout_documents):,} held out"
        ),
        "batch": f"{config.batch_size} rows of {data.inputs_length}{targets} tokens{accumulation}",
        "windows": windows,
    } | ({"to beat": to_beat} if predicts_tokens else {})


def _skipped(run: Run) -> list[str]:
    meta, warnings = run.store.meta, []
    if files := meta["skipped_files"]:
        warnings.append(f"{len(files)} files could not be read and are left out, {files[0]} among them")
    if meta["skipped_lines"]:
        first = meta["first_skipped_line"]
        warnings.append(f"{meta['skipped_lines']} lines could not be read and are left out, {first} the first")
    return warnings


def accelerator_warning() -> list[str]:
    """A warning where JAX runs on the CPU of a machine that has a GPU or a TPU and nobody asked for the CPU."""
    if jax.default_backend() != "cpu" or "cpu" in os.environ.get("JAX_PLATFORMS", ""):
        return []
    if glob.glob("/dev/nvidia[0-9]*"):
        found, extra = "an NVIDIA GPU", "cuda"
    elif glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"):
        found, extra = "a TPU", "tpu"
    else:
        return []
    return [f"this machine has {found}, but JAX runs on the CPU: pip install -e '.[{extra}]', or set JAX_PLATFORMS=cpu"]
