"""The text of an experiment, and whether it is the text of a run."""

import dataclasses
import os

from data.documents import Documents
from data.near_duplicates import Overlap, near_duplicates
from data.split import split_documents
from data.store import TokenStore, open_or_build
from train.experiment import Experiment
from train.run_config import read_config


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The text of an experiment: the attributes of train.run.Run with the same names."""

    store: TokenStore
    train_documents: Documents
    heldout_documents: Documents
    overlap: Overlap


def open_corpus(experiment: Experiment, *, show_progress: bool = True) -> Corpus:
    """Opens or builds the token store of an experiment and splits its documents.

    show_progress: whether to show a bar while the token store is built.
    """
    data = experiment.data
    store = open_or_build(data, experiment.tokenizer, progress=show_progress, new_store_dir=experiment.new_store_dir)
    train_documents, heldout_documents = split_documents(store, data.split)
    train_documents, overlap = near_duplicates(train_documents, heldout_documents, data.near_duplicates)
    return Corpus(store, train_documents, heldout_documents, overlap)


def describe_changed_corpus(workdir: str | os.PathLike, experiment: Experiment, store: TokenStore) -> str:
    """Returns a line if `store`, of `experiment`, has another text than the run in `workdir`; "" if it has not.

    "" too if the text of the run is unknown, as that of an imported model.
    """
    fingerprint, data = (read_config(workdir).get("corpus") or {}).get("fingerprint"), experiment.data
    if fingerprint in (None, store.content_digest):
        return ""
    path = f", data.path={data.path!r}" if data.path else ""
    return (
        f"{workdir}: the corpus, data.source={data.source!r}{path}, has changed since the run was trained "
        f"(corpus.fingerprint={store.content_digest}, and {fingerprint} in config.json): restore its files"
    )
