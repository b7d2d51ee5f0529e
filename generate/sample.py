"""The sample that a run prints when it ends."""

import textwrap

import jax
import numpy as np

from command.program import visible
from contract.errors import ConfigError
from contract.vocab import Vocab
from data.windows.document_filter import eligible
from experiment.experiment import Experiment
from generate.fill_masks import mask_probabilities
from generate.prompts import make_prompt, max_answer_length
from generate.sampling import Request, Sampling, generate_answers
from models.parameters import Params
from objectives import Denoiser
from objectives.objective import Masked
from run.compiled_run import CompiledRun
from run.restore import language_model

_MAX_TOKENS = 128  # of the document that a sample shows, and of the answer
_MAX_SPANS = 2  # spans that a sample fills in


def sample_for_display(run: CompiledRun, params: Params) -> str:
    """Returns a few lines: the start of a held-out document as a prompt, the model's answer, and the true text.

    The document and the hidden tokens are the same in every call. The objective's first denoiser corrupts the document.
    """
    if jax.process_count() > 1:
        return "no sample: a run of several processes does not generate; use python -m train.generate"
    if run.experiment.learner.language_model(params) is None:
        return "no sample: this objective does not train the prediction of tokens"
    experiment, params = language_model(run.experiment, params)
    denoiser = experiment.denoisers[0]
    prompting, vocab = denoiser.objective.prompting, experiment.vocab
    if prompting.kind == "respond":
        text, truth, document = _heldout_pair(run)
    elif denoiser.objective.extra_columns and prompting.kind != "fill_masks":
        return "no sample: the objective's examples are made of more than one text"
    else:
        tokens, document = _heldout_text(run, _sample_length(experiment, denoiser))
        text, truth = prompting.demonstration(tokens, lambda tokens: _inputs_and_targets(experiment, tokens), vocab)
    try:
        if prompting.kind == "fill_masks":
            [probabilities] = mask_probabilities(experiment, params, [text])
            answer = prompting.complete(text, probabilities.argmax(axis=-1), vocab)
        else:
            answer = _one_answer(experiment, params, denoiser, text)
    except ConfigError as error:  # logits that are not finite
        return f"no sample: {error}"
    parts = {"prompt": text, "model": answer, "truth": truth}
    blocks = [_block(title, readable(experiment, ids)) for title, ids in parts.items()]
    return "\n".join([f"a sample ({denoiser.name}), from the held-out {document}:", *blocks])


def readable(experiment: Experiment, ids: np.ndarray) -> str:
    """Returns the text of `ids`, int [n], with control characters, which could move a terminal's cursor, escaped."""
    return visible(experiment.tokenizer.decode(ids))


def _sample_length(experiment: Experiment, denoiser: Denoiser) -> int:
    raw = np.arange(1, min(experiment.window_specs[0].raw_length, _MAX_TOKENS) + 1)
    if denoiser.objective.prompting.kind == "infill_spans":
        raw = raw[denoiser.objective.num_sentinels(raw) <= _MAX_SPANS]
    return int(raw.max(initial=1))


def _one_answer(experiment: Experiment, params: Params, denoiser: Denoiser, text: np.ndarray) -> np.ndarray:
    """Returns one answer, int32 [n], to the prompt `text`, int32 [m]."""
    prompt = make_prompt(denoiser, text, experiment.vocab)
    sampling = Sampling(temperature=0.8, top_k=0, top_p=1.0)
    max_tokens = min(max_answer_length(experiment, prompt), _MAX_TOKENS)
    [[answer]] = generate_answers(experiment, params, [Request(prompt, max_tokens)], sampling, num_samples=1, seed=0)
    return prompt.prompting.continuation(answer.tokens, experiment.vocab)


def _inputs_and_targets(experiment: Experiment, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets, int32 without EOS, that the first denoiser makes of raw tokens, int32 [n]."""
    objective = experiment.denoisers[0].objective
    examples = objective.corrupt(tokens[None], np.array([len(tokens)]), np.zeros(1, np.uint64), experiment.vocab)
    assert not isinstance(examples, Masked)
    sequences = (examples.inputs, examples.targets)
    inputs, targets = (one.tokens[0, : one.lengths[0]] for one in sequences)
    return _without_eos(inputs, experiment.vocab), _without_eos(targets, experiment.vocab)


def _without_eos(tokens: np.ndarray, vocab: Vocab) -> np.ndarray:
    return tokens[:-1] if tokens[-1:].tolist() == [vocab.eos] else tokens


def _heldout_text(run: CompiledRun, length: int) -> tuple[np.ndarray, str]:
    """Returns the first `length` tokens, int32, of the first held-out document that long, or of the longest one."""
    documents = run.corpora.heldout_documents.by_corpus[run.experiment.tasks[0].corpus]
    offsets = documents.store.offsets
    lengths = offsets[documents.index + 1] - offsets[documents.index] - 1  # without EOS
    i = int(np.argmax(np.minimum(lengths, length)))
    return documents.tokens(i)[:length].astype(np.int32), documents.name(i)


def _heldout_pair(run: CompiledRun) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the prompt and the start of the response, int32, of the first eligible held-out document; its name."""
    documents = run.corpora.heldout_documents.by_corpus[run.experiment.tasks[0].corpus]
    documents, _ = eligible(documents, run.experiment.window_specs[0])
    tokens = documents.tokens(0).astype(np.int32)
    prompt, response = np.split(tokens, [documents.store.prompt_lengths[documents.index[0]]])
    return prompt, response[:_MAX_TOKENS], documents.name(0)


def _block(title: str, text: str) -> str:
    return textwrap.indent(text, " " * 8 + "| ", lambda _: True).replace(" " * len(title), title, 1)
