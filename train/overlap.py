"""The text that a run trained on, and held-out text that is part of it."""

import dataclasses
import os

from contract.errors import ConfigError
from data.documents import Documents
from data.split import split_documents, trained_on
from data.store import open_or_build
from train.experiment import Experiment
from train.restore import load_experiment
from train.run import Run


def check_start(run: Run) -> list[str]:
    """Checks that the run of `train.init_from` did not train on held-out text of `run`, and returns notes.

    Includes the runs from which that run was started in turn. A note says where text could not be compared, because a
    corpus is not on this machine. Raises ConfigError for trained text, unless train.init_from_overlap is "allow"; it is
    then a note.
    """
    notes, workdir = [], run.experiment.train.init_from
    seen: set[str] = set()
    while workdir and workdir not in seen:
        seen.add(workdir)
        if not os.path.isdir(workdir):
            notes.append(f"held-out text was not compared with the training text of {workdir}, which does not exist")
            break
        start = load_experiment(workdir)
        count = _trained_documents(start, run)
        found = f"{count} of {len(run.heldout_documents):,} held-out documents are training text of {workdir}"
        if count is None:
            notes.append(
                f"held-out text was not compared with the training text of {workdir}, whose corpus "
                f"(data.source={start.data.source!r}, data.path={start.data.path!r}) cannot be read here"
            )
        elif count and run.experiment.train.init_from_overlap == "error":
            raise ConfigError(
                f"train.init_from={run.experiment.train.init_from}: {found}: set the fields heldout_fraction, "
                "split_seed, split_by and heldout_path of data as in that run, or train.init_from_overlap='allow'"
            )
        elif count:
            notes.append(found)
        workdir = start.train.init_from
    return notes


def describe_trained_on(trained: Experiment, run: Run) -> list[str]:
    """Returns notes on held-out text of `run` that is training text of `trained`."""
    count = _trained_documents(trained, run)
    if count is None:
        return ["the scored text was not compared with the run's training text, whose corpus cannot be read here"]
    if not count:
        return []
    return [f"{count} of {len(run.heldout_documents):,} held-out documents are training text of the run"]


def _trained_documents(trained: Experiment, run: Run) -> int | None:
    """The number of held-out documents of `run` that `trained` trained on; None if its corpus cannot be read."""
    documents = _train_documents(trained, run)
    return None if documents is None else trained_on(run.heldout_documents, documents)


def _train_documents(trained: Experiment, run: Run) -> Documents | None:
    data = dataclasses.replace(trained.data, cache_dir=run.experiment.data.cache_dir)
    try:
        store = open_or_build(data, trained.tokenizer, progress=False)
    except ConfigError:
        return None
    return split_documents(store, data.split)[0]
