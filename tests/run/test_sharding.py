import dataclasses
import itertools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs.base import get_config
from contract.errors import ConfigError
from experiment.config import MeshConfig
from models.config import ModelConfig
from models.parameters import leaf_name
from models.placement import placed, splits_kernels
from models.transformer import init_params
from run.compiled_run import on_mesh
from run.sharding import AXES, local_rows, make_mesh, mesh_shape, order_devices, shardings
from tests.experiment.test_optimizer import optimizer
from tests.models import tiny

ONE = MeshConfig(backend="jit", data=-1, fsdp=1, tensor=1)
N, D, HK, F, V, L = 2, 8, 16, 24, 32, 40

# Every kind of parameter that models have: path -> (shape, spec).
PARAMETERS = {
    "token_embedder/embedding": ((V, D), P("tensor", "fsdp")),
    "position_embedder/embedding": ((L, D), P(None, "fsdp")),
    "decoder_position_embedder/embedding": ((L, D), P(None, "fsdp")),
    "token_type_embedder/embedding": ((2, D), P(None, "fsdp")),
    "input_projection/kernel": ((12, D), P("fsdp", "tensor")),
    "prediction_head/dense/kernel": ((D, D), P("fsdp", "tensor")),
    "discriminator_head/dense/kernel": ((D, D), P("fsdp", "tensor")),
    "discriminator_head/logits/kernel": ((D, 1), P()),
    "logits_dense/kernel": ((D, V), P("fsdp", "tensor")),
    "encoder/relative_position_bias/embedding": ((4, 32), P()),
    "encoder/final_norm/scale": ((D,), P()),
    "encoder/layers/self_attention/query/kernel": ((N, D, HK), P(None, "fsdp", "tensor")),
    "encoder/layers/self_attention/key/bias": ((N, HK), P()),
    "encoder/layers/self_attention/out/kernel": ((N, HK, D), P(None, "tensor", "fsdp")),
    "encoder/layers/mlp/wi/kernel": ((N, D, F), P(None, "fsdp", "tensor")),
    "decoder/layers/cross_attention/value/kernel": ((N, D, HK), P(None, "fsdp", "tensor")),
    "decoder/layers/cross_attention_norm/scale": ((N, D), P()),
    "decoder/layers/mlp/wi_1/kernel": ((N, D, F), P(None, "fsdp", "tensor")),
    "decoder/layers/mlp/wo/kernel": ((N, F, D), P(None, "tensor", "fsdp")),
}


def nested(flat):
    tree = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return tree


SHAPES = nested({path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, (shape, _) in PARAMETERS.items()})


def specs(tree):
    return {leaf_name(path): sharding.spec for path, sharding in jax.tree_util.tree_leaves_with_path(tree)}


def test_each_kind_of_parameter_has_its_spec():
    assert specs(shardings(make_mesh(ONE), SHAPES)) == {path: spec for path, (_, spec) in PARAMETERS.items()}


def test_adams_moments_are_sharded_as_their_parameters_and_counters_are_replicated():
    state = jax.eval_shape(optimizer(name="rms_scaled_adamw").init, SHAPES)
    state_specs = specs(shardings(make_mesh(ONE), state))
    for moment in ("mu", "nu"):
        found = {name.partition(f"/{moment}/")[2]: spec for name, spec in state_specs.items() if f"/{moment}/" in name}
        assert found == {path: spec for path, (_, spec) in PARAMETERS.items()}
    assert {spec for name, spec in state_specs.items() if name.endswith("count")} == {P()}


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_every_parameter_of_the_models_has_a_spec(architecture):
    config = get_config().model.to_dict() | {
        "architecture": architecture,
        "positions": "learned",
        "norm": "layer",
        "use_bias": True,
        "embedding_norm": True,
        "prediction_head": "bert",
        "num_token_types": 2 * (architecture == "encoder_only"),
        "vocab_size": V,
        "max_length": L,
    }
    model = ModelConfig(**config, dtype="float32")
    params = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    for name, spec in specs(shardings(make_mesh(ONE), params)).items():
        # Only vectors and relative biases are replicated.
        assert name.endswith(("/bias", "/scale", "bias/embedding")) == (spec == P()), name


