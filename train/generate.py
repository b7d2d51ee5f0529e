"""Text from a trained model, as `python -m train.generate --workdir=DIR --prompt=TEXT`, and a sample for the screen.

What the run was trained on decides what happens: causal and prefix language models go on with the prompt, denoising
models fill in its sentinels (<extra_id_0>, <extra_id_1>, ...), masked language models its [MASK]s.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator

import jax
import numpy as np

from data.usable import usable
from models.transformer import Params
from objectives import keys as rng
from objectives.errors import ConfigError
from objectives.examples import Denoiser, InputsTargets, Masked
from objectives.vocab import Vocab
from train.command import run_command
from train.experiment import Experiment
from train.fill_masks import candidates, fill_masks, mask_probabilities, masked_batch, read_masked_prompt
from train.prompts import Prompt, answer_room, complete, continuation, make_prompt, prompt_batch, read_prompt, use_of
from train.restore import language_model, load_experiment, load_params
from train.run import Run
from train.sampling import Sampling, decode

_CANDIDATES = 5  # shown for each mask
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
    if use_of(denoiser.corruption) == "respond":
        prompt, response, document = _held_out_pair(run)
        texts = prompt, _said(experiment, params, denoiser, prompt), response
    else:
        raw = np.arange(1, min(raw_length, _SAMPLE_TOKENS) + 1)
        if use_of(denoiser.corruption) == "fill_spans":
            raw = raw[denoiser.corruption.num_sentinels(raw) <= _SAMPLE_SPANS]
        tokens, document = _held_out_text(run, int(raw.max(initial=1)))
        hide_and_answer = _sample_answer if experiment.model.has_decoder else _sample_filled_in
        texts = hide_and_answer(experiment, params, denoiser, tokens)
    shown = zip(("prompt", "model", "truth"), texts, strict=True)
    blocks = [_block(title, _readable(experiment, ids)) for title, ids in shown]
    return "\n".join([f"a sample ({denoiser.name}), from the held-out {document}:", *blocks])


def _sample_answer(
    experiment: Experiment, params: Params, denoiser: Denoiser, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What of `tokens` is shown, what the model answers, and what is there; ids int32 [n] each, without EOS."""
    vocab = experiment.tokenizer.vocab
    use = use_of(denoiser.corruption)
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
    rate = denoiser.corruption.asked()["selected"]
    count = np.array([max(round(rate * len(tokens)), 1)])
    selected = rng.choose_mask(np.zeros(1, np.uint64), np.ones((1, len(tokens)), bool), count)[0]
    text = np.where(selected, vocab.mask, tokens).astype(np.int32)
    return text, fill_masks(text, mask_probabilities(experiment, params, text), vocab), tokens


def _corrupt(denoiser: Denoiser, tokens: np.ndarray, vocab: Vocab) -> InputsTargets | Masked:
    return denoiser.corruption.corrupt(tokens[None], np.array([len(tokens)]), np.zeros(1, np.uint64), vocab)


def _held_out_text(run: Run, length: int) -> tuple[np.ndarray, str]:
    """The first `length` tokens, int32, of the first held-out document that has as many, else of the longest one."""
    documents = run.heldout_documents
    offsets = documents.store.offsets
    lengths = offsets[documents.index + 1] - offsets[documents.index] - 1  # without EOS
    i = int(np.argmax(np.minimum(lengths, length)))
    return documents.tokens(i)[:length].astype(np.int32), documents.name(i)


def _held_out_pair(run: Run) -> tuple[np.ndarray, np.ndarray, str]:
    """The first held-out document that training could have read: its prompt and the start of its response, int32."""
    documents, _ = usable(run.heldout_documents, run.experiment.collator.specs[0])
    tokens = documents.tokens(0).astype(np.int32)
    prompt, response = np.split(tokens, [documents.store.prompt_lengths[documents.index[0]]])
    return prompt, response[:_SAMPLE_TOKENS], documents.name(0)


def _block(title: str, text: str) -> str:
    return textwrap.indent(text, " " * 8 + "| ", lambda _: True).replace(" " * len(title), title, 1)


def _readable(experiment: Experiment, ids: np.ndarray) -> str:
    """The text of `ids`; what would move a terminal's cursor or worse is written as an escape."""
    text = experiment.tokenizer.decode(ids)
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.generate",
        description="Continues a prompt, fills in its <extra_id_0>, <extra_id_1>, ..., or its [MASK]s, as the run's "
        "model was trained to do.",
    )
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument("--prompt", required=True, help="text, with <extra_id_0> or [MASK] where it is to be filled in")
    parser.add_argument("--mode", help="mode token, such as [S]; where left out, that of the first denoiser that suits")
    parser.add_argument("--max_tokens", type=int, help="of an answer; as many as a row of training has room for")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token (default: 0.8)")
    parser.add_argument("--top_k", type=int, default=0, help="draw from the k likeliest tokens (default: 0, all)")
    parser.add_argument("--top_p", type=float, default=1.0, help="... from the likeliest that reach p (default: 1)")
    parser.add_argument("--num_samples", type=int, default=1, help="how many answers (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--step", type=int, help="checkpoint to use; the newest where left out")
    return parser


