"""Prints the summary of a run, with warnings, before the first step."""

import os

import jax
import numpy as np

from cluster.cluster import unjoined_warnings
from cluster.devices import accelerator_warnings
from command.program import plural
from data.tokenizers.base import appended_names
from data.windows.corpus_statistics import HELDOUT_TOKENS, coverage_warnings, describe_coverage, trigram_loss
from data.windows.document_filter import describe_excluded
from data.windows.split import split_warnings
from experiment.experiment import Experiment
from models.placement import platform_of
from run.compiled_run import CompiledRun, attention_of
from run.corpus import Corpus, describe_epochs, describe_rates, of_corpus
from run.memory import bias_warnings
from train.display import Display

_COUNTED_BATCHES = 32  # from which the raw tokens of a step are estimated


def print_summary(run: CompiledRun, display: Display, workdir: str) -> None:
    """Prints the lines of `summary_lines`, the documents that are excluded, and the warnings."""
    lines = summary_lines(run, workdir)
    width = max(10, *map(len, lines))
    for name, value in lines.items():
        display.message(f"{name:>{width}}  {value}")
    corpus_warnings = []
    for number, corpus in enumerate(run.corpora.each):
        of, specs = of_corpus(corpus.name), [spec for spec in run.experiment.window_specs if spec.corpus == number]
        for documents in (corpus.train_documents, corpus.heldout_documents):
            for reason in describe_excluded(documents, specs):
                display.message(f"{'excluded':>{width}}  {of}{reason}")
        skipped, uncovered = _skipped_input_warnings(corpus), coverage_warnings(corpus.store, run.experiment.tokenizer)
        few = split_warnings(corpus.heldout_documents, run.corpora.split)
        corpus_warnings += [of + line for line in (*skipped, *uncovered, *few)]
        if run.experiment.data.near_duplicates == "keep":
            corpus_warnings += _trained_text_warnings(corpus)
    of_machine = [*accelerator_warnings(), *unjoined_warnings(os.environ)]
    of_kernel = bias_warnings(run.experiment, platform_of(jax.devices()[0]), run.mesh.shape)
    for warning in (*run.experiment.warnings, *of_kernel, *corpus_warnings, *of_machine):
        display.warn(warning)


def summary_lines(run: CompiledRun, workdir: str) -> dict[str, str]:
    """Returns name -> text for each line of the summary, in order.

    The baseline is the loss of a model that knows only the frequencies of the tokens in the corpus. The trigram model's
    loss is what a language model must beat to have learned more than spelling.
    """
    experiment, devices = run.experiment, jax.devices()
    data, model, config, optimizer = experiment.data, experiment.model, experiment.train, experiment.optimizer
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    mesh = " x ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())
    targets = f" + {data.targets_length}" if model.architecture == "encoder_decoder" else ""
    accumulation = f", in {config.grad_accum_steps} microbatches" if config.grad_accum_steps > 1 else ""
    lines = {
        "workdir": workdir,
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform}{processes}); mesh {mesh}",
        "model": f"{model.architecture}, {experiment.num_params / 1e6:,.2f}M parameters, {model.dtype}",
        "attention": "{} ({})".format(*attention_of(experiment, platform_of(devices[0]))),
        **_corpus_lines(run),
        "vocabulary": _describe_vocabulary(experiment),
        "optimizer": f"{optimizer.name}, learning rate {optimizer.learning_rate:g} after {optimizer.warmup_steps:,} "
        f"warm-up steps, then {optimizer.schedule}",
        "batch": f"{config.batch_size} rows of {data.inputs_length}{targets} tokens{accumulation}",
        "windows": _windows_line(experiment),
    }
    lines |= {name: text for name, text in (("teacher", experiment.teacher), ("memory", experiment.chosen)) if text}
    if experiment.tokenizer.adds_pad or experiment.vocab.pad == experiment.vocab.eos:
        lines["padding"] = _describe_padding(experiment)
    of_epochs = config.epochs and describe_epochs(experiment, run.corpora.train_documents)
    lines["steps"] = of_epochs or _describe_steps(run)
    if experiment.learner.language_model(run.state_shapes.params) is not None:
        for number, corpus in enumerate(run.corpora.each):
            entropy = corpus.store.unigram_entropy()
            bits = entropy / np.log(2)
            lines[_line_name("baseline", corpus)] = (
                f"{entropy:.3f} nats per token, {bits:.3f} bits: the unigram entropy of the corpus"
            )
            if experiment.byte_metric == "bits_per_byte":  # otherwise its loss does not compare with the run's
                lines[_line_name("trigram", corpus)] = _trigram_line(run, number)
    return lines


