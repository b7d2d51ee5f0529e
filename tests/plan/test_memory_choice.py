"""model.remat="auto" and train.grad_accum_steps=0 become the first choice that fits, which a continued run keeps."""

import io
import itertools
import re
from types import SimpleNamespace

import jax
import pytest
from rich.console import Console

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from plan.estimate import Topology, estimate
from run.compiled_run import abstract_state, make_run
from run.memory import Machine, fewest_that_fit, resolve_memory, this_machine
from run.restore import load_experiment
from run.sharding import AXES
from tests.table import small_config
from train import loop
from train.loop import train_and_evaluate
from workdir.run_config import read_config

pytestmark = pytest.mark.usefixtures("traced_once")

AUTO = {"model__remat": "auto", "train__grad_accum_steps": 0}
ORDER = list(itertools.product(("none", "dots", "full"), (1, 2, 4, 8)))


def fields_of(**overrides):
    """A decoder of eight layers, whose 8 rows are one device's."""
    shape = {"model__num_layers": 8, "data__inputs_length": 64, "model__attention": "xla"}
    return small_config("clm", "decoder_only", **AUTO | shape | overrides)


def machine(memory, devices=1):
    return Machine("some chip", "cpu", devices, memory)


def choice_of(experiment):
    return experiment.model.remat, experiment.train.grad_accum_steps


@pytest.fixture(scope="module")
def needed():
    """The bytes that each choice needs, with a margin: a compiler's activations can be twice the estimate."""
    found = {}
    for remat, steps in ORDER:
        fields = fields_of(model__remat=remat, train__grad_accum_steps=steps)
        plan = estimate(make_experiment(fields), Topology("cpu:1", 1, None, ()))
        gradients = plan.parameter_bytes * (2 if steps > 1 else 1)
        found[remat, steps] = plan.state_bytes + plan.batch_bytes + plan.activation_bytes * 2 + gradients
    return found


def test_the_first_of_the_order_that_fits_is_chosen(needed):
    experiment, seen = make_experiment(fields_of()), set()
    for memory in needed.values():
        resolved = resolve_memory(experiment, machine(int(memory) + 1))
        expected = next(choice for choice in ORDER if needed[choice] <= memory + 1)
        assert choice_of(resolved) == expected
        assert (resolved.config["model"]["remat"], resolved.config["train"]["grad_accum_steps"]) == expected
        assert (resolved.learner.model, resolved.learner.setup.grad_accum_steps) == (resolved.model, expected[1])
        assert resolved.warnings == experiment.warnings
        seen.add(expected)
    assert seen > {("none", 1), ("none", 2), ("dots", 8), ("full", 8)}
    assert resolve_memory(experiment, machine(2**40)).chosen.startswith(
        "remat none, 1 microbatch, chosen for some chip: about "
    )
    assert choice_of(experiment) == ("auto", 0), "the experiment itself is unchanged"


def test_a_teacher_takes_memory_too(needed, monkeypatch):
    experiment, fits = make_experiment(fields_of()), machine(int(needed["none", 1]) + 1)
    assert choice_of(resolve_memory(experiment, fits)) == ("none", 1)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    teacher = {"teacher": jax.ShapeDtypeStruct((1000,), jax.numpy.float32, sharding=place)}
    monkeypatch.setattr("run.memory.abstract_frozen", lambda *_: teacher)
    assert choice_of(resolve_memory(experiment, fits)) == ("none", 2)


def test_where_nothing_fits_the_least_memory_is_chosen_with_a_warning(needed):
    resolved = resolve_memory(make_experiment(fields_of()), machine(1000))
    assert choice_of(resolved) == min(needed, key=needed.get)
    assert "a device may not have the memory for this run" in resolved.warnings[-1]
    assert "python -m train.plan" in resolved.warnings[-1]
    assert re.search(
        r"and up to \d+\.\d GiB once compiled, the least that can be chosen\): split", resolved.warnings[-1]
    )


