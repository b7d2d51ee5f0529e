"""Text from a trained model: python -m train.generate --workdir=DIR --prompt=TEXT [--mode=[S]] [--temperature=0.8 ...]

What the model does depends on what the run was trained on. Causal and prefix language models continue the prompt,
denoising models fill in the prompt's sentinels (<extra_id_0>, <extra_id_1>, ...), masked language models its [MASK]s.
"""

import sys
from collections.abc import Iterator

from absl import flags

from contract.errors import ConfigError
from models.parameters import Params
from train.command import parse_flags, run_command
from train.experiment import Experiment
from train.generate.fill_masks import candidates, mask_probabilities, masked_batch, read_masked_prompt
from train.generate.prompts import Prompt, max_answer_length, not_a_language_model, read_prompt
from train.generate.sample import generate_answers, readable
from train.generate.sampling import Sampling
from train.restore import language_model, load_experiment, load_params

_FLAGS = flags.FlagValues()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_PROMPT = flags.DEFINE_string("prompt", None, "Text, with <extra_id_0> or [MASK] to fill in.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to use. Default: the newest.", flag_values=_FLAGS)
_MODE = flags.DEFINE_string(
    "mode", None, "Mode token, such as [S]. Default: that of the first suitable denoiser.", _FLAGS
)
_MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", None, "Maximum tokens of an answer. Default: as many as fit in a row of training.", flag_values=_FLAGS
)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "0 selects the likeliest token.", flag_values=_FLAGS)
_TOP_K = flags.DEFINE_integer("top_k", 0, "Draw from the k likeliest tokens; 0 is off.", flag_values=_FLAGS)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "Draw from the likeliest tokens whose probabilities reach p; 1 is off.", flag_values=_FLAGS
)
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Number of answers.", flag_values=_FLAGS)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the draws.", flag_values=_FLAGS)

_SAMPLING_FLAGS = ("mode", "max_tokens", "temperature", "top_k", "top_p", "num_samples", "seed")
_NUM_CANDIDATES = 5  # shown for each mask


def main() -> None:
    """Reads the command line and prints the model's answers; notes go to standard error."""
    parse_flags(_FLAGS, __doc__)
    _check_flags()
    experiment = load_experiment(_WORKDIR.value)
    lines = _answers if experiment.model.has_decoder else _filled_masks
    for line in lines(experiment):
        print(line)


def _check_flags() -> None:
    if not 0 <= _TEMPERATURE.value < float("inf"):
        raise ConfigError(f"--temperature={_TEMPERATURE.value} must be 0 (the likeliest token) or more, and finite")
    if _TOP_K.value < 0:
        raise ConfigError(f"--top_k={_TOP_K.value} must be 0 (all tokens) or more")
    if not 0 < _TOP_P.value <= 1:
        raise ConfigError(f"--top_p={_TOP_P.value} must be above 0 and at most 1 (all tokens)")
    for flag in (_MAX_TOKENS, _NUM_SAMPLES):
        if flag.value is not None and flag.value < 1:
            raise ConfigError(f"--{flag.name}={flag.value} must be 1 or more")
    if _NUM_SAMPLES.value > 1 and _TEMPERATURE.value == 0:
        raise ConfigError(
            f"--num_samples={_NUM_SAMPLES.value} with --temperature=0 are all the same: set --temperature above 0"
        )
    if not 0 <= _SEED.value < 2**32:
        raise ConfigError(f"--seed={_SEED.value} must be from 0 to 2**32 - 1")


def _filled_masks(experiment: Experiment) -> Iterator[str]:
    """Yields the lines for a masked language model: each mask's candidates, and the text with the likeliest ones."""
    given = [name for name in _SAMPLING_FLAGS if _FLAGS[name].value != _FLAGS[name].default]
    if given:
        raise ConfigError(f"--{given[0]} does not apply to this run, whose model fills in masks: remove it")
    text = read_masked_prompt(experiment, _PROMPT.value)
    masked_batch(experiment, text)  # raises for a prompt that does not fit, before the checkpoint is read
    prompting = experiment.denoisers[0].objective.prompting
    experiment, params = _load_language_model(experiment)
    probabilities = mask_probabilities(experiment, params, text)
    for number, line in enumerate(candidates(experiment.tokenizer, probabilities, _NUM_CANDIDATES), start=1):
        yield f"mask {number}: {line}"
    filled = prompting.complete(text, probabilities.argmax(axis=-1), experiment.vocab)
    yield f"text: {readable(experiment, filled)}"


def _answers(experiment: Experiment) -> Iterator[str]:
    """Yields the lines for a model with a decoder: for each sample the completed text, and for spans the answer too."""
    prompt, notes = read_prompt(experiment, _PROMPT.value, _MODE.value)
    max_tokens, more_notes = _max_tokens(experiment, prompt, _MAX_TOKENS.value)
    for note in (*notes, *more_notes):
        _print_note(note)
    experiment, params = _load_language_model(experiment)
    answers = generate_answers(
        experiment,
        params,
        prompt,
        Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value),
        max_tokens=max_tokens,
        num_samples=_NUM_SAMPLES.value,
        seed=_SEED.value,
    )
    has_spans = prompt.prompting.task == "infill_spans"
    for number, answer in enumerate(answers, start=1):
        if _NUM_SAMPLES.value > 1:
            yield f"--- sample {number} of {_NUM_SAMPLES.value}"
        if has_spans:
            yield f"answer: {readable(experiment, answer)}"
        text = readable(experiment, prompt.prompting.complete(prompt.text, answer, experiment.vocab))
        yield f"text: {text}" if has_spans else text
        if len(answer) == max_tokens:
            _print_note(f"sample {number} did not end within --max_tokens={max_tokens}")


def _max_tokens(experiment: Experiment, prompt: Prompt, requested: int | None) -> tuple[int, list[str]]:
    """Returns the largest number of tokens to draw, and notes for the user.

    Raises ConfigError if `requested` exceeds the learned positions.
    """
    in_row = max_answer_length(experiment, prompt)
    if requested is None or requested <= in_row:
        return requested or in_row, []
    data, model = experiment.data, experiment.model
    row = data.targets_length if model.has_encoder else data.inputs_length
    if model.positions == "learned" and requested > in_row + model.max_length - row:
        most = in_row + model.max_length - row
        raise ConfigError(
            f"--max_tokens={requested} does not fit: the model has {model.max_length} learned positions and the prompt "
            f"leaves {most} of them; set --max_tokens={most} or less"
        )
    excess = requested - in_row
    return requested, [f"with --max_tokens={requested} a row can be {excess} tokens longer than in training ({row})"]


def _load_language_model(experiment: Experiment) -> tuple[Experiment, Params]:
    params, _ = load_params(experiment, _WORKDIR.value, _STEP.value)
    trained = language_model(experiment, params)
    if trained is None:
        raise not_a_language_model(experiment)
    return trained


def _print_note(note: str) -> None:
    print(f"note: {note}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
