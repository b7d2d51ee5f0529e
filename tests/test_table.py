"""What must hold of every objective, with every architecture that supports it: examples, batches, leaks and one step.

A new entry of OBJECTIVES and a new file of configs/ are tested without a change to this file.
"""

import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import pathlib
from collections import Counter
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs.corpora import EXPERIMENTS
from configs.sizes import DIAL
from contract.batch import Batch, check_batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from contract.windows import Windows
from experiment.experiment import Experiment, make_experiment
from experiment.objective import make_objective
from experiment.optimizer import make_optimizer
from learners.learner import TokenPredictionLearner
from models.config import ModelConfig
from models.transformer import init_params
from objectives import OBJECTIVES, Mixture, denoisers_of
from objectives.algebra.noise import valid_positions
from objectives.algebra.sequences import Sequences
from objectives.losses.cross_entropy import target_side
from objectives.objective import Masked, Objective
from objectives.rows.collate import extra_columns_of
from run.step import init_state, make_train_step
from tests.models import tiny
from tests.objectives.helpers import t5_after_conversion, vocab
from tests.table import (
    CASES,
    CONFIGS,
    PAIRS,
    changed_token,
    objective_of,
    presets_of,
    random_columns,
    random_windows,
    shares_rows,
    small_config,
    small_experiment,
)

ROWS = 16
VOCAB = vocab()


# Configs


def test_every_objective_has_a_config():
    used = {type(denoiser.objective) for name, _ in CASES for denoiser in denoisers_of(objective_of(name), name)}
    assert set(OBJECTIVES.values()) - {Mixture} == used


@functools.cache  # the configs share their sizes
def num_parameters(model: ModelConfig) -> int:
    shapes = jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(("config", "preset"), [(name, preset) for name in CONFIGS for preset in presets_of(name)])
def test_every_preset_of_every_config_is_valid(config, preset):
    fields = importlib.import_module(f"configs.{config}").get_config(preset).to_dict()
    model, variants = (
        make_experiment(fields).model,
        getattr(importlib.import_module(f"configs.{config}"), "VARIANTS", ()),
    )
    if preset not in {*DIAL, *variants}:  # a paper's size
        assert num_parameters(model) > 4e6  # Ettin 17m, with a table of bytes
    if preset in DIAL:
        assert model.d_model == DIAL[preset].d_model
    for architecture in sorted(objective_of(f"{config}:{preset}").architectures - {model.architecture}):
        make_experiment(fields | {"model": fields["model"] | {"architecture": architecture}})


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_presets_and_unsupported_architectures_are_refused(config):
    with pytest.raises(ValueError, match="unknown preset 'huge': use 'tiny', "):
        importlib.import_module(f"configs.{config}").get_config("huge")
    if config in EXPERIMENTS:
        assert {*DIAL} <= {*presets_of(config)}
    for architecture in {"encoder_decoder", "decoder_only", "encoder_only"} - objective_of(config).architectures:
        with pytest.raises(ConfigError, match=rf"model.architecture='{architecture}' does not go with objective"):
            make_experiment(small_config(config, architecture))


# Examples of every objective


def objective_params():
    for name, architecture in dict(CASES).items():  # each config on one of its architectures
        fields = small_config(name, architecture)["objective"]
        for denoiser in denoisers_of(make_objective(fields), name):
            label = name if denoiser.name == name else f"{name}.{denoiser.name}"
            yield pytest.param(denoiser.objective, id=label)


def chooses_by_text(objective: Objective) -> bool:
    """Whether what is hidden depends on the hidden tokens themselves, as PEGASUS' principal sentences do."""
    return getattr(objective, "select", "") == "principal"


every_objective = pytest.mark.parametrize("objective", list(objective_params()))
LENGTHS = np.random.default_rng(0).permutation([*range(1, 13), *range(13, 91, 2)])  # of 51 texts


