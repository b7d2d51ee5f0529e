"""The parameters of a checkpoint are read alone. tests/run/test_devices.py reads runs of other devices."""

import jax
import numpy as np
import pytest
import tensorstore as ts

from contract.errors import ConfigError
from workdir.checkpoint import Checkpoints, abstract


def bytes_read():
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")  # none before a read
    return sum(value["value"] for metric in metrics for value in metric["values"])


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
        message = rf"params/transformer/kernel is float32\[4, 6\] there and {now} here: use"
        with pytest.raises(ConfigError, match=message):
            reader.restore_params({"transformer": other})
    with pytest.raises(ConfigError, match="params/classifier/kernel is missing there"):
        reader.restore_params({"classifier": wanted["heads"]})
    with pytest.raises(ConfigError, match="no checkpoint of step 4"):
        reader.restore_params(wanted, 4)
