"""A run is evaluated, sampled and continued from on other devices than it trained on, from its parameters alone."""

import json

import jax
import numpy as np
import pytest
import tensorstore as ts

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from run.restore import load_experiment, load_params, reading_mesh
from tests.small_fields import small_config
from tests.train.subprocesses import run
from workdir.checkpoint import Checkpoints, abstract

TRAIN = """
import json
from tests.small_fields import small_config
from train.experiment import make_experiment
from train.loop import train_and_evaluate
train_and_evaluate(make_experiment(small_config(
    "clm", "decoder_only", data__source="text", data__path={corpus!r} + "/text", data__cache_dir={corpus!r} + "/cache",
    optimizer__learning_rate=1e-2, **{fields!r})), {workdir!r})
print("null")
"""

READ = """
import contextlib, io, json, sys
import jax, numpy as np
from tests.small_fields import small_config
from train import evaluate
from train.experiment import make_experiment
from train.generate import __main__ as generate
from train.init_from import start_from
from train.restore import load_experiment, load_params
from train.run import make_run

def printed(main, *arguments):
    sys.argv = ["command", "--workdir=" + {workdir!r}, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    return out.getvalue()

params, step = load_params(load_experiment({workdir!r}), {workdir!r})
result = {{
    "shard": sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params)),
    "evaluate": json.loads(printed(evaluate.main)),
    "generate": printed(generate.main, "--prompt=import ", "--temperature=0", "--max_tokens=8"),
    "sum": float(sum(abs(np.asarray(leaf)).astype(float).sum() for leaf in jax.tree.leaves(params))),
}}
other = make_run(make_experiment(small_config(
    "fim", "decoder_only", data__source="text", data__path={corpus!r} + "/text",
    data__cache_dir={corpus!r} + "/cache", **{fields!r})), show_progress=False)
started, _ = start_from(other, other.init_state().params, {workdir!r})
result["same"] = all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()),
                                                  started, params)))
print(json.dumps(result))
"""

MESHES = {
    "fsdp and tensor": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
    "tensor": {"mesh__data": 2, "mesh__tensor": 4, "model__num_heads": 4, "model__num_kv_heads": 4},
    "pmap": {"mesh__backend": "pmap"},
}


def read(corpus, workdir, fields, devices):
    model = {name: value for name, value in fields.items() if name.startswith("model")}
    return run(READ.format(corpus=str(corpus), workdir=str(workdir), fields=model), devices=devices, timeout=300)[0]


@pytest.mark.parametrize("mesh", MESHES)
def test_a_run_of_eight_devices_is_read_by_one(corpus, tmp_path, mesh):
    """Fails where evaluate, generate or init_from needs the mesh of the training run."""
    workdir = tmp_path / "run"
    run(TRAIN.format(corpus=str(corpus), workdir=str(workdir), fields=MESHES[mesh]), devices=8, timeout=300)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["split"] == "eval"][-1]
    found = read(corpus, workdir, MESHES[mesh], devices=1)
    for name in ("loss", "accuracy", "bits_per_byte", "step"):
        assert found["evaluate"][name] == pytest.approx(trained[name], rel=1e-5), name
    assert found["generate"].startswith("import ") and found["same"]
    shapes = load_experiment(str(workdir)).params_shapes
    param_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(shapes))
    assert found["shard"] == param_bytes
    if mesh == "fsdp and tensor":
        several = read(corpus, workdir, MESHES[mesh], devices=8)
        assert several["shard"] < param_bytes / 4  # norms alone are on every device
        assert several["sum"] == found["sum"] and several["generate"] == found["generate"] and several["same"]
        for name in ("loss", "accuracy", "bits_per_byte", "step"):
            assert several["evaluate"][name] == pytest.approx(found["evaluate"][name], rel=1e-5), name


def bytes_read():
    [metric] = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(value["value"] for value in metric["values"])


def test_the_optimizers_arrays_are_not_read(tmp_path):
    """Of a state of parameters and two moments, a third of the bytes is read."""
    params = {"transformer": {str(k): jax.random.normal(jax.random.key(k), (512, 512)) for k in range(4)}}
    moments = {
        name: jax.tree.map(lambda leaf: jax.random.permutation(jax.random.key(9), leaf), params) for name in "mv"
    }
    state = {"params": params, "opt_state": moments}
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state)
    checkpoints.close()
    reader = Checkpoints(tmp_path, keep=None)
    wanted = abstract(state, jax.tree.map(lambda leaf: leaf.sharding, state))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    before = bytes_read()
    restored, _ = reader.restore_params(wanted["params"])
    assert 0.8 * size < bytes_read() - before < 1.2 * size
    jax.tree.map(np.testing.assert_array_equal, restored, params)
    before = bytes_read()
    reader.restore(wanted)
    assert 2.4 * size < bytes_read() - before


MESHES_FOR_READING = """
import json, numpy as np
from train.sharding import make_reading_mesh
def sizes(width, **options):
    return list(make_reading_mesh({"logits_dense": {"kernel": np.zeros((width, 8))}}, **options).shape.values())
print(json.dumps([sizes(8), sizes(4), sizes(9), sizes(18), sizes(8, batch_size=5), sizes(8, batch_size=3)]))
"""


def test_the_mesh_for_reading_fits_any_width_and_batch():
    """On six devices: [data, fsdp, context, tensor] for widths, and for batches, which fewer devices may divide."""
    expected = [[3, 2, 1, 1], [3, 2, 1, 1], [2, 3, 1, 1], [1, 6, 1, 1], [5, 1, 1, 1], [3, 1, 1, 1]]
    assert run(MESHES_FOR_READING, devices=6) == [expected]


def test_modules_that_are_not_read_may_be_missing_or_damaged(tmp_path):
    """Arrays of the modules that are read are compared with the experiment's, in one line."""
    state = {
        "params": {"transformer": {"kernel": np.ones((4, 6), np.float32)}, "heads": {"kernel": np.ones(3, np.float32)}},
        "opt_state": {"count": np.zeros((), np.int32)},
    }
    state = jax.tree.map(jax.numpy.asarray, state)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, state)
    checkpoints.close()
    reader = Checkpoints(tmp_path, keep=None)
    wanted = abstract(state, jax.tree.map(lambda leaf: leaf.sharding, state))["params"]
    params, step = reader.restore_params({"transformer": wanted["transformer"]})
    assert step == 3 and params.keys() == {"transformer"}
    np.testing.assert_array_equal(params["transformer"]["kernel"], np.ones((4, 6)))
    for kernel, now in {(4, 7): r"float32\[4, 7\]", (4, 6): r"bfloat16\[4, 6\]"}.items():
        dtype = "float32" if kernel == (4, 7) else "bfloat16"
        other = {"kernel": jax.ShapeDtypeStruct(kernel, dtype, sharding=wanted["transformer"]["kernel"].sharding)}
        message = rf"params/transformer/kernel is float32\[4, 6\] in it and {now} now, and 0 more arrays differ"
        with pytest.raises(ConfigError, match=message):
            reader.restore_params({"transformer": other})
    with pytest.raises(ConfigError, match="params/classifier/kernel is missing in it"):
        reader.restore_params({"classifier": wanted["heads"]})
    with pytest.raises(ConfigError, match="no checkpoint of step 4"):
        reader.restore_params(wanted, 4)


def test_parameters_alone_are_put_on_the_devices(tmp_path):
    experiment = make_experiment(small_config("mlm", "encoder_only"))
    assert reading_mesh(experiment).size == jax.device_count()
    with pytest.raises(ConfigError, match="no checkpoint in"):
        load_params(experiment, str(tmp_path))
