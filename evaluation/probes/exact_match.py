"""--probe=exact_match: the share of prompts whose whole answer the model gives right, by group.

The instances are the held-out documents that have a prompt, such as the test instances of data.source="gym", with their
labels as groups; or the lines of --path=FILE.jsonl, with an optional group:

    {"prompt": "1+1=", "response": "2", "group": "short"}
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy import stats

from contract.errors import ConfigError
from data.sources.gym import make_task
from data.sources.records import InvalidRecord, string_field
from data.windows.document_filter import eligible
from data.windows.documents import Documents, MixedDocuments
from evaluation.likelihood import Pair, are_filled_in, check_fits, encode_pair
from evaluation.probes.minimal_pairs import read_lines
from evaluation.probes.probe import CONFIDENCE, Probe
from evaluation.scorer import LanguageModel, score_texts
from experiment.experiment import Experiment
from generate.fill_masks import Order, check_order, check_row
from generate.prompts import denoisers_with_mode
from objectives import Denoiser
from objectives.prompting import FillMasks, FillResponse


class Item(NamedTuple):
    """One instance, as ids, int32 [n] each."""

    prompt: np.ndarray
    answer: np.ndarray
    group: str  # "" without a group
    chance: float = 0.0  # Task.chance of the task of the gym that it is from


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactMatch(Probe):
    """The share of the instances whose answer, which ends the text, is right in every token.

    A model with a decoder writes the answer greedily, after the prompt or as a hidden span, as its objective hides the
    end of a text. Greedy decoding writes the true answer if and only if each of its tokens is the likeliest one after
    the true tokens before it, so one pass decides. Whether the model then ends the text is not measured.

    An encoder fills in a mask for each token of the answer, in the order of `order`, and so knows the answer's length.
    Block diffusion does the same, block by block from left to right, in the order of `order` within each. So does a
    teacherless model, which was trained on masks alone and fills in all of them at once.

    The floor "chance" is the share of the instances that have the commonest answer, or, if it is larger, the share that
    a guess among the answers which the prompt leaves gets right (Task.chance).

    path: the file; None: the held-out documents.
    order: of the masks: the one whose two likeliest tokens differ most in probability first ("margin", Kim et al. 2025,
        arXiv 2502.06768), the one with the likeliest token ("probability") or with the least entropy first, from left
        to right, in a random order, or all at once. "": "margin", and "once" for a teacherless model.
    """

    path: str | None = None
    order: Literal["", "margin", "probability", "entropy", "left_to_right", "random", "once"] = ""

    name: ClassVar = "exact_match"
    sides: ClassVar = ("left", "both")

    @property
    def reads_corpus(self):
        return self.path is None

    def check(self, experiment):
        [denoiser, *_] = self.denoisers(experiment).values()
        if isinstance(denoiser.objective.prompting, FillMasks):
            check_order(denoiser.objective.prompting, self.order)
        elif self.order:
            raise ConfigError(f"--order={self.order} has no effect on {denoiser.name}, which writes answers: remove it")

    def denoisers(self, experiment):
        """As in the base class; an objective that learns responses to prompts comes first, and one of blocks last."""
        denoisers = denoisers_with_mode(experiment, self.mode)
        for denoiser in denoisers:
            if "prompt_lengths" in denoiser.objective.extra_columns:
                return {"left": denoiser}
        of_ends = [denoiser for denoiser in denoisers if isinstance(denoiser.objective.prompting, FillResponse)]
        return super().denoisers(experiment) or ({"left": of_ends[0]} if of_ends else {})

    def groups(self, experiment: Experiment) -> tuple[str, ...] | None:
        """Returns the groups of the instances, where they are known before the corpus is read; else None."""
        if self.path is not None:
            return tuple(dict.fromkeys(item.group for item in self._items(experiment, None) if item.group))
        data = experiment.data
        return make_task(data.path).kinds if data.source == "gym" else None

    def measure(self, model, corpora):
        items = self._items(model.experiment, None if corpora is None else corpora.heldout_documents)
        [denoiser, *_] = self.denoisers(model.experiment).values()
        fields: dict[str, Any] = {"path": self.path} if self.path is not None else {}
        fields["denoiser"] = denoiser.name
        if corpora is not None:
            parts = corpora.heldout_documents.by_corpus
            of_prompts = sum(int(np.count_nonzero(part.store.prompt_lengths[part.index])) for part in parts)
            fields["skipped_instances"] = of_prompts - len(items)
        if not isinstance(denoiser.objective.prompting, FillMasks):
            is_right = _written(model, denoiser, items)
        else:
            fields["order"] = self.order or denoiser.objective.prompting.order
            is_right = _filled_in(model, denoiser, items, fields["order"])
        # As texts: the tokens of an answer may depend on how its prompt ends.
        answers = [model.experiment.tokenizer.decode(item.answer).strip() for item in items]
        groups = np.array([item.group for item in items])
        chances = np.array([item.chance for item in items])
        fields |= _share(is_right, answers, chances)
        fields["groups"] = {
            name: _share(is_right[chosen], [answers[k] for k in chosen], chances[chosen])
            for name in dict.fromkeys(groups.tolist())
            if name and len(chosen := np.flatnonzero(groups == name))
        }
        return fields | {"interval": f"{CONFIDENCE:.0%}, Wilson score"}

    def _items(self, experiment: Experiment, documents: Documents | MixedDocuments | None) -> list[Item]:
        """Returns the instances, without documents that training leaves out because they are longer than a row.

        Raises ConfigError where there are none, and for a line that is no instance.
        """
        [denoiser, *_] = self.denoisers(experiment).values()
        if documents is None:
            encode = functools.partial(encode_pair, experiment, denoiser, where=f"--path={self.path}")
            return read_lines(self.path, lambda fields: _line(fields, encode), "instances", "'prompt' and 'response'")
        tasks = experiment.tasks_of_denoisers[denoiser.name]
        specs = {experiment.tasks[task].corpus: experiment.window_specs[task] for task in tasks}
        items = []
        for number, corpus in enumerate(experiment.data.of_corpora().values()):
            part = documents.by_corpus[number]
            part = eligible(part, specs[number])[0] if number in specs else part
            chance = make_task(corpus.path).chance if corpus.source == "gym" else 0.0
            prompt_lengths = part.store.prompt_lengths[part.index].tolist()
            labels = part.store.label_ids[part.index].tolist()
            for i, (length, label) in enumerate(zip(prompt_lengths, labels, strict=True)):
                if length and length < len(tokens := part.tokens(i).astype(np.int32)):
                    items.append(Item(tokens[:length], tokens[length:], part.store.labels[label], chance))
        if not items:
            raise ConfigError(
                "--probe=exact_match: no held-out document has a prompt: name a file of prompts and answers with "
                "--path=FILE.jsonl, or train on data.source='gym'"
            )
        return items


def _written(model: LanguageModel, denoiser: Denoiser, items: list[Item]) -> np.ndarray:
    """Returns whether greedy decoding writes each answer, bool [n].

    Raises ConfigError for an instance that is longer than a row.
    """
    texts = [np.concatenate([prompt, answer]) for prompt, answer, *_ in items]
    spans = [[(len(item.prompt), len(text))] for item, text in zip(items, texts, strict=True)]
    for item, of_item in zip(items, spans, strict=True):
        check_fits(model.experiment, denoiser, Pair(*item[:2]), of_item, "an instance")
    return score_texts(model, denoiser, texts, spans, show_progress=True).is_exact


def _filled_in(model: LanguageModel, denoiser: Denoiser, items: list[Item], order: Order) -> np.ndarray:
    """Returns whether masks in place of each answer are filled in with it, bool [n].

    Raises ConfigError for an instance that is longer than a row.
    """
    vocab = model.experiment.vocab
    eos = [vocab.eos] * denoiser.objective.eos_in_windows  # as in training, where a window ends with its document
    truths = [np.concatenate([prompt, answer, eos]).astype(np.int32) for prompt, answer, *_ in items]
    check_row(model.experiment, max(truths, key=len), "an instance")
    texts = [truth.copy() for truth in truths]
    for text, (prompt, answer, *_) in zip(texts, items, strict=True):
        text[len(prompt) : len(prompt) + len(answer)] = vocab.mask
    return are_filled_in(model, denoiser.objective.prompting, texts, truths, order)


def _share(is_right: np.ndarray, answers: list[str], chances: np.ndarray) -> dict[str, Any]:
    """Returns the JSON fields of a share of instances. is_right: bool [n], at least one. answers, chances: theirs."""
    count, share = len(is_right), float(is_right.mean())
    interval = stats.binomtest(int(is_right.sum()), count).proportion_ci(CONFIDENCE, method="wilson")
    return {
        "instances": count,
        "exact_match": share,
        # Equal values do not determine a spread: if all of n are right, a true share of 1 - 3 / n is still possible.
        "exact_match_stderr": (share * (1 - share) / count) ** 0.5 if 0 < share < 1 else None,
        "exact_match_interval": [float(interval.low), float(interval.high)],
        "floors": {"chance": max(float(chances.mean()), collections.Counter(answers).most_common(1)[0][1] / count)},
    }


def _line(fields: Any, encode: Callable[[str, str], Pair]) -> Item:
    if not isinstance(fields, dict) or not {"prompt", "response"} <= fields.keys():
        raise InvalidRecord("has no 'prompt' or no 'response': an instance is an object with both")
    group = string_field(fields, "group") if "group" in fields else ""
    pair = encode(string_field(fields, "prompt"), string_field(fields, "response"))
    if not len(pair.continuation):
        raise InvalidRecord("has no tokens in 'response'")
    return Item(*pair[:2], group)
