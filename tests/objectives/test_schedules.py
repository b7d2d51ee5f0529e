"""Schedules of number fields: the rate of each step, the same batches however they are read, and bad input."""

import dataclasses

import jax
import numpy as np
import pytest

from configs import clm_then_mlm, hybrid, mlm, multi_token_prediction
from contract.batch import check_batch
from contract.errors import ConfigError
from data.windows.batches import loader
from experiment.experiment import make_experiment
from experiment.objective import make_scheduled, with_steps
from objectives import MLM, Schedule, denoisers_of
from objectives.objective import Phases, RowShape
from objectives.rows.window_specs import most_scored
from tests.data.corpus import all_documents, store_of
from tests.learners.row_learners import loss_of, params_of
from tests.objectives.helpers import make_collator, random_windows, vocab
from tests.table import small_config

BERT = MLM(0.15, 0.8, 0.1, "rounded", "token", (1.0,))
ROBERTA = dataclasses.replace(BERT, mask_rate=0.1, mask_count="probabilistic")
STEPS = 20


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    random = np.random.default_rng(0)
    texts = ["".join(map(chr, random.integers(97, 123, size=n))) for n in random.integers(1, 300, size=80)]
    return all_documents(store_of(tmp_path_factory.mktemp("schedules"), texts))


def config_of(name="mlm:decay", architecture="encoder_only", **objective):
    """A schedule over steps 4 to 16 of 20."""
    fields = small_config(name, architecture, data__documents="join")
    fields["objective"] |= {"schedule": "linear", "begin_step": 4, "end_step": 16} | objective
    fields["train"]["steps"] = STEPS
    return fields


def mixture_of(row):
    """CLM, and a row of the mixture with a schedule of its own."""
    fields = small_config("clm", "decoder_only", data__documents="join")
    row = hybrid.MNTP | {"mask_rate": 0.5} | row
    rows = {"clm": {"name": "clm", "mode": "", "weight": 1.0}, "mntp": {"mode": "", "weight": 1.0} | row}
    fields["objective"] = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": rows}
    fields["train"]["steps"] = STEPS
    return fields


ROW = {"schedule": "linear", "begin_step": 4, "end_step": 16, "final_mask_rate": 0.1}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_the_objective_of_each_step():
    last = dataclasses.replace(BERT, mask_rate=0.35, random_token_rate=0.2)
    schedule = Schedule(BERT, last, ("mask_rate", "random_token_rate"), 10, 20)
    [denoiser] = denoisers_of(last, "x", schedule)
    found = [denoiser.at(step).objective for step in (0, 10, 15, 16, 20, 10**9)]
    rates = [(objective.mask_rate, objective.random_token_rate) for objective in found]
    expected = [(0.15, 0.1), (0.15, 0.1), (0.25, 0.15), (0.27, 0.16), (0.35, 0.2), (0.35, 0.2)]
    np.testing.assert_allclose(rates, expected, rtol=1e-15)
    assert found[0] is BERT and found[-1] is last and denoiser.at(15).schedule is None
    jump = dataclasses.replace(schedule, end_step=10)
    assert [jump.at(step) for step in (9, 10)] == [BERT, last]


def test_the_objective_of_each_phase():
    rates = (0.3, 0.15, 0.05)
    first, second, last = (dataclasses.replace(BERT, mask_rate=rate) for rate in rates)
    phases = Phases(first, last, ("mask_rate",), 10, 20, (second,), (10, 20))
    [denoiser] = denoisers_of(last, "x", phases)
    found = [denoiser.at(step).objective for step in (0, 9, 10, 19, 20, 10**9)]
    assert found == [first, first, second, second, last, last]
    assert denoiser.ends == (first, second, last) and denoiser.at(10).schedule is None


def test_phases_of_a_config():
    """Shares and steps, in an objective and in a row of a mixture."""
    phases = dict(schedule="phases", phase_steps=(0.25, 10), phase_mask_rate=(0.2, 0.1))
    fields = small_config("mlm", "encoder_only") | {"train": config_of()["train"]}
    fields["objective"] |= phases | {"mask_rate": 0.4}
    row = mixture_of(phases | {"mask_rate": 0.4})
    for experiment in map(make_experiment, (fields, row)):
        task = experiment.tasks[-1]
        rates = [task.at(step).objective.mask_rate for step in (0, 4, 5, 9, 10, 19)]
        assert rates == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
        assert task.objective.mask_rate == 0.1
    rates = dict(schedule="phases", phase_steps=(3, 3, 7), phase_mask_rate=(0.2, 0.6, 0.1))
    fields["objective"] |= rates
    experiment = make_experiment(fields)
    length = experiment.data.inputs_length
    assert most_scored(experiment.tasks, experiment.batch_spec, experiment.row_shape) == round(0.6 * length)