@functools.cache
def texts_of(kind: str, lengths: tuple[int, ...] = tuple(LENGTHS.tolist())) -> Windows:
    """Windows with tokens after each example's end, and with every column that an objective may read.

    kind: "random", "lines", "EOS" (nothing else) or "documents", in and after which there are EOS.
    """
    generator, lengths = np.random.default_rng(len(kind)), np.asarray(lengths)

    def raw_tokens(lengths):
        shape = len(lengths), int(lengths.max())
        tokens = generator.integers(VOCAB.content_start, VOCAB.content_end, shape).astype(np.int32)
        if kind == "lines":
            tokens[generator.random(shape) < 0.2] = VOCAB.content_start + ord("\n")
        elif kind == "EOS":
            tokens[:] = VOCAB.eos
        elif kind == "documents":
            tokens[generator.random(shape) < 0.05] = VOCAB.eos
            tokens[::2, lengths[::2] - 1] = VOCAB.eos
        return tokens

    tokens, keys = raw_tokens(lengths), generator.integers(0, 2**63, len(lengths)).astype(np.uint64)
    others = generator.permutation(lengths)
    columns = {"others_tokens": raw_tokens(others), "others_lengths": others} | random_columns(generator, lengths)
    return Windows(tokens, lengths, np.arange(len(lengths)), keys, np.zeros(len(lengths), np.int32), **columns)


def kinds_of(objective: Objective) -> list[str]:
    return ["random", "lines", "EOS"] + ["documents"] * objective.eos_in_windows


def result_of(objective: Objective, method: str, windows: Windows, chosen=slice(None)):
    """`corrupt` or `hidden_mask` of the windows `chosen`, cut to the longest of them as a batch is."""
    chosen = np.arange(len(windows.lengths))[chosen]
    lengths = windows.lengths[chosen]
    columns = extra_columns_of(objective.extra_columns, windows, chosen)
    if "others" in columns:
        others = columns["others"]
        columns["others"] = Sequences(others.tokens[:, : others.lengths.max()], others.lengths)
    tokens = windows.tokens[chosen, : lengths.max()]
    return getattr(objective, method)(tokens, lengths, windows.keys[chosen], VOCAB, **columns)


@functools.cache
def examples_of(objective: Objective, kind: str):
    """The examples and the hidden raw tokens of `texts_of(kind)`."""
    return tuple(result_of(objective, method, texts_of(kind)) for method in ("corrupt", "hidden_mask"))


