"""Mixtures: which tables are valid, a batch, and shares that change during a run."""

import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Ramp, Windows
from data.windows.batches import loader
from experiment.experiment import make_experiment
from objectives import CLM, Mixture, PrefixLM, denoisers_of
from objectives.mixture import TableRow
from objectives.objective import RowShape
from tests.data.corpus import all_documents, store_of
from tests.objectives.helpers import make_collator, vocab
from tests.table import objective_of, small_config

CLM_ROW = {"name": "clm", "mode": "", "weight": 1.0}
PREFIX_LM = {"name": "prefix_lm", "target_fraction": 0.25, "split": "fixed", "sentinel": False}
PREFIX_LM_ROW = PREFIX_LM | {"mode": "[S]", "weight": 1.0}
MLM_ROW = small_config("mlm", "encoder_only")["objective"] | {"mode": "", "weight": 1.0}


def config_of(rows, architecture="decoder_only", **objective):
    fields = small_config("clm", architecture, data__documents="join")
    mixture = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": rows} | objective
    return fields | {"objective": mixture}


def scheduled(rows, *final_weights, begin_step=1, end_step=2, **objective):
    """A config whose weights change linearly to `final_weights`."""
    rows = {
        name: row | {"final_weight": weight} for (name, row), weight in zip(rows.items(), final_weights, strict=True)
    }
    return config_of(rows, schedule="linear", begin_step=begin_step, end_step=end_step, **objective)


