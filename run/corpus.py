"""The text of an experiment, the steps of its epochs, and whether it is the text of a run."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.sources.gym import CUT
from data.store.store import TokenStore, open_or_build
from data.windows.document_filter import check_classes, eligible
from data.windows.documents import Documents, MixedDocuments, rate_factors, rates
from data.windows.leak_guard import Overlap, is_trained_on, near_duplicates
from data.windows.split import Split, heldout_digest, split_documents
from data.windows.windowing import windows_per_epoch
from experiment.config import DataConfig
from experiment.experiment import Experiment, make_experiment
from experiment.tasks import check_different, corpus_error
from workdir.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Corpus:
    """One corpus: its token store, the two sides of its split, and what they have in common.

    Attributes:
      name: in data.sources; "" in a run of one corpus.
      store: the token store.
      train_documents, heldout_documents: the two sides.
      test_documents: the held-out documents of data.heldout="test"; with "validation" they are on neither side.
      overlap: of the two sides, before `data.near_duplicates` drops documents.
      elsewhere: how many of the held-out documents are training text of the other corpora, before the same.
      trained_by: the other corpora of which held-out documents are training text, and how many of each.
    """

    name: str
    store: TokenStore
    train_documents: Documents
    heldout_documents: Documents
    test_documents: Documents
    overlap: Overlap
    elsewhere: int = 0
    trained_by: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Corpora:
    """The text of an experiment.

    Attributes:
      each: the corpora, in the order of data.sources; one in a run of one corpus.
      factors: as MixedDocuments.factors.
      split: how each of them is split.
    """

    each: tuple[Corpus, ...]
    factors: tuple[float, ...]
    split: Split

    @functools.cached_property
    def train_documents(self) -> Documents | MixedDocuments:
        """The training documents of all corpora."""
        return self._mixed(tuple(corpus.train_documents for corpus in self.each))

    @functools.cached_property
    def heldout_documents(self) -> Documents | MixedDocuments:
        """The held-out documents of all corpora."""
        return self._mixed(tuple(corpus.heldout_documents for corpus in self.each))

    @property
    def content_digest(self) -> str:
        """TokenStore.content_digest; for several corpora a hash of their names and digests."""
        return self._digest(lambda corpus: corpus.store.content_digest)

    @property
    def heldout_digest(self) -> str:
        """data.windows.split.heldout_digest; for several corpora a hash of their names and digests."""
        return self._digest(lambda corpus: heldout_digest(corpus.heldout_documents, self.split))

    def _digest(self, digest_of: Callable[[Corpus], str]) -> str:
        if len(self.each) == 1 and not self.each[0].name:
            return digest_of(self.each[0])
        lines = "".join(f"{corpus.name} {digest_of(corpus)}\n" for corpus in self.each)
        return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()

    def _mixed(self, documents: tuple[Documents, ...]) -> Documents | MixedDocuments:
        return documents[0] if len(documents) == 1 else MixedDocuments(documents, self.factors)


def open_corpora(experiment: Experiment, *, show_progress: bool = True, **options: Any) -> Corpora:
    """Opens or builds the token store of each corpus of an experiment, and splits its documents.

    show_progress: whether to show a bar while a token store is built. options: of `open_or_build`.

    Raises ConfigError for a corpus that cannot be read, split or used by its denoisers, and for two corpora of the same
    documents.
    """
    data = experiment.data
    options |= {"progress": show_progress, "new_store_dir": experiment.new_store_dir, "by_range": data.read_by_range}
    found = []
    for number, (name, own) in enumerate(data.of_corpora().items()):
        try:
            store = open_or_build(own, experiment.tokenizer, **options)
            train_documents, heldout_documents = split_documents(store, own.split)
            test_documents = heldout_documents
            if own.heldout == "validation":
                _, test_documents = split_documents(store, dataclasses.replace(own.split, heldout="test"))
                train_documents, _ = near_duplicates(train_documents, test_documents, own.near_duplicates)
            train_documents, overlap = near_duplicates(train_documents, heldout_documents, own.near_duplicates)
            for spec in experiment.window_specs if name else ():
                if spec.corpus == number:
                    eligible(train_documents, spec)
        except ConfigError as error:
            raise corpus_error(error, name) if name else error from None
        found.append(Corpus(name, store, train_documents, heldout_documents, test_documents, overlap))
    for tasks in experiment.tasks_of_denoisers.values():
        specs = [experiment.window_specs[k] for k in tasks]
        check_classes([found[spec.corpus].store for spec in specs], specs[0])
    if CUT in {corpus.store.meta["cut"] for corpus in found}:
        _check_instances(experiment, found)
    if data.sources:
        check_different({corpus.name: corpus.store for corpus in found}, data)
        if data.heldout == "validation":
            found = _without_test_text(found)
        found = _compared(found, drop=data.near_duplicates == "drop")
    counts = [len(corpus.train_documents) for corpus in found]
    factors = rate_factors(data.rates, counts, maximum=data.rates_maximum, temperature=data.rates_temperature)
    if data.sources:
        weights = [source.weight for source in data.sources.values()]
        rates(weights, factors, list(data.sources))  # raises for a rate of 0
    return Corpora(tuple(found), factors, data.split)


def _check_instances(experiment: Experiment, corpora: Sequence[Corpus]) -> None:
    """Raises ConfigError where an instance of a task of the gym does not fit a window, which would cut it."""
    shape = experiment.row_shape
    for task, spec in zip(experiment.tasks, experiment.window_specs, strict=True):
        corpus = corpora[spec.corpus]
        if corpus.store.meta["cut"] != CUT or spec.documents == "whole":
            continue
        sides = (corpus.train_documents, corpus.heldout_documents)
        longest = max(int(side.lengths(spec.eos).max()) for side in sides)
        if longest <= spec.raw_length:
            continue
        lengths = task.output_lengths(np.arange(1, longest + 1))
        is_pair = shape.architecture == "encoder_decoder"
        needed = {"inputs": lengths.inputs, "targets": lengths.targets} if is_pair else {"inputs": lengths.both}
        fields = [f"data.{name}_length={int(most.max()) * shape.examples_per_row}" for name, most in needed.items()]
        raise ConfigError(
            f"an instance of data.path={list(experiment.data.of_corpora().values())[spec.corpus].path!r} has {longest} "
            f"tokens, and a window of {task.name} holds {spec.raw_length}: set {' and '.join(fields)} or more"
        )


def _without_test_text(corpora: list[Corpus]) -> list[Corpus]:
    """Returns the corpora without the validation documents that are test text of another one."""
    kept = []
    for corpus in corpora:
        validation = corpus.heldout_documents
        for other in corpora:
            if other is not corpus:
                validation = validation.subset(~is_trained_on(validation, other.test_documents, other.train_documents))
        if not len(validation):
            raise ConfigError(
                f"data.heldout='validation' leaves no document of corpus {corpus.name!r}: all are test text of the "
                "other corpora; set another data.split_seed"
            )
        kept.append(dataclasses.replace(corpus, heldout_documents=validation))
    return kept


def _compared(corpora: list[Corpus], *, drop: bool) -> list[Corpus]:
    """Returns the corpora with `elsewhere` and `trained_by`.

    drop: whether to leave out training text that another corpus holds out, as validation or as test text.
    """
    compared = []
    for corpus in corpora:
        others = [other for other in corpora if other is not corpus]
        train, heldout = corpus.train_documents, corpus.heldout_documents
        found = [is_trained_on(heldout, other.train_documents, other.heldout_documents) for other in others]
        elsewhere = int(functools.reduce(np.logical_or, found).sum()) if found else 0
        trained_by = {other.name: int(one.sum()) for other, one in zip(others, found, strict=True) if one.any()}
        if drop and others:
            held_out = [
                is_trained_on(train, side, other.train_documents)
                for other in others
                for side in (other.heldout_documents, other.test_documents)
            ]
            dropped = functools.reduce(np.logical_or, held_out)  # of all training documents
            if dropped.all():
                raise ConfigError(
                    f"data.near_duplicates='drop' leaves no training document of corpus {corpus.name!r}: all "
                    f"{len(train):,} are held-out text of the other corpora; set it to 'keep'"
                )
            train = train.subset(~dropped)
        compared.append(dataclasses.replace(corpus, train_documents=train, elsewhere=elsewhere, trained_by=trained_by))
    return compared


def describe_corpus(data: DataConfig) -> str:
    """Returns the fields that name the corpora of a config: "data.source='text', data.path='corpus/'"."""
    if data.sources:
        return f"data.sources={{{', '.join(data.sources)}}}"
    return f"data.source={data.source!r}" + (f", data.path={data.path!r}" if data.path else "")


def of_corpus(name: str) -> str:
    """Returns the start of a line about the corpus `name`; "" for the only corpus of a run."""
    return f"corpus {name!r}: " if name else ""


def describe_rates(data: DataConfig, factors: Sequence[float]) -> str:
    """Returns the rates of several corpora, and how they were determined, in words.

    factors: MixedDocuments.factors.
    """
    weights = [source.weight for source in data.sources.values()]
    shares = ", ".join(f"{name} {rate:.2%}" for name, rate in rates(weights, factors, list(data.sources)).items())
    determined = "weight"
    if data.rates == "num_examples":
        limit = f", at most {data.rates_maximum:,}" if data.rates_maximum else ""
        determined = f"weight and number of training documents{limit}, at temperature {data.rates_temperature:g}"
    return f"{shares} of the {'raw tokens' if data.mix_by == 'token' else 'examples'}, by {determined}"


def describe_changed_corpus(workdir: Workdir | str, experiment: Experiment, corpora: Corpora) -> str:
    """Returns a line if `corpora`, of `experiment`, are another text than that of the run in `workdir`; "" if not.

    "" too if the text of the run is unknown, as that of an imported model.
    """
    fingerprint = (Workdir(workdir).config().get("corpus") or {}).get("fingerprint")
    if fingerprint in (None, corpora.content_digest):
        return ""
    return (
        f"{workdir}: the corpus, {describe_corpus(experiment.data)}, has changed since the run was trained "
        f"(corpus.fingerprint={corpora.content_digest}, and {fingerprint} in config.json): restore its files"
    )


def resolve_epochs(experiment: Experiment, documents: Documents | MixedDocuments) -> Experiment:
    """Returns the experiment with `train.steps` set to the steps of `train.epochs`, passes over `documents`.

    The schedule of the learning rate and everything else that depends on the number of steps is that of the resolved
    number. `experiment.config` then has both fields.

    Raises ConfigError where the config has no epoch (windows_per_epoch), and where the schedule
    does not fit the resolved number of steps.
    """
    epochs, steps = experiment.train.epochs, steps_of(experiment, documents)
    config = {name: fields for name, fields in experiment.config.items() if name != "teacher"}  # not of a new run
    try:
        resolved = make_experiment(config, steps=steps)
    except ConfigError as error:
        raise ConfigError(f"train.epochs={epochs:g} is {steps} steps with this corpus, and {error}") from error
    warnings = tuple(dict.fromkeys((*resolved.warnings, *experiment.warnings)))
    setup = dataclasses.replace(resolved.learner.setup, teacher=experiment.learner.setup.teacher)
    kept = {name: getattr(experiment, name) for name in ("chosen", "new_store_dir", "teacher", "teacher_flops")}
    learner = dataclasses.replace(resolved.learner, setup=setup)
    kept |= {"config": experiment.config | resolved.config, "learner": learner}
    return dataclasses.replace(resolved, warnings=warnings, **kept)


def steps_of(experiment: Experiment, documents: Documents) -> int:
    """Returns the fewest steps that read every window of `documents` at least `train.epochs` times on average.

    ceil(epochs * windows of an epoch / windows of a step). A fraction of an epoch reads that fraction of the windows.
    The last step reads on into the next epoch where the quotient is not an integer.
    """
    windows = windows_per_epoch(documents, experiment.batch_spec)
    per_step = experiment.train.batch_size * experiment.data.examples_per_row
    # The decimal number that the config shows, not its binary approximation: 1.1 epochs of 10 windows are 11 windows.
    return math.ceil(Fraction(repr(experiment.train.epochs)) * windows / per_step)


def describe_epochs(experiment: Experiment, documents: Documents) -> str:
    """Returns how `train.epochs` was resolved, in words."""
    windows = windows_per_epoch(documents, experiment.batch_spec)
    per_step = experiment.train.batch_size * experiment.data.examples_per_row
    kind = "rows" if experiment.data.documents == "whole" else "windows"
    return (
        f"{experiment.train.steps:,}: {experiment.train.epochs:g} epochs of {windows:,} {kind}, {per_step:,} per step"
    )