def test_the_warning_names_a_field_that_the_config_sets():
    """The bound that does not fit is larger than the estimate, which may itself be below the memory."""
    for fields, message in {
        ("model__remat", "none"): "chosen with model.remat='none'): set it to 'auto', split the state",
        ("train__grad_accum_steps", 2): "chosen with train.grad_accum_steps=2): set it to 0, split the state",
    }.items():
        resolved = resolve_memory(make_experiment(fields_of(**dict([fields]))), machine(1000))
        assert message in resolved.warnings[-1]


def test_each_value_of_remat_is_traced_once(monkeypatch):
    traced = []
    monkeypatch.setattr("run.memory.kept_bytes", lambda learner, *_: traced.append(learner.model.remat) or 2**40)
    assert choice_of(resolve_memory(make_experiment(fields_of()), machine(1000))) == ("full", 8)
    assert traced == ["none", "dots", "full"]


def test_more_devices_and_a_larger_batch_change_the_choice(needed):
    memory = int(1.1 * needed["none", 2])
    assert choice_of(resolve_memory(make_experiment(fields_of()), machine(memory, devices=2))) == ("none", 1)
    twelve = make_experiment(fields_of(train__batch_size=12))
    assert choice_of(resolve_memory(twelve, machine(memory))) == ("none", 3), "a divisor of the rows, of any kind"


def test_a_field_that_the_config_sets_is_not_changed(needed):
    memory = machine(int(needed["none", 2]) + 1)
    both = make_experiment(fields_of(model__remat="none", train__grad_accum_steps=1))
    assert resolve_memory(both, memory) is both
    dots = resolve_memory(make_experiment(fields_of(model__remat="dots")), memory)
    assert dots.model.remat == "dots" and dots.train.grad_accum_steps in (1, 2)
    whole = resolve_memory(make_experiment(fields_of(train__grad_accum_steps=1)), memory)
    assert whole.train.grad_accum_steps == 1 and whole.model.remat != "none"


def test_the_fewest_microbatches_that_fit_are_named_whatever_the_config_sets(needed):
    for steps in (1, 8):
        experiment = make_experiment(fields_of(model__remat="none", train__grad_accum_steps=steps))
        assert fewest_that_fit(experiment, machine(int(needed["none", 2]) + 1)) == 2
        assert fewest_that_fit(experiment, machine(1000)) is None
        assert fewest_that_fit(experiment, machine(2**40, devices=8)) == 1


def test_microbatches_that_do_not_divide_the_rows_of_a_device_are_refused_with_the_value_that_chooses():
    for devices, advice in ((4, "in train.grad_accum_steps=4 parts; train.grad_accum_steps=0 has the fewest that fit"),
                            (3, "in train.grad_accum_steps=4 parts$")):  # fmt: skip
        fields = fields_of(model__remat="none", train__grad_accum_steps=4)
        with pytest.raises(ConfigError, match=f"^train.batch_size=8 must be a multiple of {4 * devices}: .*{advice}"):
            estimate(make_experiment(fields), Topology(f"cpu:{devices}", devices, None, ()))


def test_unknown_memory_has_a_fixed_choice_that_says_so():
    resolved = resolve_memory(make_experiment(fields_of()), machine(None, devices=2))
    assert resolved.chosen == "remat none, 1 microbatch, as the memory of some chip is not known"
    assert choice_of(resolved) == ("none", 1)


def test_a_loss_of_the_whole_batch_keeps_one_microbatch():
    experiment = make_experiment(small_config("simcse", "encoder_only", model__num_layers=8, **AUTO))
    assert choice_of(resolve_memory(experiment, machine(2**40))) == ("none", 1)
    assert resolve_memory(experiment, machine(1000)).train.grad_accum_steps == 1


def test_saved_values_are_taken_unless_they_cannot_be():
    experiment = make_experiment(fields_of())

    def choice_with(remat, steps, devices=1):
        saved = {"model": {"remat": remat}, "train": {"grad_accum_steps": steps}}
        return choice_of(resolve_memory(experiment, machine(2**40, devices), saved=saved))

    assert choice_with("dots", 4) == ("dots", 4)
    assert choice_with("dots", 4, devices=4) == ("none", 1), "a device has two rows"


