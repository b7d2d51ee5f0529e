"""Fused attention kernels on eight devices, with rows and heads split, against XLA's attention on one device."""

import pytest

from tests.train.subprocesses import run

pytestmark = pytest.mark.slow

PROGRAM = """
import dataclasses, functools, json, types
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from models import fused_attention, kernels
from models.placement import placed
from models.transformer import apply
from tests.models import tiny
from run import sharding
from experiment.config import MeshConfig
from run.sharding import per_part

mesh = sharding.make_mesh(MeshConfig(backend="jit", data=2, fsdp=2, tensor=2))
over_devices = functools.partial(sharding.over_devices, mesh=mesh)
segments = np.array([[1, 1, 2, 2, 2, 0, 0, 0], [1, 2, 2, 2, 3, 3, 3, 3]] * 2)
batch = tiny.rows("decoder", segments.tolist(), 3 + np.arange(32).reshape(4, 8))
batch |= tiny.rows("encoder", segments[:, ::-1].tolist(), 5 + np.arange(32).reshape(4, 8))
batch |= {"decoder_bidirectional_mask": jnp.arange(32).reshape(4, 8) % 3 == 0}

def on_mesh(config, platform):
    def loss(params, batch):
        with placed(platform=platform, over_devices=over_devices):
            return jnp.square(apply(config, params, batch)).mean()
    params = tiny.params(config)
    shardings = sharding.shardings(mesh, jax.eval_shape(lambda: params))
    return jax.jit(jax.value_and_grad(loss), in_shardings=(shardings, sharding.batch_sharding(mesh))), params

def largest_difference(config, platform):
    "of loss and gradients to those of XLA's attention on one device, relative to the largest entry of each gradient"
    step, params = on_mesh(config, platform)
    plain = dataclasses.replace(config, attention="xla")
    expected = jax.jit(jax.value_and_grad(lambda params: jnp.square(apply(plain, params, batch)).mean()))(params)
    pairs = zip(jax.tree.leaves(step(params, batch)), jax.tree.leaves(expected), strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)

splash = fused_attention.splash
splash.make_splash_mha = functools.partial(splash.make_splash_mha, interpret=True)
decoder = {"architecture": "decoder_only", "has_prefix": False}
results = {"splash": largest_difference(tiny.config(positions="rope", attention="splash", **decoder), "tpu")}

# Not force_tpu_interpret_mode, whose callbacks wait for each other where there are fewer cores than devices.
flash.pl = types.SimpleNamespace(**{**vars(pl), "pallas_call": functools.partial(pl.pallas_call, interpret=True)})
prefix = {"architecture": "decoder_only", "has_prefix": True}
results["flash"] = largest_difference(tiny.config(attention="flash", **prefix), "tpu")

def summed(config, platform, over_devices, params, scale, batch, key):
    with placed(platform=platform, over_devices=over_devices):
        return scale * jnp.square(apply(config, params, batch, dropout_key=key if config.dropout_rate else None)).sum()

def difference_in_split_rows(config, platform="tpu"):
    "of gradients, where each part of the axis data has its own rows, to those of one device"
    mesh = sharding.make_mesh(MeshConfig(backend="jit", data=4, fsdp=1, tensor=2))
    on_devices = functools.partial(sharding.over_devices, mesh=mesh)
    of_part = jax.grad(functools.partial(summed, config, platform, on_devices))
    split = per_part(lambda *arguments: jax.lax.psum(of_part(*arguments), "data"), mesh=mesh)
    if not config.dropout_rate:
        config = dataclasses.replace(config, attention="xla")
    whole = jax.grad(functools.partial(summed, config, platform, lambda function, *_: function))
    arguments = tiny.params(config), jnp.float32(1), batch, jax.random.key(5)
    pairs = zip(*[jax.tree.leaves(jax.jit(gradient)(*arguments)) for gradient in (split, whole)], strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)

results["flash in split rows"] = difference_in_split_rows(tiny.config(attention="flash", **prefix))

relative = tiny.config(attention="cudnn", dtype="bfloat16", head_dim=16)
jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version = lambda: 91000
step, params = on_mesh(relative, "cuda")
text = step.trace(params, batch).lower(lowering_platforms=("cuda",)).as_text()
results["cudnn's calls"] = [line for line in text.splitlines() if "@__cudnn$" in line]

attention = jax.nn.dot_product_attention  # cudnn cannot run on a CPU: XLA gets its arguments
jax.nn.dot_product_attention = lambda *args, implementation, **options: attention(*args, **options)
kernels._unsupported = lambda *_: None
fused_attention._CUDNN_MASK_VALUE["float32"] = -1e9
results["cudnn"] = largest_difference(dataclasses.replace(relative, dtype="float32", **decoder), "cuda")
segments = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]] * 2)
batch = tiny.rows("decoder", segments.tolist(), 3 + np.arange(32).reshape(4, 8))
batch |= tiny.rows("encoder", segments.tolist(), 5 + np.arange(32).reshape(4, 8))
results["cudnn of one segment"] = largest_difference(
    dataclasses.replace(relative, dtype="float32", one_segment=True), "cuda"
)
print(json.dumps(results))
"""


NAMES = ("splash", "flash", "flash in split rows", "cudnn", "cudnn of one segment")


@pytest.fixture(scope="module")
def results():
    return run(PROGRAM, devices=8, timeout=900)[0]


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_one_device(results, name):
    assert results[name] < 1e-5


def test_cudnn_gets_each_devices_rows_and_heads(results):
    """One of four rows and two of four heads; the backward pass also returns the gradient of the bias."""
    calls = results["cudnn's calls"]
    assert len(calls) == 6 and all("(tensor<1x8x2x16xbf16>, tensor<1x8x1x16xbf16>" in call for call in calls)
    backward = [call.rpartition("->")[2] for call in calls if "Backward" in call]
    assert sum("tensor<1x2x8x8xbf16>" in call for call in backward) == 2