def _describe_steps(run: CompiledRun) -> str:
    """Returns the number of steps, and how often they read the text, from the windows of some of the steps.

    These are the first ones, since another epoch has another order of the documents, whose computation takes seconds
    for millions of documents; where the shares of denoisers change, they are from the whole run.
    """
    dataset, steps = run.train_dataset, run.experiment.train.steps
    last = steps - 1 if any(dataset.ramps) else _COUNTED_BATCHES - 1
    counted = np.linspace(0, last, _COUNTED_BATCHES).astype(int).tolist()
    tokens = sum(dataset.count_windows(n, 1).raw_tokens for n in counted) * (steps / _COUNTED_BATCHES)
    corpora = run.experiment.tasks_of_corpora or {"the training text": range(len(tokens))}
    epochs = {name: sum(tokens[k] / dataset.epoch_tokens[k] for k in tasks) for name, tasks in corpora.items()}
    read = ", ".join(f"{number:.3g} epochs of {name}" for name, number in epochs.items())
    return f"{steps:,}: about {count_text(int(tokens.sum()))} raw tokens, {read}"


def _describe_padding(experiment: Experiment) -> str:
    pad = f"id {experiment.vocab.pad}"
    if experiment.vocab.pad == experiment.vocab.eos:
        return f"{pad}, which is EOS: data.append_special_tokens=False adds no pad id"
    return f"{pad}, a row added to the vocabulary: {experiment.data.tokenizer} has no pad id"


def _line_name(name: str, corpus: Corpus) -> str:
    return f"{name} {corpus.name}".strip()


def _corpus_lines(run: CompiledRun) -> dict[str, str]:
    """Returns the lines about each corpus, and about the rates of several."""
    lines, data = {}, run.experiment.data
    for corpus, own in zip(run.corpora.each, data.of_corpora().values(), strict=True):
        lines[_line_name("corpus", corpus)] = (
            f"{own.source}: {count_text(corpus.store.meta['num_tokens'])} tokens; "
            f"{plural(len(corpus.train_documents), 'document')} to train on, {len(corpus.heldout_documents):,} held out"
            + f" for validation; {len(corpus.test_documents):,} of the test text are not read"
            * (own.heldout == "validation")
        )
        lines[_line_name("tokens", corpus)] = describe_coverage(corpus.store)
        elsewhere = f"; {corpus.elsewhere:,} are training text of other corpora" if data.sources else ""
        dropped = ", where they are dropped" if corpus.elsewhere and data.near_duplicates == "drop" else ""
        lines[_line_name("copies", corpus)] = str(corpus.overlap) + elsewhere + dropped
    if data.sources:
        lines["rates"] = describe_rates(data, run.corpora.factors)
    return lines


def _windows_line(experiment: Experiment) -> str:
    """Returns the lengths of the windows of each denoiser."""
    found = {}
    for name, tasks in experiment.tasks_of_denoisers.items():
        is_whole = [experiment.window_specs[k].documents == "whole" for k in tasks]
        lengths = [experiment.window_length(k) for k, whole in zip(tasks, is_whole, strict=True) if not whole]
        texts = ["/".join(dict.fromkeys(lengths))] * bool(lengths) + ["whole documents"] * any(is_whole)
        found[name] = f"{name} {' and '.join(texts)}"
    if all(spec.documents == "whole" for spec in experiment.window_specs):
        return "whole documents, as many as fit in a row"
    return f"{', '.join(found.values())} raw tokens"


def _describe_vocabulary(experiment: Experiment) -> str:
    """Returns the number of ids, and of rows in the embedding tables, which are padded."""
    size, rows = experiment.vocab.size, experiment.model.vocab_size
    appended = len(appended_names(experiment.vocab))
    return (
        f"{size:,} ids, {appended:,} of them appended to the tokenizer's; embedding tables of {rows:,} rows, "
        f"{rows - size:,} of them padding"
    )


def _trigram_line(run: CompiledRun, number: int) -> str:
    """Returns the loss of a trigram model on the text that an evaluation reads.

    number: of the corpus that the trigram model is of.
    """
    train_documents = run.corpora.each[number].train_documents
    places = run.heldout.places(HELDOUT_TOKENS, number)
    loss = trigram_loss(train_documents, places, run.experiment.vocab.eos)
    return (
        f"{loss.nats:.3f} nats per token, {loss.nats / np.log(2):.3f} bits: a trigram model "
        f"({count_text(loss.train_tokens)} training tokens)"
    )


def count_text(count: int) -> str:
    """Returns a number of tokens: in millions from 100,000 on, in full below."""
    return f"{count / 1e6:,.1f}M" if count >= 100_000 else f"{count:,}"


def _trained_text_warnings(corpus: Corpus) -> list[str]:
    """Returns a warning for each other corpus that trains on held-out text of `corpus`."""
    return [
        f"{count:,} of {len(corpus.heldout_documents):,} held-out documents of corpus {corpus.name!r} are training "
        f"text of corpus {other!r}, so held-out losses may be too low: data.near_duplicates='drop' drops them"
        for other, count in corpus.trained_by.items()
    ]


def _skipped_input_warnings(corpus: Corpus) -> list[str]:
    """Returns warnings about files, lines and records that could not be read."""
    meta, warnings = corpus.store.meta, []
    if files := meta["skipped_files"]:
        warnings.append(f"{len(files)} files could not be read and are excluded; the first is {files[0]}")
    if meta["skipped_lines"]:
        first = meta["first_skipped_line"]
        warnings.append(
            f"{meta['skipped_lines']} lines or records could not be read and are excluded; the first is {first}"
        )
    return warnings
