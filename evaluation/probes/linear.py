"""--probe=linear: what a linear classifier reads from the frozen states of a run, and of a Transformer at its start.

Each line of the files of labelled texts is an object as in data.source="jsonl":

    {"text": "the plot is thin .", "label": "negative"}
"""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from contract.batch import Batch
from contract.errors import ConfigError
from data.sources.records import InvalidRecord, document_of
from evaluation.probes.minimal_pairs import read_lines
from evaluation.probes.probe import Probe, interval_fields, mean_fields
from evaluation.scorer import Example, LanguageModel, batch_of
from experiment.experiment import Experiment
from generate.prompts import denoisers_with_mode
from models.config import ModelConfig
from models.heads import mean_state, state_at
from models.parameters import Params
from models.transformer import bind, init_params
from objectives.prompting import FillMasks
from run import sharding

Pooling = Literal["mean", "first", "last"]
_STRENGTHS = np.logspace(-4, 2, 7)  # values of C, the inverse of the L2 penalty, of which one is chosen
_FOLDS = 5
_SPECIAL_TOKENS = 2  # of a row: [CLS] and [SEP], or the start token and EOS


class LabelledTexts(NamedTuple):
    """The texts of a file and the label of each."""

    texts: Sequence[str]
    labels: np.ndarray  # str [n]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Probe):
    """The accuracy of a logistic regression on frozen states, for several numbers of labelled texts.

    The states are those of the encoder, or of a decoder that reads the text as its inputs: bidirectionally where its
    layout has a prefix. A model that predicts tokens in place reads the text as in training, without masks; block
    diffusion reads the text as one block. The states are standardized, and the L2 penalty is chosen by cross-validation
    within the labelled texts. The same regressions on the states of a Transformer with new parameters are the floor of
    the probe: a gain over them is due to the pre-training (as in Conneau et al. 2018, "What you can cram into a single
    vector").

    path: the file of labelled texts.
    test: the file of the texts that accuracies are over.
    labels: numbers of labelled texts, drawn with the shares of the classes, or "all".
    draws: how many draws of labelled texts an accuracy is the mean of; of "all" there is one.
    pooling: "mean", over the tokens of the row (models.heads.mean_state); "first", the state at the row's first
        position, such as [CLS]; "last", the state at its last one: [SEP] or EOS in most encoders, the text's last token
        in a decoder.
    """

    path: str | None = None
    test: str | None = None
    labels: tuple[str, ...] = ("100", "500", "all")
    draws: Annotated[int, "[1, 1000]"] = 5
    pooling: Pooling = "mean"

    name: ClassVar = "linear"
    reads_corpus: ClassVar = False
    needs_language_model: ClassVar = False
    sides: ClassVar = ()

    def check(self, experiment):
        for flag, path in (("path", self.path), ("test", self.test)):
            if path is None:
                raise ConfigError(
                    f"--probe=linear needs --{flag}=FILE.jsonl, with 'text' and 'label' in each line: add it"
                )
        if self.pooling == "first" and not experiment.model.has_encoder:
            raise ConfigError("--pooling=first needs an encoder: a decoder's first position has not read the text")
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"--labels={','.join(self.labels)} must be different numbers, or all")
        for count in self.labels:
            if count != "all" and not (count.isdecimal() and int(count) > 0):
                raise ConfigError(f"--labels={','.join(self.labels)}: {count!r} is neither a number above 0 nor all")
        if self.mode is not None:
            denoisers_with_mode(experiment, self.mode)
        try:
            import sklearn  # noqa: F401
        except ImportError:
            raise ConfigError("--probe=linear needs scikit-learn: pip install -e '.[linear]'") from None
        _ = self._texts  # whose errors come before anything slow

    def measure(self, model, corpora):
        train, test = self._texts
        classes, labels = np.unique(train.labels, return_inverse=True)
        test_labels = np.searchsorted(classes, test.labels)
        draws = {name: _draw(labels, self._count(name, train), self.draws) for name in self.labels}
        used = np.unique(np.concatenate([chosen for of_name in draws.values() for chosen in of_name]))
        experiment, mesh = model.experiment, model.mesh
        ids, cut = _encode(experiment, [*(train.texts[k] for k in used), *test.texts])
        mode = self.mode or experiment.denoisers[0].mode
        random = init_params(experiment.model, jax.random.key(experiment.seed))  # runs of a study: a sample of them
        random = jax.tree.map(lambda new, trained: jax.device_put(new, trained.sharding), random, model.params)
        states = [
            np.split(pooled_states(experiment, params, mesh, ids, pooling=self.pooling, mode=mode), [len(used)])
            for params in (model.params, random)
        ]
        fields: dict[str, Any] = {
            "path": self.path,
            "test": self.test,
            "texts": len(train.texts),
            "test_texts": len(test.texts),
            "test_texts_in_path": self.test_texts_in_path,
            "cut_texts": cut,
            "classes": len(classes),
            "majority_class": float(np.mean(test_labels == np.bincount(labels).argmax())),
            "pooling": self.pooling,
            "labels": {},
        }
        if mode:
            fields["mode"] = mode
        for name, of_name in draws.items():
            is_right = [
                [
                    _predict(labelled[np.searchsorted(used, chosen)], labels[chosen], scored, draw) == test_labels
                    for labelled, scored in states
                ]
                for draw, chosen in enumerate(of_name)
            ]
            fields["labels"][name] = _accuracies(np.array(is_right), fields["majority_class"])
        return fields | interval_fields("test texts")

    @property
    def test_texts_in_path(self) -> int:
        """How many texts of `test` are in `path` too, each once."""
        train, test = self._texts
        return len({*train.texts} & {*test.texts})

    def cut_texts(self, experiment: Experiment) -> int:
        """Returns how many of the texts of both files do not fit the rows of a run."""
        return _encode(experiment, [text for of_file in self._texts for text in of_file.texts])[1]

    def _count(self, name: str, train: LabelledTexts) -> int:
        """Returns the number of labelled texts that an entry of `labels` names."""
        return len(train.texts) if name == "all" else int(name)

    @functools.cached_property
    def _texts(self) -> tuple[LabelledTexts, LabelledTexts]:
        """The texts of `path` and of `test`. Raises ConfigError for texts that no regression can use."""
        assert self.path is not None and self.test is not None  # check
        train, test = read_labelled_texts(self.path, "path"), read_labelled_texts(self.test, "test")
        classes, sizes = np.unique(train.labels, return_counts=True)
        if len(classes) < 2:
            raise ConfigError(f"--path={self.path} has texts of one class, {str(classes[0])!r}: add texts of another")
        if sizes.min() < 2:
            alone = str(classes[sizes.argmin()])
            raise ConfigError(f"--path={self.path} has one text of the class {alone!r}: add another")
        for name in self.labels:
            if not 2 * len(classes) <= self._count(name, train) <= len(train.texts):
                raise ConfigError(
                    f"--labels={name} must be from {2 * len(classes)}, two for each class, to {len(train.texts)}, the "
                    f"texts of --path={self.path}"
                )
        if unknown := sorted({*test.labels.tolist()} - {*classes.tolist()}):
            raise ConfigError(f"--test={self.test} has the class {unknown[0]!r}, which no text of --path has")
        return train, test


