"""Text from a trained model: python -m train.generate --workdir=DIR --prompt=TEXT [--mode=[S]] [--temperature=0.8 ...]
                           python -m train.generate --workdir=DIR --prompts=FILE [--out=FILE.jsonl] [--batch_size=N ...]

What the model does depends on what the run was trained on. Causal and prefix language models continue the prompt,
denoising models fill in the prompt's sentinels (<extra_id_0>, <extra_id_1>, ...), masked language models and masked
diffusion its [MASK]s, in an --order and a number of --steps, block by block with --block_length; --max_tokens=N appends
N masks to a prompt without any. A run of configs/classification.py names the class of the prompt, with probabilities.

--prompts reads a prompt from each line of a file, or from the field "prompt" of each line of a .jsonl file; "-" is
standard input. The answers are JSON lines with the fields prompt, answer, text, finished, seed and sample; for masks,
prompt, text, candidates, seed and sample; for classes, prompt, label and probabilities. They are equal to those of each
prompt alone, with the same seed.
"""

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from typing import get_args

from absl import flags

from cluster.devices import use_compilation_cache
from command.flags import define_code, parse_flags, run_command
from command.program import plural, print_note, visible
from contract.errors import ConfigError
from experiment.experiment import Experiment
from files.atomic import check_output, writing
from generate.classify import Classified, classifier_rows, classifies, classify
from generate.fill_masks import Order, candidates_line
from generate.sampling import Request
from generate.texts import Filled, Generated, NamedText, Options, answer_texts, read_prompts, read_texts
from run.restore import language_model, load_experiment, load_params, reading_mesh
from workdir.workdir import Workdir

_FLAGS = flags.FlagValues()
define_code(_FLAGS)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_PROMPT = flags.DEFINE_string("prompt", None, "Text, with <extra_id_0> or [MASK] to fill in.", _FLAGS)
_PROMPTS = flags.DEFINE_string(
    "prompts", None, 'File with a prompt in each line; .jsonl: in the field "prompt"; -: standard input.', _FLAGS
)
_OUT = flags.DEFINE_string("out", None, "File for the answers. Default: standard output.", _FLAGS)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 16, "Answers to generate together; they do not depend on this number.", 1, flag_values=_FLAGS
)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to use. Default: the newest.", flag_values=_FLAGS)
# Field of Options, of an integer unless _DEFINE has its kind -> the text of --help.
_OPTIONS = {
    "mode": "Mode token, such as [S]. Default: that of the first suitable denoiser.",
    "max_tokens": "Maximum tokens of an answer, by default as many as fit in a row of training; masks to append to a "
    "prompt.",
    "temperature": "0 selects the likeliest token. Default: 0.8, and 0 for masks.",
    "top_k": "Draw from the k likeliest tokens; 0 is off.",
    "top_p": "Draw from the likeliest tokens whose probabilities reach p; 1 is off.",
    "num_samples": "Number of answers to each prompt.",
    "seed": "Seed of the draws.",
    "steps": "Steps in which a block of masks is filled in; 0: one mask in each.",
    "block_length": "Masks of a block; blocks are filled in from left to right. 0: all masks are one block.",
    "remask": "Probability that a mask which was filled in is hidden again before the next step (ReMDM).",
}
_DEFINE = {"mode": flags.DEFINE_string} | dict.fromkeys(("temperature", "top_p", "remask"), flags.DEFINE_float)
for _name, _text in _OPTIONS.items():
    _DEFINE.get(_name, flags.DEFINE_integer)(_name, getattr(Options, _name), _text, flag_values=_FLAGS)
_ORDER = (
    "Which masks are filled in first: those whose two likeliest tokens differ most in probability (margin; Dream's "
    "topk_margin), with the likeliest token (probability; LLaDA's low_confidence and Dream's maskgit_plus, which rank "
    "by the drawn token above temperature 0), with the least entropy, the leftmost, random ones, or all at once. "
    "Default: margin; once for teacherless."
)
flags.DEFINE_enum("order", Options.order, get_args(Order), _ORDER, _FLAGS)


