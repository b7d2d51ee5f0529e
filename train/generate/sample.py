"""Text from a trained model: answers to a prompt, and the sample that a run shows at its end."""

import textwrap

import jax
import numpy as np

from contract import rng
from contract.vocab import Vocab
from data.eligible import eligible
from models.transformer import Params
from objectives.objective import Denoiser, InputsTargets, Masked
from train.experiment import Experiment
from train.generate.fill_masks import fill_masks, mask_probabilities
from train.generate.prompts import Prompt, answer_room, continuation, make_prompt, prompt_batch, use_of
from train.generate.sampling import Sampling, decode
from train.restore import language_model
from train.run import Run

_SAMPLE_TOKENS = 128  # the most of a document that the sample for the screen shows, and the most that it adds


_SAMPLE_SPANS = 2  # the most spans that are filled in there


def answer(
    experiment: Experiment,
    params: Params,
    prompt: Prompt,
    sampling: Sampling,
    *,
    max_tokens: int,
    num_samples: int,
    seed: int,
) -> list[np.ndarray]:
    """The model's answers to `prompt`: int32 [n] each, n <= max_tokens, without the EOS."""
    decoded = decode(
        experiment.model,
        params,
        prompt_batch(experiment, prompt, num_samples),
        jax.random.key(seed),
        sampling,
        vocab=experiment.tokenizer.vocab,
        max_tokens=max_tokens,
    )
    tokens, lengths = jax.device_get(decoded)
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def sample_for_display(run: Run, params: Params) -> str:
    """What the model makes of the start of a held-out document, beside what is there, in a few lines.

    Always the same document, hidden in the same places, as the first denoiser of the objective has it.
    """
    if jax.process_count() > 1:
        return "a run of several processes shows no sample: use python -m train.generate"
    predicts_tokens = language_model(run.experiment, params)
    if predicts_tokens is None:
        return "no sample: this objective trains no prediction of tokens"
    experiment, params = predicts_tokens
    denoiser, raw_length = experiment.collator.denoisers[0], experiment.collator.specs[0].raw_length
    if use_of(denoiser.objective) == "respond":
        prompt, response, document = _held_out_pair(run)
        texts = prompt, _said(experiment, params, denoiser, prompt), response
    else:
        raw = np.arange(1, min(raw_length, _SAMPLE_TOKENS) + 1)
        if use_of(denoiser.objective) == "fill_spans":
            raw = raw[denoiser.objective.num_sentinels(raw) <= _SAMPLE_SPANS]
        tokens, document = _held_out_text(run, int(raw.max(initial=1)))
        hide_and_answer = _sample_answer if experiment.model.has_decoder else _sample_filled_in
        texts = hide_and_answer(experiment, params, denoiser, tokens)
    shown = zip(("prompt", "model", "truth"), texts, strict=True)
    blocks = [_block(title, readable(experiment, ids)) for title, ids in shown]
    return "\n".join([f"a sample ({denoiser.name}), from the held-out {document}:", *blocks])


def _sample_answer(
    experiment: Experiment, params: Params, denoiser: Denoiser, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What of `tokens` is shown, what the model answers, and what is there; ids int32 [n] each, without EOS."""
    vocab = experiment.tokenizer.vocab
    use = use_of(denoiser.objective)
    if use == "continue":
        text, truth = np.split(tokens, [len(tokens) // 2])
    elif use == "fill_middle":
        prefix, truth, suffix = np.split(tokens, [len(tokens) // 3, len(tokens) // 2])
        text = np.concatenate([prefix, [vocab.sentinel(0)], suffix]).astype(np.int32)
    else:
        corrupted = _corrupt(denoiser, tokens, vocab)
        text, truth = corrupted.inputs.tokens[0, :-1], corrupted.targets.tokens[0, :-1]
    return text, _said(experiment, params, denoiser, text), truth


def _said(experiment: Experiment, params: Params, denoiser: Denoiser, text: np.ndarray) -> np.ndarray:
    """One answer to the prompt `text`, ids int32 [n] each."""
    vocab = experiment.tokenizer.vocab
    prompt = make_prompt(denoiser, text, vocab)
    sampling = Sampling(temperature=0.8, top_k=0, top_p=1.0)
    max_tokens = min(answer_room(experiment, prompt), _SAMPLE_TOKENS)
    [said] = answer(experiment, params, prompt, sampling, max_tokens=max_tokens, num_samples=1, seed=0)
    return continuation(prompt, said, vocab)


def _sample_filled_in(
    experiment: Experiment, params: Params, denoiser: Denoiser, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`tokens` with masks at every selected place, filled in, and as they are; ids int32 [n] each."""
    vocab = experiment.tokenizer.vocab
    rate = denoiser.objective.expected()["selected"]
    count = np.array([max(round(rate * len(tokens)), 1)])
    selected = rng.choose_mask(np.zeros(1, np.uint64), np.ones((1, len(tokens)), bool), count)[0]
    text = np.where(selected, vocab.mask, tokens).astype(np.int32)
    return text, fill_masks(text, mask_probabilities(experiment, params, text), vocab), tokens


def _corrupt(denoiser: Denoiser, tokens: np.ndarray, vocab: Vocab) -> InputsTargets | Masked:
    return denoiser.objective.corrupt(tokens[None], np.array([len(tokens)]), np.zeros(1, np.uint64), vocab)


def _held_out_text(run: Run, length: int) -> tuple[np.ndarray, str]:
    """The first `length` tokens, int32, of the first held-out document that has as many, else of the longest one."""
    documents = run.heldout_documents
    offsets = documents.store.offsets
    lengths = offsets[documents.index + 1] - offsets[documents.index] - 1  # without EOS
    i = int(np.argmax(np.minimum(lengths, length)))
    return documents.tokens(i)[:length].astype(np.int32), documents.name(i)


def _held_out_pair(run: Run) -> tuple[np.ndarray, np.ndarray, str]:
    """The first held-out document that training could have read: its prompt and the start of its response, int32."""
    documents, _ = eligible(run.heldout_documents, run.experiment.collator.specs[0])
    tokens = documents.tokens(0).astype(np.int32)
    prompt, response = np.split(tokens, [documents.store.prompt_lengths[documents.index[0]]])
    return prompt, response[:_SAMPLE_TOKENS], documents.name(0)


def _block(title: str, text: str) -> str:
    return textwrap.indent(text, " " * 8 + "| ", lambda _: True).replace(" " * len(title), title, 1)


def readable(experiment: Experiment, ids: np.ndarray) -> str:
    """The text of `ids`; what would move a terminal's cursor or worse is written as an escape."""
    text = experiment.tokenizer.decode(ids)
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
