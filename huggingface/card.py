"""The model card of an export: README.md, with the facts of the run, and code that loads the model and prompts it."""

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from data.tokenizers.tokenizer import Tokenizer
from experiment.experiment import Experiment
from huggingface.around_text import AroundText, example_prompt, example_text, typed_text
from huggingface.words import short_count
from run.corpus import describe_corpus

AutoClass = Literal["AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForPreTraining"]
_PIPELINES = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSeq2SeqLM": "text2text-generation",
    "AutoModelForMaskedLM": "fill-mask",
}
_PAIR = ("It rained.", "We got wet.")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a model card says of a run, apart from what its experiment says.

    Attributes:
      step: of the checkpoint.
      auto_class: the class of `transformers` that loads the model.
      part: "generator" or "discriminator" of ELECTRA; "" for any other model.
      around: what the tokenizer adds to a text.
      dtype: of the tensors.
      num_params: parameters of the exported model.
      evaluation: the line of metrics.jsonl of the evaluation at `step`; None if there is none.
      raw_tokens: tokens of training text seen by step `step`; None for a model that was not trained here.
      words: the words of these tokens; None if they are unknown.
      words_note: how words are counted, or why they are unknown.
      command: that repeats the run; "" if it is unknown.
      notes: further facts, a line each.
    """

    step: int
    auto_class: AutoClass
    part: str
    around: AroundText
    dtype: str
    num_params: int
    evaluation: Mapping[str, Any] | None
    raw_tokens: int | None
    words: int | None
    words_note: str
    command: str
    notes: tuple[str, ...] = ()


def model_card(experiment: Experiment, facts: Facts) -> str:
    """Returns the text of README.md, with YAML front matter as the Hugging Face Hub reads it."""
    pipeline = _PIPELINES.get(facts.auto_class)
    front = ["---", "library_name: transformers", *([f"pipeline_tag: {pipeline}"] if pipeline else [])]
    front += ["tags:", "- cloze", f"- {experiment.objective_name}", "---"]
    title = f"# {experiment.objective_name} ({experiment.model.architecture.replace('_', '-')})"
    blocks = [
        "\n".join(front),
        title + (f", {facts.part}" if facts.part else ""),
        _table(experiment, facts),
        *facts.notes,
        "## Load\n\n" + _code(experiment, facts),
    ]
    prompts = _prompts(experiment, facts) if facts.auto_class in _PIPELINES else ""
    blocks += [f"## Prompts\n\n{prompts}"] if prompts else []
    blocks += [f"## Training\n\n```\n{facts.command}\n```"] if facts.command else []
    return "\n\n".join(blocks) + "\n"


def _table(experiment: Experiment, facts: Facts) -> str:
    data = experiment.data
    rows = {
        "objective": ", ".join(dict.fromkeys([experiment.objective_name, *experiment.denoiser_names])),
        "architecture": experiment.model.architecture,
        "parameters": f"{facts.num_params:,}, {facts.dtype}",
        "corpus": describe_corpus(data),
        "rows": f"{data.inputs_length} tokens"
        + (f", targets {data.targets_length}" if experiment.model.architecture == "encoder_decoder" else ""),
        "steps": f"{facts.step:,} of {experiment.train.batch_size} rows",
    }
    if facts.raw_tokens is None:
        rows["steps"] = "imported, not trained here"
        rows.pop("corpus")
    else:
        rows["tokens seen"] = f"{facts.raw_tokens:,} of training text"
        counted = "unknown" if facts.words is None else f"{facts.words:,} ({short_count(facts.words)})"
        rows["words seen"] = f"{counted}: {facts.words_note}"
    if experiment.train.ema_decay and facts.raw_tokens is not None:
        rows["averaged parameters"] = f"yes, train.ema_decay={experiment.train.ema_decay}"
    if facts.evaluation is not None:
        rows["held-out loss"] = f"{_number(facts.evaluation['loss'])} nats per scored token"
        for name, value in facts.evaluation.items():
            if name.startswith("loss/"):
                rows[f"held-out loss, {name.removeprefix('loss/')}"] = _number(value)
    elif facts.raw_tokens is not None:
        rows["held-out loss"] = "not evaluated at this step"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())])


def _number(value: float | None) -> str:
    """Returns a number of metrics.jsonl, which has null in place of NaN and infinity."""
    return "not finite" if value is None else f"{value:.4f}"


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


def _code(experiment: Experiment, facts: Facts) -> str:
    """Returns code that loads the model from the working directory and uses it."""
    begin = [
        f"from transformers import {facts.auto_class}, AutoTokenizer",
        "",
        'folder = "."  # this folder, or its name on the Hub',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {facts.auto_class}.from_pretrained(folder)",
    ]
    if facts.auto_class == "AutoModelForPreTraining" and not facts.part:
        return "\n".join(["```python", *begin, "", *_pair_code(experiment), "```"])
    text = json.dumps(_example_text(experiment, facts), ensure_ascii=False)
    lines = {
        "AutoModelForCausalLM": [
            f"inputs = tokenizer({text}, return_tensors='pt')",
            "outputs = model.generate(**inputs, max_new_tokens=20, do_sample=False)",
            "print(tokenizer.decode(outputs[0], skip_special_tokens=True))",
        ],
        "AutoModelForSeq2SeqLM": [
            f"inputs = tokenizer({text}, return_tensors='pt')",
            "outputs = model.generate(**inputs, max_new_tokens=20, do_sample=False)",
            "print(tokenizer.decode(outputs[0]))",
        ],
        "AutoModelForMaskedLM": [
            f"inputs = tokenizer({text}, return_tensors='pt')",
            "is_mask = inputs.input_ids[0] == tokenizer.mask_token_id",
            "likeliest = model(**inputs).logits[0, is_mask].argmax(-1)",
            "print([tokenizer.decode(token) for token in likeliest])",
        ],
        "AutoModelForPreTraining": [
            f"inputs = tokenizer({text}, return_tensors='pt')",
            "logits = model(**inputs).logits[0]  # above 0: the token is likelier replaced than original",
            "print(logits.tolist())",
        ],
    }[facts.auto_class]
    return "\n".join(["```python", *begin, "", *lines, "```"])


def _pair_code(experiment: Experiment) -> list[str]:
    """Returns code that prompts a model with a classifier of sentence pairs."""
    mask = experiment.vocab.names()[experiment.vocab.mask]
    first, second = json.dumps(_PAIR[0] + mask, ensure_ascii=False), json.dumps(_PAIR[1])
    return [
        f"inputs = tokenizer({first}, {second}, return_tensors='pt')",
        "outputs = model(**inputs)",
        "is_mask = inputs.input_ids[0] == tokenizer.mask_token_id",
        "likeliest = outputs.prediction_logits[0, is_mask].argmax(-1)",
        "print([tokenizer.decode(token) for token in likeliest])",
        "follows = outputs.seq_relationship_logits[0].softmax(-1)[0]  # label 0: the second text follows the first",
        "print(follows.item())",
    ]


def _example_text(experiment: Experiment, facts: Facts) -> str:
    """Returns the text that the code of the card gives to the tokenizer."""
    vocab = experiment.vocab
    denoiser = next((row for row in experiment.denoisers if row.objective.prompting is not None), None)
    if facts.auto_class == "AutoModelForMaskedLM":
        return example_text("fill_masks", vocab)
    if facts.auto_class not in _PIPELINES or denoiser is None:
        return example_text("rewrite", vocab)
    return typed_text(denoiser, experiment, facts.around)


def _prompts(experiment: Experiment, facts: Facts) -> str:
    """Returns what the model reads for an example prompt of each denoiser, as text with special tokens."""
    lines = []
    has_encoder = experiment.model.has_encoder
    for denoiser in experiment.denoisers:
        if denoiser.objective.prompting is None:
            continue
        prompt = example_prompt(denoiser, experiment)
        inputs, start = (_inline(experiment.tokenizer, ids) for ids in (prompt.inputs, prompt.targets_start))
        task = denoiser.objective.prompting.task.replace("_", " ")
        if has_encoder and experiment.model.has_decoder:
            reads = f"the encoder reads {inputs}" + (f", the decoder begins with {start}" if start != "``" else "")
        else:
            reads = f"the model reads {start if inputs == '``' else inputs}"
        lines.append(f"- `{denoiser.name}` ({task}): {reads}")
    if not lines:
        return ""
    added = {"before": facts.around.begin, "after": facts.around.end}
    puts = " and ".join(
        f"{_inline(experiment.tokenizer, np.array(ids))} {place}" for place, ids in added.items() if ids
    )
    intro = (
        "What the model reads for an example, as in training. The tokenizer puts "
        + (f"{puts} a text by itself; other" if puts else "no special token around a text by itself;")
        + " special tokens, such as mode tokens and sentinels, are written in the text."
    )
    return textwrap.fill(intro, 100) + "\n\n" + "\n".join(lines)


def _inline(tokenizer: Tokenizer, ids: Any) -> str:
    return f"`{tokenizer.decode(ids)}`"
