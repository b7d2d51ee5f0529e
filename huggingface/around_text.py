"""What an exported tokenizer adds before and after a text, and the text of an example prompt without it."""

import json
from typing import NamedTuple

import numpy as np

from contract.vocab import Vocab
from data.tokenizers.tokenizer import HuggingFaceTokenizer
from experiment.experiment import Experiment
from generate.prompts import Prompt, encode, make_prompt
from objectives import Denoiser
from objectives.prompting import Task

_TEXT = ("The capital of", " France", " is Paris.")  # the middle is what an example prompt hides


class AroundText(NamedTuple):
    """The ids that the tokenizer puts before and after a text."""

    begin: tuple[int, ...]
    end: tuple[int, ...]


def around_text(experiment: Experiment) -> AroundText:
    """Returns what rows of training have around a text.

    The end is what the prompts of all denoisers end with: in a mixture of span corruption, whose inputs end with EOS,
    and CLM on a decoder, it is empty.
    """
    vocab, model = experiment.vocab, experiment.model
    if not model.has_decoder:
        return AroundText((vocab.cls,), (vocab.sep,))
    ends = [_end_of_prompt(denoiser, experiment) for denoiser in experiment.denoisers if denoiser.objective.prompting]
    end = ends[0] if ends else ()
    for other in ends[1:]:
        while end != other[len(other) - len(end) :]:
            end = end[1:]
    return AroundText(() if model.has_encoder else (vocab.decoder_start,), end)


def read_by_model(prompt: Prompt, experiment: Experiment) -> np.ndarray:
    """Returns the ids that the tokenizer gives to the model, int32 [n]: those of the encoder, if there is one.

    They are without the start token that a decoder begins with.
    """
    if not experiment.model.has_encoder:
        return np.concatenate([prompt.inputs, prompt.targets_start])
    if experiment.model.has_decoder and not len(prompt.inputs):
        return np.array([experiment.vocab.eos], np.int32)  # as rows of training have it (objectives/rows/layout.py)
    return prompt.inputs


def example_prompt(denoiser: Denoiser, experiment: Experiment) -> Prompt:
    """Returns an example of a prompt for `denoiser`."""
    text = example_text(denoiser.objective.prompting.task, experiment.vocab)
    special_tokens = denoiser.objective.prompting.special_tokens(experiment.vocab)
    return make_prompt(denoiser, encode(experiment.tokenizer, text, special_tokens), experiment.vocab)


def example_text(task: Task, vocab: Vocab) -> str:
    """Returns an example of the text of a prompt for `task`."""
    before, hidden, after = _TEXT
    if task in ("infill_spans", "infill_middle", "infill_tokens"):
        return before + vocab.names()[vocab.sentinel(0)] + after
    if task == "fill_masks":
        return before + vocab.names()[vocab.mask] + after
    return before + hidden + after if task == "rewrite" else before


def typed_text(denoiser: Denoiser, experiment: Experiment, around: AroundText) -> str:
    """Returns the text of `example_prompt` for a tokenizer that adds `around`: what it adds is not in the text."""
    text, decode = example_text(denoiser.objective.prompting.task, experiment.vocab), experiment.tokenizer.decode
    prompt = example_prompt(denoiser, experiment)
    ids = _without(read_by_model(prompt, experiment).tolist(), around)
    at = _find(prompt.text.tolist(), ids)
    if at is None:  # the objective reorders the text, as FIM does
        return decode(np.array(ids))
    return decode(np.array(ids[:at])) + text + decode(np.array(ids[at + len(prompt.text) :]))


def added_by(tokenizer: HuggingFaceTokenizer) -> AroundText:
    """Returns what the tokenizer.json of an imported model puts around a text."""
    import tokenizers

    library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.json))
    library.no_padding()
    library.no_truncation()
    with_added, text = library.encode("a").ids, library.encode("a", add_special_tokens=False).ids
    at = _find(text, with_added)
    return AroundText((), ()) if at is None else AroundText(tuple(with_added[:at]), tuple(with_added[at + len(text) :]))


def _without(ids: list[int], around: AroundText) -> list[int]:
    begin, end = list(around.begin), list(around.end)
    ids = ids[len(begin) :] if ids[: len(begin)] == begin else ids
    return ids[: len(ids) - len(end)] if ids[len(ids) - len(end) :] == end else ids


def _find(part: list[int], ids: list[int]) -> int | None:
    """Returns where `part` begins in `ids`; None: it is not in `ids`."""
    places = range(len(ids) - len(part) + 1)
    return next((at for at in places if ids[at : at + len(part)] == part), None)


def _end_of_prompt(denoiser: Denoiser, experiment: Experiment) -> tuple[int, ...]:
    """Returns the special tokens after the text of a prompt without sentinels."""
    text = np.full(1, experiment.vocab.content_start, np.int32)
    ids = read_by_model(make_prompt(denoiser, text, experiment.vocab), experiment).tolist()
    return tuple(ids[ids.index(text[0]) + 1 :] if text[0] in ids else ids)