def test_the_rate_of_selected_tokens_at_five_steps():
    """Within four standard deviations of the binomial count, from 0.1 at step 0 to 0.5 at step 100."""
    last = dataclasses.replace(ROBERTA, mask_rate=0.5)
    schedule = Schedule(ROBERTA, last, ("mask_rate",), 0, 100)
    collate = make_collator(
        denoisers_of(last, "x", schedule), RowShape("encoder_only", 128, 128, 1), vocab(),
        documents="join", bidirectional_inputs=True,
    )  # fmt: skip
    steps = np.repeat([0, 25, 50, 75, 100], 400)
    windows = random_windows(np.random.default_rng(0), np.full(2000, 126))
    shuffled = np.random.default_rng(1).permutation(steps)
    weights = collate(windows._replace(row_steps=shuffled), 2000)["encoder_loss_weights"]
    for step, rate in zip((0, 25, 50, 75, 100), (0.1, 0.2, 0.3, 0.4, 0.5), strict=True):
        count, n = weights[shuffled == step].sum(), 400 * 128
        assert abs(count - rate * n) < 4 * np.sqrt(n * rate * (1 - rate)), step
    # Texts that are given have no step, and the final objective.
    assert_equal(collate(windows, 2000), collate(windows._replace(row_steps=np.full(2000, 100)), 2000))


def changed(fields, section, **values):
    return fields | {section: fields[section] | values}


PHASES = {"schedule": "phases", "phase_steps": (3, 11), "phase_mask_rate": (0.2, 0.1)}


def phases_of(**changes):
    fields = small_config("mlm", "encoder_only", data__documents="join")
    fields["objective"] |= PHASES | changes
    fields["train"]["steps"] = STEPS
    return fields