def raw_text(objective: Objective, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that examples may contain, int32 [E, W], and where they are valid, bool [E, W]; "others" last."""
    tokens, valid = windows.tokens, valid_positions(windows.lengths, windows.tokens.shape[1])
    if "others" in objective.extra_columns:
        tokens = np.concatenate([tokens, windows.others_tokens], axis=1)
        others = valid_positions(windows.others_lengths, windows.others_tokens.shape[1])
        valid = np.concatenate([valid, others], axis=1)
    return tokens, valid


def example(examples, e: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of example e, int32 [n] each."""
    n = examples.inputs.lengths[e]
    if isinstance(examples, Masked):
        return examples.inputs.tokens[e, :n], examples.targets[e, :n]
    return examples.inputs.tokens[e, :n], examples.targets.tokens[e, : examples.targets.lengths[e]]


def fields_of(examples, e: int) -> dict[str, np.ndarray]:
    """All fields of example e, cut to its length."""
    columns = {name: getattr(examples, name)[e] for name in examples._fields[2:] if getattr(examples, name) is not None}
    length = (examples.inputs if isinstance(examples, Masked) else examples.targets).lengths[e]
    cut = {name: column[:length] for name, column in columns.items() if column.ndim}
    return dict(zip(("inputs", "targets"), example(examples, e), strict=True)) | columns | cut


@every_objective
def test_restored_text_equals_the_raw_text_and_lengths_and_sentinels_keep_their_bounds(objective):
    for kind in kinds_of(objective):
        windows, (examples, hidden) = texts_of(kind), examples_of(objective, kind)
        bounds, max_sentinels = objective.output_lengths(windows.lengths), objective.num_sentinels(windows.lengths)
        texts, valid = raw_text(objective, windows)
        if isinstance(examples, Masked):
            assert (examples.selected.sum(axis=1) <= objective.most_scored(windows.lengths)).all()
        for e, length in enumerate(windows.lengths):
            raw = windows.tokens[e, :length].tolist()
            inputs, targets = example(examples, e)
            is_masked = isinstance(examples, Masked)
            assert inputs.dtype == targets.dtype == np.int32
            assert len(inputs) <= bounds.inputs[e] and (is_masked or len(targets) <= bounds.targets[e])
            both = 0 if is_masked else len(inputs) + len(targets)
            assert both <= bounds.both[e] <= bounds.inputs[e] + bounds.targets[e]
            used = set(np.intersect1d(np.concatenate([inputs, targets]), VOCAB.sentinels).tolist())
            assert used == set(VOCAB.sentinels[: len(used)].tolist()) and len(used) <= max_sentinels[e]
            restored = objective.restore(inputs, targets, VOCAB)
            if not objective.covers_window:  # raw tokens only, and all of them that are not hidden
                counts = Counter(restored.tolist())
                assert not counts - Counter(texts[e, valid[e]].tolist())
                assert not Counter(texts[e, valid[e] & ~hidden[e]].tolist()) - counts
            elif restored is None:
                in_parts = objective.has_positions  # MASS shows other tokens in the fragment, and GLM ends each part
                counts = Counter([t for t in [*inputs.tolist(), *targets.tolist()] if t not in {*used, VOCAB.mask}])
                added = counts - Counter(raw)  # an EOS ends the inputs, and another the targets
                assert not Counter(raw) - counts
                assert objective.repeats_targets or in_parts or added in (Counter(), Counter({VOCAB.eos: 2}))
            else:  # the EOS of a document may have become the EOS of the example, or one of those that pad it
                while getattr(objective, "padded_length", 0) and raw[-1:] == [VOCAB.eos]:
                    raw.pop()
                assert restored.tolist() in ([raw, raw[:-1]] if raw[-1:] == [VOCAB.eos] else [raw])


@every_objective
def test_inputs_do_not_depend_on_hidden_tokens_and_contain_all_other_tokens(objective):
    if chooses_by_text(objective):  # the chosen sentences depend on the text; what the inputs show, on them alone
        objective = dataclasses.replace(objective, select="random")
    for kind in kinds_of(objective):
        windows, (examples, hidden) = texts_of(kind), examples_of(objective, kind)
        tokens, valid = raw_text(objective, windows)
        assert hidden.shape == tokens.shape and not (hidden & ~valid).any()
        width = windows.tokens.shape[1]
        own, others = np.split(np.where(hidden, changed_token(VOCAB, tokens), tokens), [width], axis=1)
        changed = windows._replace(tokens=own, others_tokens=others if others.size else windows.others_tokens)
        of_changed = result_of(objective, "corrupt", changed)
        for e in range(len(windows.lengths)):
            inputs = example(examples, e)[0].tolist()
            assert inputs == example(of_changed, e)[0].tolist()
            assert not Counter(tokens[e, valid[e] & ~hidden[e]].tolist()) - Counter(inputs)


@every_objective
def test_an_example_does_not_depend_on_the_other_examples_of_its_batch(objective):
    for kind in kinds_of(objective):
        together, _ = examples_of(objective, kind)
        for e in range(0, len(LENGTHS), 3):
            alone = result_of(objective, "corrupt", texts_of(kind), slice(e, e + 1))
            fields, fields_alone = fields_of(together, e), fields_of(alone, 0)
            assert fields.keys() == fields_alone.keys()
            for name in fields:
                np.testing.assert_array_equal(fields[name], fields_alone[name], err_msg=name)


@every_objective
def test_measured_corruption_rates_agree_with_the_expected_ones(objective):
    """To within 5%, over windows long enough that rounding does not matter; 12%, four standard errors, of 400 rates."""
    rel = 0.12 if getattr(objective, "mask_count", "") == "uniform" else 0.05
    expected, windows = objective.expected(), texts_of("random", (500,) * 400)
    if "selected" in expected:
        examples = result_of(objective, "corrupt", windows)
        valid = valid_positions(examples.inputs.lengths, examples.targets.shape[1])
        selected, inputs = examples.selected & valid, examples.inputs.tokens
        masked, changed = selected & (inputs == VOCAB.mask), selected & (inputs != examples.targets)
        measured = {"selected": selected.sum() / valid.sum(), "masked": masked.sum() / selected.sum()}
        measured["random"] = (changed & ~masked).sum() / selected.sum()
        assert measured == pytest.approx({name: expected[name] for name in measured}, rel=rel, abs=1e-9)
        expected["corrupted"] = expected["selected"] * (expected["masked"] + expected["random"])
    hidden_share = result_of(objective, "hidden_mask", windows).mean()
    if objective.covers_window and hidden_share and "corrupted" in expected:
        assert hidden_share == pytest.approx(expected["corrupted"], rel=rel)


def bert() -> Vocab:
    """EOS is [SEP], and BOS is [CLS]."""
    ascending = t5_after_conversion()
    return dataclasses.replace(ascending, eos=ascending.sep, bos=ascending.cls)


def ids_in(other: Vocab) -> np.ndarray:
    """int32 [VOCAB.size]: the ids of VOCAB -> those of `other`."""
    table = np.full(VOCAB.size, -1, np.int32)
    for role in ("pad", "unk", "mask", "bos", "cls", "sep", "eos"):
        table[getattr(VOCAB, role)] = getattr(other, role)
    table[VOCAB.sentinels], table[[id_ for _, id_ in VOCAB.modes]] = other.sentinels, [id_ for _, id_ in other.modes]
    table[VOCAB.content_start : VOCAB.content_end] = np.arange(other.content_start, other.content_end)
    return table


@every_objective
@pytest.mark.parametrize("make_vocab", [t5_after_conversion, bert])
def test_examples_do_not_depend_on_the_special_ids(objective, make_vocab):
    other = make_vocab()
    table = ids_in(other)
    for kind in set(kinds_of(objective)) - {"EOS"}:
        windows, (expected, hidden) = texts_of(kind), examples_of(objective, kind)
        columns = extra_columns_of(objective.extra_columns, windows, np.arange(len(LENGTHS)))
        if "others" in columns:
            columns["others"] = Sequences(table[columns["others"].tokens], columns["others"].lengths)
        arguments = table[windows.tokens], windows.lengths, windows.keys, other
        examples = objective.corrupt(*arguments, **columns)
        np.testing.assert_array_equal(hidden, objective.hidden_mask(*arguments, **columns))
        for e in range(len(LENGTHS)):
            (inputs, targets), (inputs_there, targets_there) = example(expected, e), example(examples, e)
            np.testing.assert_array_equal(table[inputs], inputs_there)
            np.testing.assert_array_equal(table[targets], targets_there)
            if isinstance(expected, Masked):
                of_both = (part.selected[e, : len(inputs)] for part in (expected, examples))
                np.testing.assert_array_equal(*of_both)
            restored = objective.restore(inputs, targets, VOCAB)
            restored_there = objective.restore(inputs_there, targets_there, other)
            if restored is None or restored_there is None:
                assert restored_there is None, "the special ids only take information away"
                assert restored is None or other.sep == other.eos
            else:
                np.testing.assert_array_equal(table[restored], restored_there)


# Batches of every case

every_case = pytest.mark.parametrize(("name", "architecture"), CASES)
every_pair = pytest.mark.parametrize(("name", "architecture"), PAIRS)
# Each config on one of its architectures; on the others in the slow tests.
each_config_once = pytest.mark.parametrize(
    ("name", "architecture"),
    [pytest.param(*pair, marks=() if pair in dict(PAIRS).items() else pytest.mark.slow) for pair in PAIRS],
)


class Case(NamedTuple):
    """A small experiment, random windows, and the batch that it makes of them."""

    experiment: Experiment
    windows: Windows
    batch: Batch


@functools.cache
def experiment_of(name: str, architecture: str, **overrides) -> Experiment:
    return small_experiment(name, architecture, **overrides)


@functools.cache
def case(name: str, architecture: str) -> Case:
    experiment = experiment_of(name, architecture)
    windows = random_windows(experiment, ROWS, same_keys=False)
    return Case(experiment, windows, experiment.collate(windows, ROWS))


DIGESTS = pathlib.Path(__file__).parent / "fixtures" / "batches.json"


def batch_digest(batch: Batch) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for field, array in sorted(batch.items()):
        digest.update(f"{field} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


@every_case
def test_a_batch_is_the_one_of_the_commit_before(name, architecture):
    """Runs continue, and repeat published ones, only if batches stay the same bit for bit.

    A change of a batch that is meant is a line of the changelog, and a new value in tests/fixtures/batches.json. A new
    config needs none.
    """
    known = json.loads(DIGESTS.read_text())
    assert set(known) <= {", ".join(pair) for pair in CASES}, "a case of the file does not exist any more"
    digest = batch_digest(case(name, architecture).batch)
    assert known.get(f"{name}, {architecture}", digest) == digest


def most_scored_in(batch: Batch) -> int:
    (weights,) = (field for name, field in batch.items() if name.endswith("_loss_weights"))
    return int((weights > 0).sum(axis=1).max())


def hidden_by(experiment: Experiment) -> int:
    """The token that hides targets of causal rows, -1 if none does."""
    masks = any(denoiser.objective.masks_inputs for denoiser in experiment.denoisers)
    return experiment.vocab.mask if masks else -1


def check_batches(experiment: Experiment) -> int:
    """Checks batches of full and of shorter windows. Returns the most positions that a row of the full ones scores."""
    most, bound = 0, experiment.learner.setup.most_scored
    for seed in range(3):
        windows = random_windows(experiment, ROWS, same_keys=False, seed=seed)
        shorter = np.random.default_rng(seed).integers(1, windows.lengths + 1)
        fields = {"lengths": shorter, "prompt_lengths": np.minimum(windows.prompt_lengths, shorter - 1)}
        batches = [experiment.collate(part, ROWS) for part in (windows, windows._replace(**fields))]
        for batch in batches:
            check_batch(batch, experiment.model.architecture, hidden_by(experiment))
            assert most_scored_in(batch) <= bound <= 40
        most = max(most, most_scored_in(batches[0]))
    return most


# The positions of 40 at which an encoder computes logits, by config or variant. New configs need not be here.
ENCODER_LOGITS = {
    "block_diffusion": 20,
    "classification": 1,
    "electra": 6,
    "masked_diffusion": 40,
    "mlm": 6,
    "mlm:roberta": 7,
    "mlm:decay": 12,
    "mlm:mlm_u": 40,
    "nsp": 6,
    "simcse:simcse": 0,
    "simcse:with_mlm": 6,
    "sop": 6,
    "unilm": 6,
}


def own_logits(experiment: Experiment) -> int:
    """The logits of a row of 40 positions that the objectives' own `most_scored` allows: all if more than half."""
    if any(spec.documents in ("pack", "whole") for spec in experiment.window_specs):
        return 40
    bounds = [
        end.most_scored(np.arange(1, spec.raw_length + 1)).max()
        for denoiser, spec in zip(experiment.denoisers, experiment.window_specs, strict=True)
        for end in denoiser.ends
    ]
    most = experiment.data.examples_per_row * int(max(bounds))
    return most if most <= 20 else 40


def test_every_encoder_of_the_table_of_logits_exists():
    of_encoders = {name for name, architecture in CASES if architecture == "encoder_only"}
    assert set(ENCODER_LOGITS) <= of_encoders | {name.partition(":")[0] for name in of_encoders}


@every_case
def test_batches_are_valid_and_score_no_more_positions_than_their_bound(name, architecture):
    experiment = experiment_of(name, architecture)
    most = check_batches(experiment)
    if name.startswith(("clm", "mlm:bert", "unilm", "nsp", "sop")):
        assert most == experiment.learner.setup.most_scored  # reached, so that no smaller bound would hold
    if architecture == "encoder_only":
        known, computed = {name, name.partition(":")[0]} & set(ENCODER_LOGITS), experiment.learner.num_logits(40)
        assert computed == ENCODER_LOGITS[max(known, key=len)] if known else computed <= own_logits(experiment)


@pytest.mark.parametrize("packing", ["equal", "planned"])
@pytest.mark.parametrize(
    ("name", "architecture"),
    [case for case in CASES if shares_rows(case[0]) and case[0].split(":")[0] in ("mlm", "unilm", "bart", "ul2")],
)
def test_rows_of_several_examples_are_valid_and_score_no_more_positions_than_their_bound(name, architecture, packing):
    check_batches(small_experiment(name, architecture, data__examples_per_row=2, data__packing=packing))


def test_rows_of_whole_documents_have_no_bound_but_their_length():
    assert experiment_of("sft", "decoder_only").learner.setup.most_scored == 40
    assert experiment_of("clm", "decoder_only", data__documents="pack").learner.setup.most_scored == 40


@every_pair
def test_batches_contain_the_vocabularys_pad_and_no_other(name, architecture):
    experiment, windows, expected = case(name, architecture)
    swapped = dataclasses.replace(experiment.vocab, pad=experiment.vocab.unk, unk=experiment.vocab.pad)
    batch = dataclasses.replace(experiment.collate, vocab=swapped)(windows, ROWS)
    check_batch(batch, architecture, hidden_by(experiment))
    for field, array in expected.items():
        if field.endswith("_tokens"):
            assert not (array == experiment.vocab.unk).any()
            array = np.where(array == experiment.vocab.pad, swapped.pad, array)
        np.testing.assert_array_equal(batch[field], array, err_msg=field)


# With bytes, which have pad, eos and unk: the special token that a config needs and does not find. New ones need not be
# here.
NEEDED = {
    "": ("clm", "deshuffling", "multi_token_prediction", "prefix_lm", "sft"),
    "[CLS]": ("classification", "electra", "mlm", "nsp", "simcse", "sop", "unilm"),
    "[MASK]": ("bart",),
    "[R]": ("ul2", "ul2r"),
    "<extra_id_0>": ("fim", "iid_denoising", "span_corruption", "ul2_baselines"),
}
WITHOUT = ("bart:token_deletion", "bart:sentence_permutation", "bart:document_rotation", "iid_denoising:iid_15_d_d")


@every_case
def test_an_objective_that_lacks_a_special_token_is_refused(name, architecture):
    overrides = {"data__append_special_tokens": False}
    needed = next((token for token, names in NEEDED.items() if name.partition(":")[0] in names), None)
    if name == "ul2:released":
        needed = "[NLU]"
    if name == "multi_token_prediction:deepseek_v3":
        needed = "<extra_id_0>"  # of its rows of FIM
    if name in WITHOUT or (name == "classification" and architecture != "encoder_only"):
        needed = ""
    if needed is None:
        try:
            small_experiment(name, architecture, **overrides)
            needed = ""
        except ConfigError as error:
            needed = str(error).partition("the special token ")[2].partition(",")[0]
    if needed:
        with pytest.raises(ConfigError) as error:
            small_experiment(name, architecture, **overrides)
        what = f"needs the special token {needed}, which data.tokenizer='byte' lacks: "
        assert f"{what}set data.append_special_tokens=True" in str(error.value) and "\n" not in str(error.value)
        return
    experiment = small_experiment(name, architecture, **overrides)
    ids = experiment.vocab
    assert (ids.mask, ids.cls, ids.sep, ids.bos, ids.modes, ids.size) == (-1, -1, -1, -1, (), 259)
    batch = experiment.collate(random_windows(experiment, 8, same_keys=False), 8)
    check_batch(batch, architecture)
    assert all((batch[field] >= 0).all() and (batch[field] < 259).all() for field in batch if "_tokens" in field)


# Leaks: no prediction depends on the token that it predicts, bit for bit


@functools.cache
def model_of(config):
    return functools.partial(tiny.run, config, tiny.params(config, 1))


def logits(experiment: Experiment, batch: Batch) -> np.ndarray:
    """The logits of a batch of any number of rows, computed ROWS rows at a time, so that a model compiles once."""
    check_batch(batch, experiment.model.architecture, hidden_by(experiment))
    num_rows = len(batch["example_source"])
    padded = {
        name: np.pad(array, [(0, -num_rows % ROWS), *[(0, 0)] * (array.ndim - 1)]) for name, array in batch.items()
    }
    chunks = [{name: array[i : i + ROWS] for name, array in padded.items()} for i in range(0, num_rows, ROWS)]
    return np.concatenate([model_of(experiment.model)(chunk) for chunk in chunks])[:num_rows]


@pytest.mark.parametrize(
    ("name", "architecture"), [case for case in CASES if not chooses_by_text(objective_of(case[0]))]
)
def test_no_bit_of_a_prediction_depends_on_the_predicted_token(name, architecture):
    assert_no_prediction_depends_on_its_token(experiment_of(name, architecture))


def assert_no_prediction_depends_on_its_token(experiment):
    """All rows of a first batch are equal. In a second batch row i has raw token i changed; everything else, all
    randomness included, is the same. Where the objective reads "others", later rows have one token of those changed.

    Where the objective hides the changed token, the inputs must stay the same. Where the inputs show a token that is
    predicted nevertheless (full targets such as BART's; tokens that MLM keeps), the row gets the inputs of the first
    batch, unless it is read causally. Then, wherever a scored target changed, the logits must stay the same to the last
    bit; where targets repeat tokens (Objective.repeats_targets), at the first place of the token, and not at all later
    ones.
    """
    vocab, collate = experiment.vocab, experiment.collate
    # An objective may read "others" or permute the text for some random draws only.
    objectives = [denoiser.objective for denoiser in experiment.denoisers]
    varies = any(objective.extra_columns or not objective.covers_window for objective in objectives)
    for denoiser_id, seed in itertools.product(range(len(objectives)), range(3 if varies else 1)):
        spec, objective = experiment.window_specs[denoiser_id], objectives[denoiser_id]
        raw, extra_columns = spec.raw_length, objective.extra_columns
        num_rows = raw * 2 if "others" in extra_columns else raw
        windows = random_windows(experiment, num_rows, same_keys=True, seed=seed)
        windows = windows._replace(
            denoiser_ids=np.full(num_rows, denoiser_id, np.int32),
            lengths=np.full(num_rows, raw),
            tokens=windows.tokens[:, :raw],
            others_tokens=windows.others_tokens[:, :raw],
            others_lengths=np.full(num_rows, raw),
        )
        diagonal = np.arange(num_rows)
        texts = np.concatenate([windows.tokens, windows.others_tokens], axis=1)[:, :num_rows]
        changed_texts = texts.copy()
        changed_texts[diagonal, diagonal] = changed_token(vocab, texts[diagonal, diagonal])
        changed = windows._replace(tokens=changed_texts[:, :raw])
        if "others" in extra_columns:
            changed = changed._replace(others_tokens=changed_texts[:, raw:])
        examples = collate.examples(windows), collate.examples(changed)
        same_inputs = (examples[0].inputs.tokens == examples[1].inputs.tokens).all(axis=1)
        columns = extra_columns_of(extra_columns, windows, diagonal)
        hidden = objective.hidden_mask(windows.tokens, windows.lengths, windows.keys, vocab, **columns)[
            diagonal, diagonal
        ]
        leaked = diagonal[hidden & ~same_inputs]
        assert not leaked.size, f"{spec.name}: the inputs depend on the hidden raw tokens {leaked}"
        examples = examples[0], with_inputs_of(examples[0], examples[1], scored_tokens_differ(*examples))

        before, after = (collate.place(placed, windows, num_rows) for placed in examples)
        side = target_side(before)
        logits_differ = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
        targets = before[f"{side}_target_tokens"], after[f"{side}_target_tokens"]
        scored = (before[f"{side}_loss_weights"] > 0) & (after[f"{side}_loss_weights"] > 0)
        predicted = scored & (targets[0] != targets[1])
        leaks = predicted & logits_differ
        if objective.repeats_targets:
            is_copy = np.cumsum(predicted, axis=1) > 1
            assert (leaks & is_copy).any(), f"{spec.name}: no prediction reads a copy, so repeats_targets must be False"
            leaks &= ~is_copy
        assert not leaks.any(), f"{spec.name}: raw token, position {np.argwhere(leaks)[:5].tolist()}"
        # Every scored token with a different ordinary token was changed in some row, and the model depends on its text.
        changeable = changed_token(vocab, targets[0][0]) != targets[0][0]
        np.testing.assert_array_equal(predicted.any(axis=0), scored[0] & changeable)
        assert logits_differ.any() or hidden.all()


def scored_tokens_differ(before, after):
    """bool [E]: whether any scored token of the two examples differs. False in place where the row is read causally."""
    if isinstance(before, Masked):
        causal = False if before.causal is None else before.causal
        return ((before.targets != after.targets) & before.selected).any(axis=1) & ~np.asarray(causal)
    return (before.targets.tokens != after.targets.tokens).any(axis=1)


def with_inputs_of(before, after, rows):
    """`after` with the inputs of `before` in `rows`, bool [E]."""
    inputs = np.where(rows[:, None], before.inputs.tokens, after.inputs.tokens)
    return after._replace(inputs=Sequences(inputs, after.inputs.lengths))


@every_pair
def test_logits_of_a_packed_example_do_not_depend_on_the_other_examples_of_its_row(name, architecture):
    if not shares_rows(name):
        with pytest.raises(ConfigError, match=r"data.examples_per_row=2 does not go with"):
            experiment_of(name, architecture, data__examples_per_row=2)
        return
    experiment = experiment_of(name, architecture, data__examples_per_row=2, data__documents="split")
    windows = random_windows(experiment, 4, same_keys=False)
    assert_second_segments_do_not_depend_on_first(experiment, windows, 4)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_logits_of_an_example_of_a_planned_row_do_not_depend_on_the_other_examples(architecture):
    experiment = experiment_of("ul2", architecture, data__examples_per_row=2, data__packing="planned")
    num_rows = len(experiment.batch_spec.plan.denoiser_ids)
    assert_second_segments_do_not_depend_on_first(
        experiment, random_windows(experiment, num_rows, same_keys=False), num_rows
    )


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize("name", ["clm", "sft"])
def test_logits_of_a_packed_document_do_not_depend_on_the_other_documents_of_its_row(name, architecture):
    experiment = experiment_of(name, architecture)
    windows = random_windows(experiment, 4, same_keys=False)
    lengths = np.asarray([13, 25, 37, 1])
    prompts = np.minimum(windows.prompt_lengths, lengths - 1)
    windows = windows._replace(row_ids=np.asarray([0, 0, 1, 1]), lengths=lengths, prompt_lengths=prompts)
    assert_second_segments_do_not_depend_on_first(experiment, windows, 2)


def assert_second_segments_do_not_depend_on_first(experiment, windows, num_rows):
    """Changes every token of the first example of each row, which must change no bit of the logits of the second."""
    first = np.diff(windows.row_ids, prepend=-1) > 0
    changed = windows._replace(
        tokens=np.where(first[:, None], changed_token(experiment.vocab, windows.tokens), windows.tokens)
    )
    before, after = experiment.collate(windows, num_rows), experiment.collate(changed, num_rows)
    logits_differ = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
    segments = before[f"{target_side(before)}_segment_ids"]
    np.testing.assert_array_equal(segments, after[f"{target_side(before)}_segment_ids"])
    assert (segments == 2).any() and not logits_differ[segments == 2].any()
    assert logits_differ[segments == 1].any()


# Steps


def start_of(learner, optimizer):
    """The state before the first step, made operation by operation: programs that all configs share; and the step."""
    optimizer = make_optimizer(optimizer, 50, learner.model)
    step = make_train_step(learner, optimizer, grad_accum_steps=1, seed=0)
    return init_state(learner, optimizer, 0), jax.jit(step)


@functools.cache
def start_without_objective(model, setup, optimizer):
    """`start_of` any config with this model: the loss of its tokens reads the batch and not the objective."""
    return start_of(TokenPredictionLearner(None, model, setup), optimizer)


@each_config_once
def test_steps_on_one_batch_lower_its_loss_and_change_every_parameter(name, architecture):
    """Of a batch that has text in every row, so that every part of the model has a gradient."""
    experiment, _, batch = case(name, architecture)
    setup = dataclasses.replace(experiment.learner.setup, num_groups=8)  # for all, so that few programs are compiled
    if architecture != "encoder_only":
        setup = dataclasses.replace(setup, most_scored=40)
    learner = dataclasses.replace(experiment.learner, setup=setup)
    if type(learner) is TokenPredictionLearner:
        state, step = start_without_objective(learner.model, setup, experiment.optimizer)
    else:
        state, step = start_of(learner, experiment.optimizer)
    first, metrics_of_steps = state.params, []
    for _ in range(13):
        state, metrics = step(state, batch)
        metrics = jax.device_get(metrics)  # in NumPy, since each operation of JAX is a program to compile
        assert 0 < metrics["grad_norm"] < np.inf and metrics["skipped_count"] == 0
        metrics_of_steps.append(metrics)
    before, *_, after = metrics_of_steps
    assert 0 < after["loss_sum"] / after["weight_sum"] < 0.99 * before["loss_sum"] / before["weight_sum"]
    if learner.objective.learner == "token_prediction":
        weights = batch[f"{target_side(batch)}_loss_weights"]
        assert before["weight_sum"] == pytest.approx(weights.sum(), rel=1e-6)
        assert before["scored_tokens"] == (weights > 0).sum()
        by_denoiser = np.bincount(batch["example_source"].ravel(), weights.ravel(), 8)
        np.testing.assert_allclose(before["weight_sum_by_group"], by_denoiser, rtol=1e-5)
        np.testing.assert_allclose(before["loss_sum_by_group"].sum(), before["loss_sum"], rtol=1e-5)
    is_same = jax.tree.map(np.array_equal, *jax.device_get((first, state.params)))
    unchanged = [jax.tree_util.keystr(path) for path, same in jax.tree_util.tree_leaves_with_path(is_same) if same]
    if learner.objective.learner in ("classification", "contrastive"):  # predict no tokens
        unchanged = [path for path in unchanged if "prediction_head" not in path]
    assert unchanged == []