def test_this_machine_has_the_memory_that_jax_can_use(monkeypatch):
    stats = {"bytes_limit": 40 * 10**9}
    gpu = SimpleNamespace(device_kind="NVIDIA L40S", platform="rocm", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert this_machine() == Machine("NVIDIA L40S", "rocm", jax.device_count(), 40 * 10**9)
    smaller = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 8 * 10**9})
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu, smaller])
    assert this_machine().usable_bytes == 8 * 10**9, "the same program runs on all devices"
    gpu.memory_stats = lambda: None
    assert this_machine().usable_bytes is None


def test_the_choice_and_the_state_need_one_trace_of_the_parameters(needed, monkeypatch):
    experiment, traced = make_experiment(fields_of(seed=1)), []
    learner, init_params = type(experiment.learner), type(experiment.learner).init_params
    monkeypatch.setattr(learner, "init_params", lambda self, key: traced.append(1) or init_params(self, key))
    resolved = resolve_memory(experiment, machine(needed["full", 8]))
    abstract_state(resolved, jax.sharding.AbstractMesh((1, 1, 1), AXES))
    assert choice_of(resolved) == ("full", 8) and len(traced) == 1


def test_a_step_is_not_compiled_before_the_choice(corpus):
    run = make_run(make_experiment(fields_of(**text_of(corpus))), show_progress=False)
    with pytest.raises(ValueError, match="resolve_memory"):
        run.train_step(run.init_state(), run.to_devices(next(run.train_batches(0))))


def text_of(corpus):
    return {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}


def printed_by(train, *arguments):
    file = io.StringIO()
    assert train(*arguments, console=Console(file=file, width=400))
    return file.getvalue()


def use_machine(monkeypatch, memory):
    monkeypatch.setattr(loop, "this_machine", lambda: machine(memory, devices=jax.device_count()))


@pytest.mark.slow
def test_a_run_saves_its_choice_and_keeps_it_on_another_machine(corpus, tmp_path, monkeypatch):
    one = {"mesh__data": 1, "mesh__fsdp": jax.device_count()}
    options = text_of(corpus) | one | {"train__batch_size": 8 * jax.device_count(), "optimizer__schedule": "constant"}
    experiment, workdir = make_experiment(fields_of(**options)), str(tmp_path / "run")

    def saved():
        config = read_config(workdir)
        return config["model"]["remat"], config["train"]["grad_accum_steps"]

    use_machine(monkeypatch, 1000)
    out = printed_by(train_and_evaluate, experiment, workdir)
    choice = saved()
    assert choice[0] in ("dots", "full") and choice[1] == 8
    assert f"memory  remat {choice[0]}, 8 microbatches, chosen for some chip: about " in out
    assert "a device may not have the memory" in out
    assert choice_of(load_experiment(workdir)) == (choice[0], 1), "readers have one microbatch"

    use_machine(monkeypatch, 2**40)
    longer = make_experiment(fields_of(**options, train__steps=4))
    out = printed_by(train_and_evaluate, longer, workdir)
    assert f"memory  remat {choice[0]}, 8 microbatches, as in the run so far" in out
    assert saved() == choice and "train.grad_accum_steps: 8 ->" not in out and "model.remat: " not in out

    fields = fields_of(**options, train__steps=6) | {"model": experiment.config["model"] | {"remat": "none"}}
    out = printed_by(train_and_evaluate, make_experiment(fields), workdir)
    assert saved() == ("none", 8) and f'model.remat: "{choice[0]}" -> "none"' in out


@pytest.mark.slow
def test_epochs_keep_the_choice_and_its_warning(corpus, tmp_path, monkeypatch):
    use_machine(monkeypatch, 1000)
    overrides = {"train__steps": 0, "train__epochs": 0.01, "optimizer__warmup_steps": 0}
    rows = {"train__batch_size": 8 * jax.device_count()}
    experiment = make_experiment(fields_of(**text_of(corpus), **overrides, **rows))
    out = printed_by(train_and_evaluate, experiment, str(tmp_path / "run"))
    assert "microbatches, chosen for some chip" in out and "a device may not have the memory" in out