FIELDS = {
    "one objective": config_of(),
    "phases": phases_of(),
    "phases of a row of a mixture": mixture_of(PHASES),
    "a row of a mixture": mixture_of(ROW),
    "a share of shuffled texts": changed(
        small_config("sigma_gpt", "decoder_only", train__steps=STEPS), "objective", begin_step=0, end_step=STEPS
    ),
    "planned rows": changed(
        config_of("iid_denoising:iid_15_r10s90_f", "encoder_decoder", final_random_token_rate=0.9),
        "data",
        packing="planned",
        examples_per_row=2,
    ),
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_a_batch_does_not_depend_on_the_start_step_the_processes_or_the_threads(documents, fields):
    """Nor on how many rows are read at once. It is the batch of the constant objective of its step."""
    experiment = make_experiment(fields)
    dataset = experiment.batches(documents)
    halves = [experiment.batches(documents, local_rows=rows) for rows in (range(4), range(4, 8))]
    for start, threads in ((3, 1), (11, 4)):
        iterator = loader(dataset, start=start, threads=threads, prefetch=3)
        for n in range(start, STEPS):
            assert_equal(next(iterator), dataset[n])
    for n in range(STEPS):
        parts = [half[n] for half in halves]
        assert_equal({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, dataset[n])
        tasks = tuple(task.at(n) for task in experiment.tasks)
        constant = dataclasses.replace(experiment, collate=dataclasses.replace(experiment.collate, denoisers=tasks))
        assert_equal(constant.batches(documents)[n], dataset[n])
    large = experiment.batches(documents, batch_size=8 * STEPS)[0]
    assert_equal({name: np.concatenate([dataset[n][name] for n in range(STEPS)]) for name in large}, large)


def test_equal_ends_give_the_batches_of_the_constant_objective(documents):
    scheduled = make_experiment(config_of(mask_rate=0.15)).batches(documents)
    constant = make_experiment(small_config("mlm", "encoder_only", data__documents="join")).batches(documents)
    for n in (0, 7, 19):
        assert_equal(scheduled[n], constant[n])


def test_held_out_batches_have_the_final_objective(documents):
    scheduled, constant = (make_experiment(fields) for fields in (config_of(), small_config("mlm", "encoder_only")))
    constant = dataclasses.replace(constant, heldout_spec=scheduled.heldout_spec)
    assert_equal(scheduled.heldout(documents).batches[0], constant.heldout(documents).batches[0])


@pytest.mark.parametrize(
    ("name", "architecture", "field"),
    [
        ("multi_token_prediction:sequential", "decoder_only", "loss_weight"),
        ("future_summary", "decoder_only", "loss_weight"),
        ("electra", "encoder_only", "discriminator_weight"),
    ],
)
def test_the_weight_of_what_a_learner_adds_to_its_loss_is_that_of_the_step(name, architecture, field, documents):
    """0.3 in the batches up to 4, 0.1 from 16 on: the loss is that of a run with this weight in all batches."""
    schedule = {"schedule": "linear", "begin_step": 4, "end_step": 16, field: 0.3, f"final_{field}": 0.1}
    plain = small_config(name, architecture, data__documents="join")
    plain["train"]["steps"] = STEPS
    experiment = make_experiment(plain | {"objective": plain["objective"] | schedule})
    params = params_of(experiment.learner)

    def loss(learner, batch):
        return float(loss_of(learner)(params, batch, learner.weights(batch), jax.random.key(1))[0])

    dataset = experiment.batches(documents)
    for step, weight in ((0, 0.3), (10, 0.2), (19, 0.1)):
        batch = dataset[step]
        check_batch(batch, architecture)
        assert batch["auxiliary_loss_weight"].tolist() == [np.float32(weight)] * 8
        constant = make_experiment(plain | {"objective": plain["objective"] | {field: weight}})
        expected = constant.batches(documents)[step]
        assert_equal({name: array for name, array in batch.items() if name != "auxiliary_loss_weight"}, expected)
        if step == 10:
            assert loss(experiment.learner, batch) == pytest.approx(loss(constant.learner, expected))
    first = {name: array for name, array in dataset[0].items() if name != "auxiliary_loss_weight"}
    assert loss(experiment.learner, dataset[0]) > loss(experiment.learner, first) + 0.01
    assert "auxiliary_loss_weight" not in experiment.heldout(documents).batches[0]


def test_the_weights_of_deepseek_v3():
    """0.3 for 10 of 14.8 trillion tokens. A tenth of the text has the middle last, in PSM format."""
    config = multi_token_prediction.get_config("7b,deepseek_v3").to_dict()
    rows = make_scheduled(config["objective"], steps=14_800)[0].denoisers
    assert {name: row.weight for name, row in rows.items()} == {"fim": 0.1, "mtp": 0.9}
    assert (rows["fim"].objective.fim_rate, rows["fim"].objective.spm_rate) == (1.0, 0.0)
    final, schedule = rows["mtp"].objective, rows["mtp"].schedule
    assert [schedule.at(step).loss_weight for step in (0, 9_999, 10_000, 14_799)] == [0.3, 0.3, 0.1, 0.1]
    assert (final.loss_weight, final.num_future_tokens, final.heads) == (0.1, 2, "sequential")


def test_rows_have_room_for_the_scored_positions_of_both_ends():
    last = dataclasses.replace(BERT, mask_rate=0.1)
    for first in (dataclasses.replace(BERT, mask_rate=0.4), dataclasses.replace(BERT, mask_rate=0.05)):
        shape = RowShape("encoder_only", 100, 100, 1)
        [denoiser] = denoisers_of(last, "x", Schedule(first, last, ("mask_rate",), 0, 2))
        collate = make_collator((denoiser,), shape, vocab(), documents="join", bidirectional_inputs=True)
        assert most_scored([denoiser], collate.batch_spec, shape) == max(100 * first.mask_rate, 10)


MASKING = "final_mask_rate, final_mask_token_rate, final_random_token_rate"
INVALID = {
    "steps out of order": (
        config_of(begin_step=17),
        "objective.begin_step=17 must be objective.end_step=16 or less, both in steps",
    ),
    "after the run": (config_of(end_step=21), "objective.end_step=21 must be train.steps=20 or less"),
    "no number": (
        config_of(final_mask_count=1.0),
        f"objective.schedule='linear' has final_mask_count: it can have {MASKING}$",
    ),
    "unknown": (config_of(final_rate=0.1), "objective.schedule='linear' has final_rate: it can have final_mask_rate"),
    "out of range": (config_of(final_mask_rate=1.5), r"objective.final_mask_rate=1.5 must be in \(0, 1\)$"),
    "of another type": (config_of(final_mask_rate="0.1"), "objective.final_mask_rate='0.1' must be of type float"),
    "out of range at the start": (config_of(mask_rate=1.5), r"objective.mask_rate=1.5 must be in \(0, 1\)$"),
    "fields that do not go together": (
        config_of(final_random_token_rate=0.3),
        "objective.mask_token_rate=0.8 and objective.final_random_token_rate=0.3 add up to more than 1",
    ),
    "a whole number": (
        config_of("fim", "decoder_only", final_min_document_length=9),
        "has final_min_document_length: it can have final_fim_rate, final_spm_rate$",
    ),
    "a field of the learner": (
        config_of("electra", final_temperature=2.0),
        f"has final_temperature: it can have {MASKING}, final_discriminator_weight$",
    ),
    "an objective without numbers": (config_of("clm", "decoder_only", final_rate=0.1), "CLM has no number field of"),
    "lengths that change": (
        config_of("span_corruption", "decoder_only", final_noise_density=0.5),
        "objective.final_noise_density would change the lengths of examples",
    ),
    "another schedule": (config_of(schedule="cosine"), "objective.schedule='cosine' must be one of 'constant', 'lin"),
    "final values without a schedule": (
        config_of(schedule="constant"),
        "objective.final_mask_rate needs objective.schedule='linear': set it, or remove final_mask_rate",
    ),
    "a row": (
        mixture_of(ROW | {"final_mask_rate": 0.0}),
        r"objective.denoisers.mntp.final_mask_rate=0.0 must be in \(0, 1\)$",
    ),
    "a row after the run": (mixture_of(ROW | {"end_step": 30}), "objective.denoisers.mntp.end_step=30 must be"),
}


INVALID |= {
    "phases out of order": (
        phases_of(phase_steps=(11, 3)),
        r"objective.phase_steps=\(11, 3\) must be the first steps of",
    ),
    "no phases": (phases_of(phase_steps=()), r"objective.phase_steps=\(\) must be the first steps of the phases"),
    "a phase after the run": (
        phases_of(phase_steps=(3, 21)),
        "objective.phase_steps=21 must be train.steps=20",
    ),
    "a value too few": (
        phases_of(phase_mask_rate=(0.2,)),
        r"objective.phase_mask_rate=\(0.2,\) must have a value for each of the 2 phases that objective.phase_steps",
    ),
    "one value": (phases_of(phase_mask_rate=0.2), "objective.phase_mask_rate=0.2 must have a value for each of the 2"),
    "a phase out of range": (
        phases_of(phase_mask_rate=(1.5, 0.1)),
        r"phase_mask_rate=1.5 must be in \(0, 1\)",
    ),
    "phases of no number": (phases_of(phase_mask_unit=("word",) * 2), "schedule='phases' has phase_mask_unit: it can"),
    "final values of phases": (phases_of(final_mask_rate=0.1), "unknown config field objective.final_mask_rate"),
    "phases of a line": (
        config_of(phase_steps=(3,)),
        "objective.phase_steps needs objective.schedule='phases': set it, or remove phase_steps",
    ),
}


def without(fields, name):
    return fields | {"objective": {key: value for key, value in fields["objective"].items() if key != name}}


INVALID |= {
    "no final value": (without(config_of(), "final_mask_rate"), "objective.schedule='linear' changes no field: it can"),
    "no step": (without(config_of(), "end_step"), "config field objective.end_step is missing"),
    "epochs": (changed(config_of(), "train", steps=0, epochs=2.0), "train.epochs=2.0 does not go with objective.end_s"),
    "no phase steps": (without(phases_of(), "phase_steps"), "config field objective.phase_steps is missing"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_schedules_raise_one_line(case):
    fields, message = INVALID[case]
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(fields)
    assert len(str(error.value).splitlines()) == 1


def test_a_warning_about_the_final_objective_names_its_field():
    [warning] = make_experiment(config_of(final_mask_rate=0.5)).warnings
    assert warning.startswith("objective.final_mask_rate=0.5 is outside 0.05 to 0.4")


@pytest.mark.parametrize("steps", [500, 5000])
def test_a_float_of_at_most_one_is_a_share_of_the_run(steps):
    def experiment(config, **fields):
        config.train.steps = steps
        config.optimizer.warmup_steps = 10
        config.objective.update(fields)
        return make_experiment(config.to_dict())

    [denoiser] = experiment(mlm.get_config("tiny,decay")).denoisers
    assert (denoiser.schedule.begin_step, denoiser.schedule.end_step) == (0, steps)
    found = experiment(clm_then_mlm.get_config("tiny"))
    per_step = found.train.batch_size * found.data.examples_per_row
    assert {spec.ramp.begin for spec in found.window_specs} == {steps // 2 * per_step}
    [denoiser] = experiment(mlm.get_config("tiny,decay"), begin_step=10.0, end_step=20.0).denoisers
    assert (denoiser.schedule.begin_step, denoiser.schedule.end_step) == (10, 20)


def test_a_share_is_rounded_to_a_step():
    """0.29 * 100 is 28.999999999999996 in float64."""
    assert with_steps({"begin_step": 0.29, "denoisers": {"a": {"end_step": 0.29}}}, 100) == {
        "begin_step": 29,
        "denoisers": {"a": {"end_step": 29}},
    }
