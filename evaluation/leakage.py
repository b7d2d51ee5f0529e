"""The text that a run trained on, and held-out text that is part of it."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from contract.errors import ConfigError
from data.windows.documents import Documents
from data.windows.leak_guard import is_trained_on
from experiment.experiment import Experiment
from huggingface.folder import is_huggingface_folder
from run.compiled_run import CompiledRun
from run.corpus import Corpora, describe_corpus, open_corpora
from run.restore import load_experiment
from workdir.workdir import Workdir

_NOT_BY_CHANCE = 100  # bytes of a text that two documents hardly have in common by chance


def check_start(experiment: Experiment, corpora: Corpora) -> list[str]:
    """Checks that the run of `train.init_from` did not train on held-out text of `corpora`, and returns notes.

    Includes the runs from which that run was started in turn. A note says where text could not be compared, because a
    corpus is not on this machine, has changed, or is that of an imported model. Raises ConfigError for trained text,
    unless train.init_from_overlap is "allow"; it is then a note.
    """
    notes = []
    for note, is_trained in _notes_on_starts(experiment, experiment, corpora):
        if is_trained and experiment.train.init_from_overlap == "error":
            raise ConfigError(
                f"train.init_from={experiment.train.init_from}: {note}: set the fields heldout_fraction, "
                "split_seed, split_by and heldout_path of data as in that run, and document_per too if its corpus is "
                "one file; or train.init_from_overlap='allow'"
            )
        notes.append(note)
    return notes


def _notes_on_starts(trained: Experiment, experiment: Experiment, scored: Corpora) -> Iterator[tuple[str, bool]]:
    """Yields notes on the runs from which `trained` was started, and whether each is of text trained on.

    experiment: of `scored`, on this machine.
    """
    path = trained.train.init_from
    seen: set[str] = set()
    while path and path not in seen:
        seen.add(path)
        workdir = Workdir(path, named_by="train.init_from")
        if not workdir.exists:
            yield f"held-out text was not compared with the training text of {workdir}, which does not exist", False
            return
        if is_huggingface_folder(workdir) or workdir.is_imported:
            yield f"held-out text was not compared with the training text of {workdir}, which is unknown", False
            return
        start = load_experiment(workdir, named_by="train.init_from")
        count, unknown = _count_trained(start, workdir, experiment, scored)
        if count:
            found = f"{count} of {len(scored.heldout_documents):,} held-out documents are training text of {workdir}"
            yield found, True
        if unknown:
            yield f"held-out text cannot be compared with all training text of {workdir}: {unknown}", False
        path = start.train.init_from


def describe_trained_on(trained: Experiment, workdir: Workdir, run: CompiledRun) -> list[str]:
    """Returns notes on the scored text of `run`, relative to the training text of `trained`, the run in `workdir`.

    Includes the runs from which `trained` was started, as check_start does.
    """
    if workdir.is_imported:
        return ["the scored text was not compared with the training text of the model, which is unknown"]
    count, unknown = _count_trained(trained, workdir, run.experiment, run.corpora)
    notes, data, num_heldout = [], run.experiment.data, len(run.corpora.heldout_documents)
    if workdir.config().get("corpus", {}).get("fingerprint") != run.corpora.content_digest:
        cut = "" if data.sources else f", data.document_per={data.document_per!r}"
        notes.append(f"{describe_corpus(data)}{cut} is not the corpus that the run was trained on")
    if count:
        notes.append(f"{count} of {num_heldout:,} held-out documents are training text of the run")
    if unknown:
        notes.append(f"the scored text cannot be compared with all training text of the run: {unknown}")
    try:
        notes += [note for note, _ in _notes_on_starts(trained, run.experiment, run.corpora)]
    except ConfigError as error:
        notes.append(f"the scored text was not compared with the training text of the run's starts ({error})")
    return notes


def _count_trained(trained: Experiment, workdir: Workdir, experiment: Experiment, scored: Corpora) -> tuple[int, str]:
    """The held-out documents of `scored` that `trained` trained on, and why they may not be all; "" if they are.

    experiment: of `scored`, on this machine.
    """
    of_machine = {name: getattr(experiment.data, name) for name in ("cache_dir", "read_by_range")}
    data = dataclasses.replace(trained.data, **of_machine)
    try:
        corpora = open_corpora(dataclasses.replace(trained, data=data, new_store_dir=experiment.new_store_dir))
    except ConfigError as error:
        return 0, f"its corpus cannot be read here ({error})"
    same_text = workdir.config().get("corpus", {}).get("fingerprint") == corpora.content_digest
    return num_trained(scored, corpora), "" if same_text else "its corpus has changed since"


def num_trained(scored: Corpora, corpora: Corpora) -> int:
    """Returns how many held-out documents of `scored` are training text of at least one of `corpora`."""
    return sum(_num_trained(documents, corpora) for documents in scored.heldout_documents.by_corpus)


def _num_trained(documents: Documents, corpora: Corpora) -> int:
    found = [
        is_trained_on(documents, corpus.train_documents, corpus.heldout_documents, not_by_chance=_NOT_BY_CHANCE)
        for corpus in corpora.each
    ]
    return int(np.logical_or.reduce(found).sum())