def read_labelled_texts(path: str, flag: str) -> LabelledTexts:
    """Returns the labelled texts of a file, in its order.

    flag: that names the file, for messages. Raises ConfigError, with the number of the line, for a line that is not a
    labelled text, and for a file that cannot be read or has no texts.
    """

    def labelled(fields: Any) -> tuple[str, str]:
        document = document_of(path, fields, "text", may_be_blank=False)
        if not document.label:
            raise InvalidRecord("has no label")
        return document.text, document.label

    texts, labels = zip(*read_lines(path, labelled, "texts", "'text' and 'label'", flag=flag), strict=True)
    return LabelledTexts(texts, np.array(labels))


def _encode(experiment: Experiment, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
    """Returns the ids of each text, int32 [n], cut to the rows of the run, and how many texts were cut."""
    most = experiment.data.inputs_length - _SPECIAL_TOKENS - bool(experiment.denoisers[0].mode)
    ids = [experiment.tokenizer.encode(text) for text in texts]
    return [text[:most] for text in ids], sum(len(text) > most for text in ids)


def pooled_states(
    experiment: Experiment,
    params: Params,
    mesh: Mesh,
    texts: Sequence[np.ndarray],
    *,
    pooling: Pooling = "mean",
    mode: str | None = None,
) -> np.ndarray:
    """Returns one final state of the Transformer for each text, float32 [T, D], without dropout.

    Args:
      experiment: of the run.
      params: of its Transformer.
      mesh: over whose devices rows are split.
      texts: ids, int32 [n] each.
      pooling: see Linear.
      mode: a mode token, which precedes each text.
    """
    model, vocab = experiment.model, experiment.vocab
    mode_ids = [vocab.mode(mode)] if mode else []
    denoiser = denoisers_with_mode(experiment, mode)[0] if mode else experiment.denoisers[0]
    in_place = denoiser.objective.prompting
    if isinstance(in_place, FillMasks):
        in_place = dataclasses.replace(in_place, block_length=0)
    else:  # [CLS] and [SEP] around the text of an encoder that predicts no tokens
        in_place = None if model.has_decoder else FillMasks(mask_rate=0)
    # Rows that are shifted right lack their last token.
    has_end = in_place.shifted if in_place else model.has_encoder
    after = [vocab.eos] * has_end
    inputs = [np.array([*mode_ids, *text, *after], np.int32) for text in texts]
    inputs = [in_place.lay_out(text, vocab).inputs for text in inputs] if in_place else inputs
    nothing, end = np.zeros(0, np.int32), np.array([vocab.eos], np.int32)
    examples = [Example(text, nothing, end, in_place) for text in inputs]
    states = np.zeros((len(texts), model.d_model), np.float32)
    for numbered, shape, rows in LanguageModel(experiment, params, mesh).batches(enumerate(examples)):
        batch = batch_of(experiment, [example for _, example in numbered], shape, rows)
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        pooled = _pooled(model, params, batch, pooling=pooling)
        states[[number for number, _ in numbered]] = np.asarray(pooled)[: len(numbered)]
    return states


@functools.partial(jax.jit, static_argnames=("config", "pooling"))
def _pooled(config: ModelConfig, params: Params, batch: Batch, *, pooling: Pooling) -> Array:
    """Returns the pooled state of each row, float32 [B, D]."""
    transformer, stack = bind(config, params), "encoder" if config.has_encoder else "decoder"
    states_BxLxD = transformer.encode(batch) if config.has_encoder else transformer.hidden(batch)
    segment_ids_BxL = batch[f"{stack}_segment_ids"]
    if pooling == "mean":
        return mean_state(states_BxLxD, segment_ids_BxL)
    last_B = (segment_ids_BxL > 0).sum(axis=1) - 1
    return state_at(states_BxLxD, last_B if pooling == "last" else 0 * last_B).astype(jnp.float32)


def _draw(labels: np.ndarray, count: int, num_draws: int) -> list[np.ndarray]:
    """Returns the numbers of `count` texts, int [count], of each draw, with the shares of the classes.

    One draw if these are all texts. Two texts or more are of each class, so that some folds train on each.

    labels: int [N], each class two times or more. count: two for each class or more.
    """
    if count == len(labels):
        return [np.arange(count)]
    sizes = np.bincount(labels)
    quotas = np.maximum(np.floor(sizes * count / len(labels)).astype(int), 2)
    while quotas.sum() != count:  # the class whose share is the farthest from that of all texts
        missing = sizes * count / len(labels) - quotas
        if quotas.sum() < count:
            quotas[np.where(quotas < sizes, missing, -np.inf).argmax()] += 1
        else:
            quotas[np.where(quotas > 2, missing, np.inf).argmin()] -= 1
    draws = []
    for draw in range(num_draws):
        order = np.random.default_rng(draw).permutation(len(labels))
        of_classes = [order[labels[order] == k][:quota] for k, quota in enumerate(quotas)]
        draws.append(np.sort(np.concatenate(of_classes)))
    return draws


def _predict(states: np.ndarray, labels: np.ndarray, scored: np.ndarray, seed: int) -> np.ndarray:
    """Returns the class that a regression on labelled states predicts for each scored text, int [T].

    states: float32 [N, D]. labels: int [N]. scored: float32 [T, D]. seed: of the folds.
    """
    import threadpoolctl
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = StratifiedKFold(min(_FOLDS, int(np.bincount(labels).max())), shuffle=True, random_state=seed)
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    search = GridSearchCV(regression, {"logisticregression__C": _STRENGTHS}, cv=folds)
    # More threads only wait for each other on matrices of this size.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        # Classes with fewer texts than folds are absent from some folds; weak penalties may not converge.
        warnings.simplefilter("ignore")
        search.fit(states, labels)
    return search.predict(scored)


def _accuracies(is_right: np.ndarray, majority: float) -> dict[str, Any]:
    """Returns the JSON fields of one number of labels.

    is_right: bool [draws, 2, T], of the run and at random. majority: the accuracy of the most frequent class.
    """
    of_run, of_random = is_right.mean(axis=0)
    no_strata = np.zeros(len(of_run), int)
    fields = mean_fields("accuracy", of_run, no_strata) | mean_fields("gain", of_run - of_random, no_strata)
    fields["random_accuracy"] = float(of_random.mean())
    fields["floors"] = {"majority class": majority, "random Transformer": fields["random_accuracy"]}
    if len(is_right) > 1:
        fields["draws_sd"] = float(is_right[:, 0].mean(axis=1).std(ddof=1))
    return fields