ROWS = {"clm": CLM_ROW, "s": PREFIX_LM_ROW}
INVALID = {
    "no loss": (
        config_of({"clm": CLM_ROW | {"loss_weight": 0.0}}),
        "objective.denoisers.clm.loss_weight=0.0 must be above 0 and finite",
    ),
    "no mode": (config_of({"clm": {"name": "clm", "weight": 1.0}}), "config field objective.denoisers.clm.mode is mis"),
    "no common architecture": (
        config_of(ROWS | {"unilm": MLM_ROW | {"name": "unilm", "attention": "bidirectional"}}),
        "objective.denoisers have no model.architecture in common: clm: decoder_only or encoder_decoder; "
        "s: decoder_only or encoder_decoder; unilm: encoder_only",
    ),
    "unsupported architecture": (
        config_of(ROWS, "encoder_only"),
        r"model.architecture='encoder_only' does not go with objective.denoisers.clm \(CLM\): use 'decoder_only' or",
    ),
    "mode of an objective that predicts in place": (
        config_of({"mlm": MLM_ROW | {"mode": "[R]"}}, "encoder_only"),
        r"objective.denoisers.mlm.mode='\[R\]' is prepended to inputs .* MLM predicts in place: set it to ''",
    ),
    "mode of an objective that reads in another order": (
        config_of(
            {
                "any_order": {
                    "name": "any_order",
                    "shuffled_share": 1.0,
                    "predicted_share": 1.0,
                    "mode": "[R]",
                    "weight": 1.0,
                }
            }
        ),
        r"mode='\[R\]' is prepended to inputs .* AnyOrder reads a text in another order: set it to ''",
    ),
    "a mixture in a mixture": (
        config_of({"a": {"name": "mixture", "mode": "", "weight": 1.0}}),
        "objective.denoisers.a.name='mixture' is a mixture itself: it cannot be a row",
    ),
    "final weight without a schedule": (
        config_of({"clm": CLM_ROW | {"final_weight": 1.0}}),
        "objective.denoisers.clm.final_weight needs objective.schedule='linear'",
    ),
    "no final weight": (
        config_of(ROWS, schedule="linear", begin_step=0, end_step=1),
        "objective.schedule='linear' changes weights, and no denoiser has a final_weight",
    ),
    "final weights all 0": (scheduled(ROWS, 0.0, 0.0), "objective.denoisers: every final_weight is 0"),
    "end before begin": (
        scheduled(ROWS, 0.0, 1.0, begin_step=2, end_step=1),
        "begin_step=2 must be .*end_step=1 or less",
    ),
    "end after the run": (scheduled(ROWS, 0.0, 1.0, end_step=3), "objective.end_step=3 must be train.steps=2 or less"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_tables_raise_one_line(case):
    fields, message = INVALID[case]
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(fields)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["classification", "electra", "nsp", "simcse", "sop"])
def test_objectives_whose_learner_trains_no_rows_of_others_cannot_be_rows(name):
    row = small_config(name, "encoder_only")["objective"] | {"mode": "", "weight": 1.0}
    with pytest.raises(
        ConfigError, match=r"denoisers.a \(\w+\) cannot be a row of a mixture: its learner '\w+' trains "
    ):
        make_experiment(config_of({"a": row}, "encoder_only"))


def test_rows_of_weight_0_are_omitted():
    experiment = make_experiment(config_of(ROWS | {"mlm": MLM_ROW | {"weight": 0.0}}))
    assert experiment.denoiser_names == ("clm", "s")
    assert objective_of("ul2").architectures == {"decoder_only", "encoder_decoder"}
    assert objective_of("unilm").architectures == {"encoder_only"}


def test_a_batch_contains_each_rows_own_objective_and_mode_token():
    """CLM, and prefix LM with a mode token, in rows of eight. The ids are EOS 1, [S] 264."""
    rows = {"clm": TableRow(CLM(), "", 1.0, 1.0), "s": TableRow(PrefixLM(0.25, "fixed", False), "[S]", 3.0, 3.0)}
    collator = make_collator(
        denoisers_of(Mixture(rows, "example"), "mixture"), RowShape("decoder_only", 8, 8, 1), vocab(),
        documents="join", bidirectional_inputs=True,
    )  # fmt: skip
    assert [(spec.name, spec.weight, spec.raw_length, spec.ramp) for spec in collator.batch_spec.windows] == [
        ("clm", 0.25, 8, None),
        ("s", 0.75, 5, None),
    ]
    tokens = np.asarray([[20, 21, 22, 23, 24, 0, 0, 0], [10, 11, 12, 13, 14, 15, 16, 17]], np.int32)
    windows = Windows(tokens, np.asarray([5, 8]), np.arange(2), np.arange(2, dtype=np.uint64), np.asarray([1, 0]))
    batch = collator(windows, 2)
    check_batch(batch, "decoder_only")
    expected = {
        "decoder_target_tokens": [[264, 20, 21, 22, 23, 1, 24, 1], [10, 11, 12, 13, 14, 15, 16, 17]],
        "decoder_input_tokens": [[0, 264, 20, 21, 22, 23, 1, 24], [0, 10, 11, 12, 13, 14, 15, 16]],
        "decoder_loss_weights": [[0, 0, 0, 0, 0, 0, 1, 1], [1] * 8],
        "decoder_bidirectional_mask": [[1, 1, 1, 1, 1, 1, 1, 0], [0] * 8],
        "example_source": [[1] * 8, [0] * 8],
    }
    assert {name: batch[name].astype(int).tolist() for name in expected} == expected


def test_every_batch_of_a_mixture_has_the_same_fields():
    """Where any denoiser has an attention order, rows of the other denoisers have an order of zeros."""
    unilm = objective_of("unilm:left_to_right")
    unilm_row = {"name": "unilm", "mode": "", "weight": 1.0} | vars(unilm)
    experiment = make_experiment(config_of({"mlm": MLM_ROW, "unilm": unilm_row}, "encoder_only"))
    tokens = np.full((3, 38), experiment.vocab.content_start, np.int32)
    for denoiser_ids in ([0, 0, 0], [1, 1, 1], [0, 1, 0]):
        keys = np.arange(3, dtype=np.uint64)
        batch = experiment.collate(Windows(tokens, np.full(3, 38), np.arange(3), keys, np.asarray(denoiser_ids)), 3)
        check_batch(batch, "encoder_only")
        assert batch["encoder_attention_order"].any(axis=1).tolist() == [k == 1 for k in denoiser_ids]


def test_a_schedule_gives_windows_a_ramp_and_equal_weights_give_none():
    """Weights 1 and 0 change to 1 and 3 from step 1 to step 2, with 8 rows of 2 windows a step."""
    fields = scheduled({"clm": CLM_ROW, "s": PREFIX_LM_ROW | {"weight": 0.0}}, 1.0, 3.0)
    fields["data"]["examples_per_row"] = 2
    specs = make_experiment(fields).window_specs
    assert [spec.weight for spec in specs] == [1.0, 0.0]
    assert [spec.ramp for spec in specs] == [Ramp(16, 32, 0.25), Ramp(16, 32, 0.75)]
    constant = make_experiment(scheduled(ROWS, 1.0, 1.0)).window_specs
    assert [(spec.weight, spec.ramp) for spec in constant] == [(0.5, None)] * 2


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    random = np.random.default_rng(0)
    texts = ["".join(map(chr, random.integers(97, 123, size=n))) for n in random.integers(1, 300, size=80)]
    return all_documents(store_of(tmp_path_factory.mktemp("mixture"), texts))


def dataset_of(documents, experiment, *, rows=range(8)):
    """Batches of 8 rows with the columns of the windows themselves."""

    def columns(windows, num_rows):
        return {name: getattr(windows, name) for name in ("tokens", "denoiser_ids", "keys")}

    return experiment.batches(documents, local_rows=rows, batch_size=8, transform=columns)


def schedule_over(steps, mix_by="example"):
    fields = scheduled(ROWS, 0.0, 1.0, begin_step=0, end_step=steps, mix_by=mix_by)
    fields["train"]["steps"] = steps
    return make_experiment(fields)


@pytest.mark.parametrize("mix_by", ["example", "token"])
def test_a_schedule_gives_each_tenth_of_a_run_its_share_of_examples_or_raw_tokens(mix_by, documents):
    """From half CLM and half prefix LM to prefix LM alone."""
    experiment = schedule_over(500, mix_by)
    dataset = dataset_of(documents, experiment)
    lengths = [spec.raw_length for spec in experiment.window_specs]
    assert lengths == [40, 37]
    for begin in (0, 225, 450):
        drawn = sum(np.bincount(dataset[n]["denoiser_ids"], minlength=2) for n in range(begin, begin + 50))
        amounts = drawn * (lengths if mix_by == "token" else 1)
        assert amounts[0] / amounts.sum() == pytest.approx(0.5 * (1 - (begin + 25) / 500), abs=0.01)
    assert dataset[500]["denoiser_ids"].tolist() == [1] * 8


def test_batches_of_a_schedule_do_not_depend_on_the_start_step_or_the_process(documents):
    dataset = dataset_of(documents, schedule_over(20))
    iterator = loader(dataset, start=13, threads=2, prefetch=4)
    halves = [dataset_of(documents, schedule_over(20), rows=rows) for rows in (range(4), range(4, 8))]
    for n in range(13, 23):
        batch, parts = next(iterator), [half[n] for half in halves]
        for name in ("tokens", "denoiser_ids", "keys"):
            np.testing.assert_array_equal(batch[name], dataset[n][name])
            np.testing.assert_array_equal(batch[name], np.concatenate([part[name] for part in parts]))


def test_held_out_shares_are_the_means_of_the_initial_and_final_shares(documents):
    heldout = schedule_over(20).heldout(documents)
    tokens = np.array([0.25 * 40, 0.75 * 37])
    np.testing.assert_allclose(heldout.shares, tokens / tokens.sum(), rtol=0.05)  # mean windows are a little shorter