def main() -> None:
    """Reads the command line and prints or writes the model's answers; notes go to standard error."""
    parse_flags(_FLAGS, __doc__)
    use_compilation_cache()
    options = Options(**{field.name: _FLAGS[field.name].value for field in dataclasses.fields(Options)})
    options.check()
    texts = _texts()
    if _OUT.value is not None:
        check_output(_OUT.value)
    workdir = Workdir(_WORKDIR.value)
    experiment = load_experiment(workdir)
    answer = _classified if classifies(experiment) else _answered
    answers, lines = answer(experiment, workdir, texts, options)
    if _PROMPTS.value is not None:  # ASCII alone for standard output, whose encoding may lack a character
        is_ascii = _OUT.value is None
        lines = (json.dumps(dataclasses.asdict(answer), ensure_ascii=is_ascii) for answer in answers)
    with contextlib.nullcontext(sys.stdout) if _OUT.value is None else writing(_OUT.value) as file:
        count = 0
        for line in lines:
            print(line, file=file, flush=True)
            count += 1
    if _OUT.value is not None:
        print(f"{plural(count, 'answer')} in {_OUT.value}", file=sys.stderr)


def _answered(
    experiment: Experiment, workdir: Workdir, texts: list[NamedText], options: Options
) -> tuple[Iterator[Generated | Filled], Iterator[str]]:
    """Returns an iterator over the answers of a language model, and over what --prompt prints of them."""
    read, notes = read_texts(experiment, texts, options)
    for note in notes:
        print_note(note)
    params, _ = load_params(experiment, workdir, _STEP.value)
    trained = language_model(experiment, params)
    answers = itertools.chain.from_iterable(answer_texts(*trained, texts, read, options, _BATCH_SIZE.value))
    if isinstance(read[0], Request):
        return answers, _generated_lines(answers, read[0], options, experiment.tokenizer.decode(read[0].prompt.text))
    return answers, _filled_lines(answers, options)


def _classified(
    experiment: Experiment, workdir: Workdir, texts: list[NamedText], options: Options
) -> tuple[Iterator[Classified], Iterator[str]]:
    """Returns an iterator over the classes of texts, and over what --prompt prints of them."""
    options.check_applies([field.name for field in dataclasses.fields(options)], "predicts a class")
    prompts, names = zip(*texts, strict=True)
    batch = classifier_rows(experiment, prompts, names)
    mesh = reading_mesh(experiment)
    params, _ = load_params(experiment, workdir, _STEP.value, mesh=mesh)
    answers = classify(experiment, params, mesh, prompts, batch, _BATCH_SIZE.value)
    return answers, _classified_lines(answers)


def _classified_lines(answers: Iterable[Classified]) -> Iterator[str]:
    """Yields what --prompt prints: each class with its probability, the likeliest first."""
    for answer in answers:
        for name, probability in sorted(answer.probabilities.items(), key=lambda item: -item[1]):
            yield f"{probability:.3f}  {visible(name)}"


def _texts() -> list[NamedText]:
    """Returns the prompts of the command line."""
    if (_PROMPT.value is None) == (_PROMPTS.value is None):
        problem = "exclude each other" if _PROMPT.value is not None else "are both missing"
        raise ConfigError(f"--prompt and --prompts {problem}: write --prompt=TEXT or --prompts=FILE")
    return [NamedText(_PROMPT.value, "--prompt")] if _PROMPTS.value is None else read_prompts(_PROMPTS.value)


def _generated_lines(answers: Iterable[Generated], request: Request, options: Options, unfilled: str) -> Iterator[str]:
    """Yields what --prompt prints: for each sample the completed text, and for spans the answer too.

    unfilled: the text of the prompt with its sentinels.
    """
    has_spans = request.prompt.prompting.kind == "infill_spans"
    for answer in answers:
        if options.num_samples > 1:
            yield f"--- sample {answer.sample} of {options.num_samples}"
        if has_spans:
            yield f"answer: {visible(answer.answer)}"
        yield f"text: {visible(answer.text)}" if has_spans else visible(answer.text)
        if has_spans and answer.text == unfilled:
            print_note(f"sample {answer.sample} fills no span: its answer has no sentinel of the prompt")
        if not answer.finished:
            print_note(f"sample {answer.sample} did not end within --max_tokens={request.max_tokens}")


def _filled_lines(answers: Iterable[Filled], options: Options) -> Iterator[str]:
    """Yields what --prompt prints: once each mask's candidates, unless --max_tokens appended it, and the texts."""
    for answer in answers:
        if options.num_samples > 1:
            yield f"--- sample {answer.sample} of {options.num_samples}"
        of_prompt = answer.candidates if options.max_tokens is None and answer.sample == 1 else []
        for number, found in enumerate(of_prompt, start=1):
            yield f"mask {number}: {candidates_line(found)}"
        yield f"text: {visible(answer.text)}"


if __name__ == "__main__":
    run_command(main, memory_remedy="Lower --batch_size, --num_samples or --max_tokens, or use more devices")
