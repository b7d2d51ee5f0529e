"""Hidden spans are laid out as the objective lays out the same spans in training, for every config."""

import dataclasses
import itertools

import numpy as np
import pytest

from evaluation.probes import PROBES
from objectives import bart, denoisers_of, fim
from objectives.algebra.infilling import Cover
from objectives.any_order import AnyOrder
from objectives.bart import BART
from objectives.block_diffusion import BlockDiffusion
from objectives.clm import CLM
from objectives.denoising import Denoising
from objectives.fim import FIM
from objectives.glm import GLM, Blanks
from objectives.in_place import InPlace
from objectives.masked_inputs import MaskedInputs
from objectives.mass import MASS
from objectives.mlm import MLM
from objectives.mntp import MNTP
from objectives.pegasus import PEGASUS
from objectives.prefix_lm import PrefixLM
from objectives.reverse import Reverse
from objectives.sft import SFT
from tests.objectives.helpers import random_keys, vocab
from tests.table import CASES, objective_of, small_experiment

VOCAB = vocab()
TEXT = np.arange(40, 60, dtype=np.int32)
DENOISERS = {
    f"{name}/{denoiser.name}": denoiser.objective
    for name in dict.fromkeys(name for name, _ in CASES)
    for denoiser in denoisers_of(objective_of(name), name)
}


def examples_of_training(objective, start, stop, monkeypatch):
    """Inputs and targets that `objective` makes of TEXT in training where it draws this span alone, or None."""
    is_hidden, columns = (np.arange(20) >= start) & (np.arange(20) < stop), {}
    if isinstance(objective, Reverse):
        objective = dataclasses.replace(objective, reverse_share=0.0)
    if isinstance(objective, MaskedInputs):  # without masks: tests/objectives/test_masked_inputs.py
        objective = CLM()
    if isinstance(objective, AnyOrder):
        order = np.concatenate([np.flatnonzero(~is_hidden), np.flatnonzero(is_hidden)])
        monkeypatch.setattr(AnyOrder, "places", lambda *args: order[None])
        examples = dataclasses.replace(objective, predicted_share=1.0).corrupt(
            TEXT[None], np.array([20]), random_keys(1), VOCAB
        )
        assert examples.places[0].tolist() == objective.prompting.hide(TEXT, start, stop, VOCAB).places.tolist()
        return examples.inputs.tokens[0], examples.targets.tokens[0]
    if isinstance(objective, Denoising):
        if isinstance(objective, PrefixLM) and stop < len(TEXT):
            return None
        if getattr(objective, "random_token_rate", 0):
            objective = dataclasses.replace(objective, random_token_rate=0.0)
        monkeypatch.setattr(type(objective), "noise_mask", lambda *args: is_hidden[None])
    elif isinstance(objective, BART):
        if not objective.mask_rate:
            return None
        objective = dataclasses.replace(objective, permute_sentences=0.0, rotate=0.0, mask_random=0.0)
        heads = (np.arange(20) == start) if objective.mask_length == "span_poisson" else is_hidden
        covered = Cover(heads[None], (is_hidden & ~heads)[None])
        monkeypatch.setattr(bart.BART, "_cover", lambda *args: (covered, np.zeros(1, np.int64)))
    elif isinstance(objective, MASS):
        objective = dataclasses.replace(objective, mask_token_rate=1.0, random_token_rate=0.0)
        monkeypatch.setattr(MASS, "_sizes", lambda *args: np.array([stop - start]))
        monkeypatch.setattr(MASS, "_fragment", lambda *args: (np.array([start]), is_hidden[None]))
    elif isinstance(objective, GLM):
        monkeypatch.setattr(GLM, "_blanks", lambda *args: Blanks((np.arange(20) == start)[None], is_hidden[None]))
    elif isinstance(objective, PEGASUS):
        gaps = is_hidden[None], (np.arange(20) == start)[None]
        monkeypatch.setattr(PEGASUS, "_gaps", lambda *args: gaps)
    elif isinstance(objective, FIM):
        spm = float(objective.prompting.spm)
        objective = dataclasses.replace(objective, fim_rate=1.0, spm_rate=spm, min_document_length=1)
        if stop == len(TEXT):
            objective = dataclasses.replace(objective, fim_rate=0.0)
        monkeypatch.setattr(fim, "_cuts", lambda *args: np.array([[start, stop]]))
    elif isinstance(objective, MLM):
        objective = dataclasses.replace(objective, mask_token_rate=1.0, random_token_rate=0.0)
        selected = np.pad(is_hidden, 1)[None]
        monkeypatch.setattr(MLM, "select", lambda *args: selected)
        examples = objective.corrupt(TEXT[None], np.array([20]), random_keys(1), VOCAB)
        return examples.inputs.tokens[0, : examples.inputs.lengths[0]], np.zeros(0, np.int32)
    elif isinstance(objective, InPlace):
        objective = objective.heldout()  # a prompt has as many masks as its author wants
        columns = {"prompt_lengths": np.array([start])} if "prompt_lengths" in objective.extra_columns else {}
        if (columns or isinstance(objective, BlockDiffusion)) and stop < len(TEXT):
            return None  # responses are hidden, not texts in the middle; blocks do not read what is after them
        if isinstance(objective, MNTP):
            objective = dataclasses.replace(objective, mask_token_rate=1.0, random_token_rate=0.0)
        monkeypatch.setattr(type(objective), "select", lambda *args, **columns: (is_hidden[None], None))
        examples = objective.corrupt(TEXT[None], np.array([20]), random_keys(1), VOCAB, **columns)
        return examples.inputs.tokens[0], np.zeros(0, np.int32)
    elif isinstance(objective, SFT) and stop == len(TEXT):
        columns = {"prompt_lengths": np.array([start])}
    elif objective.extra_columns or objective.prompting is None or not hides(objective, start, stop):
        return None
    examples = objective.corrupt(TEXT[None], np.array([20]), random_keys(1), VOCAB, **columns)
    if examples.positions is not None:
        assert examples.positions[0, 0] == objective.prompting.hide(TEXT, start, stop, VOCAB).position
    return [one.tokens[0, : one.lengths[0]] for one in (examples.inputs, examples.targets)]