_OF_DRAWING = ("mode", "max_tokens", "temperature", "top_k", "top_p", "num_samples", "seed")


def _check_arguments(args: argparse.Namespace) -> None:
    if not 0 <= args.temperature < float("inf"):
        raise ConfigError(f"--temperature={args.temperature} must be 0 (the likeliest token) or more, and finite")
    if args.top_k < 0:
        raise ConfigError(f"--top_k={args.top_k} must be 0 (all tokens) or more")
    if not 0 < args.top_p <= 1:
        raise ConfigError(f"--top_p={args.top_p} must be above 0 and at most 1 (all tokens)")
    for name in ("max_tokens", "num_samples"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ConfigError(f"--{name}={value} must be 1 or more")
    if args.num_samples > 1 and args.temperature == 0:
        raise ConfigError(f"--num_samples={args.num_samples} with --temperature=0 are all the same: set a temperature")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed={args.seed} must be from 0 to 2**32 - 1")


def _max_tokens(experiment: Experiment, prompt: Prompt, asked: int | None) -> tuple[int, list[str]]:
    """How many tokens to draw at most, and what the user should know of it. Raises ConfigError for too many."""
    room = answer_room(experiment, prompt)
    if asked is None or asked <= room:
        return asked or room, []
    data, model = experiment.data, experiment.model
    row = data.targets_length if model.has_encoder else data.inputs_length
    if model.positions == "learned" and asked > room + model.max_length - row:
        most = room + model.max_length - row
        raise ConfigError(
            f"--max_tokens={asked} does not fit: the model has {model.max_length} learned positions and the prompt "
            f"leaves {most} of them; set --max_tokens={most} or less"
        )
    return asked, [f"--max_tokens={asked} goes {asked - room} tokens beyond the rows of {row} that training knew"]


def _filled_in(experiment: Experiment, args: argparse.Namespace) -> Iterator[str]:
    """The lines of a masked language model: each mask's candidates, and the text with the likeliest ones."""
    parser = _parser()
    given = [name for name in _OF_DRAWING if getattr(args, name) != parser.get_default(name)]
    if given:
        raise ConfigError(f"--{given[0]} has no meaning for this run, whose model fills in masks: leave it out")
    text = read_masked_prompt(experiment, args.prompt)
    masked_batch(experiment, text)  # raises for what does not fit, before the checkpoint is read
    experiment, params = _load_language_model(experiment, args)
    probabilities = mask_probabilities(experiment, params, text)
    for number, line in enumerate(candidates(experiment.tokenizer, probabilities, _CANDIDATES), start=1):
        yield f"mask {number}: {line}"
    yield f"text: {_readable(experiment, fill_masks(text, probabilities, experiment.tokenizer.vocab))}"


def _answered(experiment: Experiment, args: argparse.Namespace) -> Iterator[str]:
    """The lines of a model with a decoder: for each sample the text with the answer in it; of spans the answer too."""
    prompt, notes = read_prompt(experiment, args.prompt, args.mode)
    max_tokens, more_notes = _max_tokens(experiment, prompt, args.max_tokens)
    for note in (*notes, *more_notes):
        _tell(note)
    experiment, params = _load_language_model(experiment, args)
    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    answers = answer(
        experiment,
        params,
        prompt,
        sampling,
        max_tokens=max_tokens,
        num_samples=args.num_samples,
        seed=args.seed,
    )
    is_infilling = use_of(prompt.denoiser.corruption) == "fill_spans"
    for number, said in enumerate(answers, start=1):
        if args.num_samples > 1:
            yield f"--- sample {number} of {args.num_samples}"
        if is_infilling:
            yield f"answer: {_readable(experiment, said)}"
        text = _readable(experiment, complete(prompt, said, experiment.tokenizer.vocab))
        yield f"text: {text}" if is_infilling else text
        if len(said) == max_tokens:
            _tell(f"sample {number} did not end within --max_tokens={max_tokens}")


def _load_language_model(experiment: Experiment, args: argparse.Namespace) -> tuple[Experiment, Params]:
    params, _ = load_params(experiment, args.workdir, args.step)
    predicts_tokens = language_model(experiment, params)
    if predicts_tokens is None:
        raise ConfigError(f"--workdir={args.workdir}: {experiment.objective_name} trains no prediction of tokens")
    return predicts_tokens


def _tell(note: str) -> None:
    print(f"note: {note}", file=sys.stderr, flush=True)


def main() -> None:
    """Reads the command line and prints what the model makes of the prompt; notes go to standard error."""
    args = _parser().parse_args()
    _check_arguments(args)
    experiment = load_experiment(args.workdir)
    lines = _answered if experiment.model.has_decoder else _filled_in
    for line in lines(experiment, args):
        print(line)


if __name__ == "__main__":
    run_command(main)