@pytest.mark.parametrize(("sizes", "joined"), [((8, 1, 1), True), ((2, 4, 1), False), ((4, 1, 2), False)])
def test_projections_are_joined_only_where_no_axis_splits_their_kernels(sizes, joined):
    """The TPU compiler adds up the gradient of joined kernels whole: tests/tpu has the bytes of its collectives."""
    config = tiny.config(architecture="encoder_only", positions="none", mlp="gelu")
    batch = tiny.rows("encoder", [[1] * 5], [[3] * 5])
    mesh = types.SimpleNamespace(shape=dict(zip(AXES, sizes, strict=True)), devices=np.array(jax.devices()[:1]))
    with placed(splits_kernels=on_mesh(splits_kernels, types.SimpleNamespace(mesh=mesh))()):
        program = str(jax.make_jaxpr(lambda params: tiny.apply(config, params, batch))(tiny.params(config)))
    assert ("concatenate" in program) == joined
    assert program.count("dot_general") == (7 if joined else 9)  # projections, scores, values, out, wi, wo, logits


def test_a_parameter_without_a_rule_is_named():
    message = r"encoder/adapter/matrix, shape \[3, 4\], has no row in run.sharding.RULES: docs/adding_a_learner.md"
    with pytest.raises(ConfigError, match=message):
        shardings(make_mesh(ONE), nested({"encoder/adapter/matrix": jnp.ones((3, 4))}))


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"data": 3}, r"mesh.data=3, .* devices, 1"),
        ({"fsdp": 2}, r"mesh.fsdp=2, .* devices, 1"),
        ({"tensor": -1}, r"mesh.data=-1, .*mesh.tensor=-1: only one of them may be -1"),
    ],
)
def test_sizes_that_do_not_suit_the_devices_are_errors(sizes, named):
    with pytest.raises(ConfigError, match=named):
        make_mesh(dataclasses.replace(ONE, **sizes))


def test_pmap_is_refused_for_several_processes(monkeypatch):
    """Each process would have a state of its own, which the first checkpoint cannot contain."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = "^mesh.backend='pmap' must be 'jit' for several processes: checkpoints need one state of all$"
    with pytest.raises(ConfigError, match=message):
        make_mesh(dataclasses.replace(ONE, backend="pmap"))
    assert make_mesh(ONE).size == 1


def test_any_one_axis_can_take_the_devices_that_the_others_leave():
    config = MeshConfig(backend="jit", data=1, fsdp=-1, tensor=2)
    assert mesh_shape(config, 8) == (1, 4, 2)
    assert mesh_shape(dataclasses.replace(config, data=4, fsdp=1, tensor=-1), 8) == (4, 1, 2)
    with pytest.raises(ConfigError, match=r"mesh.fsdp=-1, .* the number of devices, 7"):
        mesh_shape(config, 7)


def tpus(*sides, slices=1):
    """Devices of TPU v5p slices whose chips are a torus with these sides."""
    kind = {"platform": "tpu", "device_kind": "TPU v5", "core_on_chip": 0, "process_index": 0}
    places = itertools.product(range(slices), *map(range, sides))
    return [
        types.SimpleNamespace(**kind, id=index, slice_index=part, coords=coords)
        for index, (part, *coords) in enumerate(places)
    ]


@pytest.mark.parametrize("shape", [(2, 32, 1), (8, 8, 1), (1, 8, 8), (64, 1, 1), (4, 16, 1), (2, 16, 2)])
def test_every_mesh_of_the_right_size_can_be_made_of_a_torus(shape):
    ordered = order_devices(shape, tpus(4, 4, 4))
    assert ordered.shape == shape
    assert sorted(device.id for device in ordered.flat) == list(range(64))


def test_devices_of_an_axis_are_within_one_part_of_the_torus():
    """8 of 4 x 4 x 4 chips are a box of 8 chips, not a line through the whole torus."""
    ordered = order_devices((8, 8, 1), tpus(4, 4, 4))
    for part in ordered[..., 0]:
        sides = [len({device.coords[axis] for device in part}) for axis in range(3)]
        assert math.prod(sides) == 8, [device.coords for device in part]


def test_slices_are_parts_of_data_and_of_no_other_axis():
    ordered = order_devices((4, 4, 2), tpus(4, 2, 2, slices=2))
    assert ordered.shape == (4, 4, 2)
    for index, part in enumerate(ordered):
        assert {device.slice_index for device in part.flat} == {index // 2}
    with pytest.raises(ConfigError, match=r"mesh.data=1 must be a multiple of 2, the number of TPU slices"):
        order_devices((1, 8, 4), tpus(4, 2, 2, slices=2))


def test_rows_of_a_process_need_not_be_adjacent():
    mesh = types.SimpleNamespace(shape={"data": 4, "fsdp": 2})
    held = {"device 0": (slice(0, 2),), "device 1": (slice(4, 6),)}
    sharding = types.SimpleNamespace(mesh=mesh, addressable_devices_indices_map=lambda shape: held)
    assert local_rows(sharding, 16).tolist() == [0, 1, 4, 5]