def hides(objective, start, stop):
    return objective.prompting.hide(TEXT, start, stop, VOCAB) is not None


SKIPPED = ("nsp", "sop", "unilm", "classification", "simcse", "teacherless")  # other texts or segments in a row


CONFIGS = list(dict.fromkeys(name.partition(":")[0] for name, _ in CASES))


@pytest.mark.parametrize("config", [config for config in CONFIGS if config not in SKIPPED])
def test_hidden_tokens_are_laid_out_as_in_training(config, monkeypatch):
    """In the middle and at the end of a text, for every denoiser of every variant."""
    names = [name for name in DENOISERS if name.partition("/")[0].partition(":")[0] == config]
    for name, (start, stop) in itertools.product(names, [(6, 9), (12, 20)]):
        objective = DENOISERS[name]
        with monkeypatch.context() as patch:
            expected = examples_of_training(objective, start, stop, patch)
        laid_out = objective.prompting.hide(TEXT, start, stop, VOCAB)
        assert (laid_out is None) == (expected is None), name
        if expected is not None:
            inputs, targets = expected
            assert laid_out.inputs.tolist() == inputs.tolist(), name
            if not isinstance(objective, MLM | InPlace):
                answered = [*laid_out.targets_start, *TEXT[start:stop]]
                assert targets[: len(answered)].tolist() == answered, name


FITS = {  # config -> the probes that fit, where it differs from its objective's rule
    "clm": "continuation exact_match minimal_pairs",
    "multi_token_prediction": "continuation exact_match minimal_pairs",
    "multi_token_prediction:deepseek_v3": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "multi_token_prediction:response": "exact_match",
    "future_summary": "continuation exact_match minimal_pairs",
    "future_summary:response": "exact_match",
    "next_latent": "continuation exact_match minimal_pairs",
    "next_latent:response": "exact_match",
    "masked_inputs": "continuation exact_match minimal_pairs",
    "reverse": "continuation exact_match minimal_pairs",
    "sigma_gpt": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "hybrid": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "clm_then_mlm": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "clm_then_mlm:clm_100": "continuation exact_match minimal_pairs",
    "masked_diffusion": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "masked_diffusion:response": "exact_match",
    "masked_diffusion:padded_response": "exact_match",
    "block_diffusion": "exact_match",
    "prefix_lm": "continuation exact_match minimal_pairs",
    "fim": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "span_corruption": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "iid_denoising": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "ul2": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "ul2r": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "ul2_baselines": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "bart": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "bart:sentence_permutation": "",
    "bart:document_rotation": "",
    "deshuffling": "",
    "mass": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "glm": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "pegasus": "continuation exact_match infilling minimal_pairs pseudo_log_likelihood",
    "sft": "exact_match",
    "teacherless": "exact_match",
    "mlm": "exact_match infilling minimal_pairs pseudo_log_likelihood",
    "nsp": "exact_match infilling minimal_pairs pseudo_log_likelihood",
    "sop": "exact_match infilling minimal_pairs pseudo_log_likelihood",
    "electra": "exact_match infilling minimal_pairs pseudo_log_likelihood",
    "unilm": "exact_match infilling minimal_pairs pseudo_log_likelihood",
    "unilm:left_to_right": "",
    "unilm:right_to_left": "",
}


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_has_the_probes_that_its_objective_allows(config):
    for name, architecture in CASES:
        if name.partition(":")[0] != config:
            continue
        experiment = small_experiment(name, architecture)
        if any(denoiser.objective.prompting is None for denoiser in experiment.denoisers):
            continue  # no language model
        expected = FITS.get(name, FITS.get(config, FITS["mlm"] if config == "simcse" else None))
        fitting = [probe for probe in PROBES if PROBES[probe]().denoisers(experiment)]
        assert " ".join(fitting) == expected, (name, architecture)
