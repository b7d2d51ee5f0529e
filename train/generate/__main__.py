"""Text from a trained model, as `python -m train.generate --workdir=DIR --prompt=TEXT`, and a sample for the screen.

What the run was trained on decides what happens: causal and prefix language models go on with the prompt, denoising
models fill in its sentinels (<extra_id_0>, <extra_id_1>, ...), masked language models its [MASK]s.
"""

import argparse
import sys
from collections.abc import Iterator

from contract.errors import ConfigError
from models.transformer import Params
from train.command import run_command
from train.experiment import Experiment
from train.generate.fill_masks import candidates, fill_masks, mask_probabilities, masked_batch, read_masked_prompt
from train.generate.prompts import (
    Prompt,
    answer_room,
    complete,
    read_prompt,
    use_of,
)
from train.generate.sample import answer, readable
from train.generate.sampling import Sampling
from train.restore import language_model, load_experiment, load_params

_CANDIDATES = 5  # shown for each mask


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


def _max_tokens(experiment: Experiment, prompt: Prompt, expected: int | None) -> tuple[int, list[str]]:
    """How many tokens to draw at most, and what the user should know of it. Raises ConfigError for too many."""
    room = answer_room(experiment, prompt)
    if expected is None or expected <= room:
        return expected or room, []
    data, model = experiment.data, experiment.model
    row = data.targets_length if model.has_encoder else data.inputs_length
    if model.positions == "learned" and expected > room + model.max_length - row:
        most = room + model.max_length - row
        raise ConfigError(
            f"--max_tokens={expected} does not fit: the model has {model.max_length} learned positions and the prompt "
            f"leaves {most} of them; set --max_tokens={most} or less"
        )
    return expected, [
        f"--max_tokens={expected} goes {expected - room} tokens beyond the rows of {row} that training knew"
    ]


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
    yield f"text: {readable(experiment, fill_masks(text, probabilities, experiment.tokenizer.vocab))}"


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
    is_infilling = use_of(prompt.denoiser.objective) == "fill_spans"
    for number, said in enumerate(answers, start=1):
        if args.num_samples > 1:
            yield f"--- sample {number} of {args.num_samples}"
        if is_infilling:
            yield f"answer: {readable(experiment, said)}"
        text = readable(experiment, complete(prompt, said, experiment.tokenizer.vocab))
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
