"""Floors of held-out metrics: what is reached without a neural network. A model that is not better has learned nothing.

  unigram, trigram: n-gram models of the training documents (data/windows/corpus_statistics.py), scored on the same
    tokens, with the same bytes, as the model. Training text is counted up to corpus_statistics.TRAIN_TOKENS tokens.
  majority class: the class of most training texts, for every held-out text.
  class frequencies: a class drawn for each text with the shares of the classes among the training texts.

Held-out text is never counted. Objectives that report bits_per_byte (CLM and those that add to its loss, masked and
block diffusion) have both floors of the text. The loss of others that predict hidden tokens in place has the floor of
the unigram model: a trigram model reads from left to right, and cannot restore a text as they do. Classification has
the floors of its classes. The rest have none, because their targets have tokens that no text has.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.windows.corpus_statistics import TrigramModel, counted_tokens, trigram_model, triples_at
from data.windows.document_filter import classes_of
from data.windows.documents import Documents, MixedDocuments, members
from data.windows.heldout_batches import Heldout
from data.windows.windowing import make_reader
from evaluation.scorer import text_tokens
from experiment.experiment import Experiment
from learners.classification import ClassificationLearner
from learners.learner import TokenPredictionLearner
from objectives.losses.cross_entropy import denominators, scored_tokens, target_side
from run.compiled_run import bytes_of_tokens
from run.corpus import Corpora
from run.evaluation import DocumentSums

Floors = dict[str, float]  # the name of a floor -> its value, in the unit of the metric

NAMES = ("unigram", "trigram")
_PRINTED = ("bits_per_byte", "accuracy", "macro_f1")


def heldout_floors(experiment: Experiment, corpora: Corpora) -> dict[str, Floors]:
    """Returns metric -> its floors, of an evaluation (run.evaluation.evaluate); {} for an objective without floors.

    The floors are of the evaluation's windows, with its weights of documents and corpora.
    """
    if experiment.byte_metric == "bits_per_byte":
        return _of_text(experiment, corpora)
    if isinstance(experiment.learner, ClassificationLearner):
        return _of_classes(experiment, corpora)
    predicts_tokens = type(experiment.learner) is TokenPredictionLearner
    if predicts_tokens and all(denoiser.objective.in_place for denoiser in experiment.denoisers):
        return _of_hidden_tokens(experiment, corpora)
    return {}


def printed_floors(experiment: Experiment, corpora: Corpora) -> dict[str, Any]:
    """Returns the JSON fields of `heldout_floors`: of bits per byte, or of accuracy and macro F1. {} without floors."""
    found = heldout_floors(experiment, corpora)
    floors = {floor: value for metric in _PRINTED for floor, value in found.get(metric, {}).items()}
    if not floors:
        return {}
    return {"floors": floors} | (train_tokens_field(corpora) if "unigram" in floors else {})


def train_tokens_field(corpora: Corpora) -> dict[str, int]:
    """Returns the JSON field with the number of training tokens that the n-gram models count."""
    return {"floors_train_tokens": counted_tokens(corpora.train_documents)}


def hidden_nats(
    experiment: Experiment,
    texts: Sequence[np.ndarray],
    spans: Sequence[Sequence[tuple[int, int]]],
    train_documents: Documents | MixedDocuments,
    *,
    reads_span: bool,
    text_only: bool,
) -> dict[str, np.ndarray]:
    """Returns name of the floor -> the nats, float64 [n], of the hidden tokens of each text.

    The n-gram models read no token before the text. Unknown tokens are not scored (HiddenText).

    Args:
      experiment: of the scored model.
      texts: int32 [length] each.
      spans: start and end of the spans of each text, which are hidden one at a time.
      train_documents: what is counted.
      reads_span: whether a token of a span is scored given the tokens of the span before it, or bounds such a score. A
        model that fills in masks reads none of them.
      text_only: whether probabilities are among the tokens of text, as in TextProbe.
    """
    vocab, size = experiment.vocab, len(train_documents.by_corpus[0].store.unigram_counts)
    model = trigram_model(train_documents, vocab.eos, text_tokens(vocab, size) if text_only else None)
    owned = [(k, *span) for k, of_text in enumerate(spans) for span in of_text]
    triples = [_span_triples(model, texts[k], start, stop, reads_span) for k, start, stop in owned]
    owners = np.repeat([k for k, *_ in owned], [part.shape[1] for part in triples])
    u, v, w = np.concatenate(triples, axis=1)
    is_known = w != vocab.unk
    return {
        name: np.bincount(owners[is_known], nats[is_known], minlength=len(texts))
        for name, nats in _ngram_nats(model, u, v, w).items()
    }


def _span_triples(model: TrigramModel, text: np.ndarray, start: int, stop: int, reads_span: bool) -> np.ndarray:
    """Returns int64 [3, n]: the tokens `start`, ..., `stop` - 1, third, after the two before each that are read."""
    padded = np.concatenate([np.full(2, model.no_token), text[:stop]]).astype(np.int64)
    triples = np.stack([padded[start + k : stop + k] for k in range(3)])
    if not reads_span:
        triples[1, 1:] = model.no_token  # after which no context occurs, whatever is before it
    return triples


def _ngram_nats(model: TrigramModel, u: np.ndarray, v: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    """Returns name of the floor -> the nats, float64 [n], of tokens w after tokens u v, int64 [n] each."""
    probabilities = model.unigram_probability(w), model.probability(u, v, w)
    return {name: -np.log(values) for name, values in zip(NAMES, probabilities, strict=True)}


def _of_text(experiment: Experiment, corpora: Corpora) -> dict[str, Floors]:
    """Returns the floors of CLM, which scores every token of its windows."""
    documents, eos = corpora.heldout_documents, experiment.vocab.eos
    model, heldout = trigram_model(corpora.train_documents, eos), experiment.heldout(documents)
    corpus_of = np.array([spec.corpus for spec in experiment.heldout_spec.windows])
    num_bytes = bytes_of_tokens(experiment.tokenizer, experiment.vocab.size)
    totals = {name: DocumentSums(experiment, heldout, documents) for name in NAMES}
    for n in range(heldout.batches.end):
        drawn, groups = heldout.batches.draw(n, 1), heldout.examples(n).groups
        starts, lengths = drawn.slices.starts, drawn.slices.lengths
        example = np.cumsum(drawn.slices.begins) - 1
        corpus = corpus_of[drawn.denoiser_ids[example]]
        sums = {name: _zeros(heldout, "loss", "weight", "bytes") for name in NAMES}
        for k, part in enumerate(documents.by_corpus):
            mine = corpus == k
            slices, nth = members(lengths[mine])
            group = groups[example[mine][slices]]
            triples = triples_at(starts[mine][slices] + nth, part.store, eos)
            for name, nats in _ngram_nats(model, *triples).items():
                np.add.at(sums[name]["loss_sum_by_group"], group, nats)
                np.add.at(sums[name]["weight_sum_by_group"], group, 1)
                np.add.at(sums[name]["bytes_sum_by_group"], group, num_bytes[triples[2]])
        for name, total in totals.items():
            total.add(n, sums[name])
    metrics = {name: total.metrics({}) for name, total in totals.items()}
    return {
        metric: {name: metrics[name][metric] for name in NAMES} for metric in ("loss", "perplexity", "bits_per_byte")
    }


def _of_hidden_tokens(experiment: Experiment, corpora: Corpora) -> dict[str, Floors]:
    """Returns the floors of objectives whose targets are tokens of the text, with the weights of their losses."""
    model = trigram_model(corpora.train_documents, experiment.vocab.eos)
    heldout = experiment.heldout(corpora.heldout_documents)
    total = DocumentSums(experiment, heldout, corpora.heldout_documents)
    for n in range(heldout.batches.end):
        batch, sums = heldout.batches[n], _zeros(heldout, "loss", "weight")
        targets, weights, groups = scored_tokens(batch)
        is_scored = weights > 0
        nats = -np.log(model.unigram_probability(targets[is_scored]))
        np.add.at(sums["loss_sum_by_group"], groups[is_scored], weights[is_scored] * nats)
        np.add.at(sums["weight_sum_by_group"], groups, denominators(batch))
        total.add(n, sums)
    metrics = total.metrics({})
    return {metric: {"unigram": metrics[metric]} for metric in ("loss", "perplexity")}


def _of_classes(experiment: Experiment, corpora: Corpora) -> dict[str, Floors]:
    """Returns the floors of classification. A text here is a row, as in the accuracy: a piece of a document."""
    heldout = experiment.heldout(corpora.heldout_documents)
    frequencies = _class_frequencies(experiment, corpora)
    total = DocumentSums(experiment, heldout, corpora.heldout_documents)
    counts = np.zeros(len(frequencies))
    for n in range(heldout.batches.end):
        batch = heldout.batches[n]
        labels, group = batch["sentence_labels"], batch["example_source"][:, 0]
        is_scored = (batch[f"{target_side(batch)}_loss_weights"].max(axis=1) > 0) & (labels >= 0)
        sums = _zeros(heldout, "weight", "correct")
        np.add.at(sums["weight_sum_by_group"], group, is_scored)
        np.add.at(sums["correct_sum_by_group"], group, is_scored & (labels == frequencies.argmax()))
        total.add(n, sums)
        counts += np.bincount(labels[is_scored], minlength=len(counts))
    shares = counts / counts.sum()
    occurs = frequencies + shares > 0
    # The expected counts of a guess that does not depend on the text: 2 TP / (2 TP + FP + FN) of each class.
    f1 = 2 * frequencies[occurs] * shares[occurs] / (frequencies + shares)[occurs]
    return {
        "accuracy": {"majority class": total.metrics({})["accuracy"]},
        "macro_f1": {"class frequencies": float(f1.mean())},
    }


def _class_frequencies(experiment: Experiment, corpora: Corpora) -> np.ndarray:
    """Returns the share of each class among the training windows, float64 [C]."""
    counts = np.zeros(experiment.learner.objective.num_classes)
    for spec in experiment.window_specs:
        reader = make_reader(corpora.train_documents.by_corpus[spec.corpus], spec)
        _, windows = reader.windows_of(np.arange(len(reader.documents)))
        counts += np.bincount(classes_of(reader.documents, spec), weights=windows, minlength=len(counts))
    return counts / counts.sum()


def _zeros(heldout: Heldout, *names: str) -> dict[str, np.ndarray]:
    return {f"{name}_sum_by_group": np.zeros(heldout.num_groups) for name in names}
