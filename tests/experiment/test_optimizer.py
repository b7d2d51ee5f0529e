import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from contract.errors import ConfigError
from experiment.config import OptimizerConfig
from experiment.optimizer import decay_mask, make_optimizer
from models.parameters import leaf_name
from models.transformer import init_params
from run.sharding import AXES, shardings
from tests.experiment.test_schedules import CONFIG as SCHEDULE
from tests.models import tiny

CONFIG = dataclasses.replace(SCHEDULE, schedule="constant", learning_rate=0.5, warmup_steps=0)
NAMES = typing.get_args(typing.get_type_hints(OptimizerConfig)["name"])


def optimizer(**changes):
    return make_optimizer(dataclasses.replace(CONFIG, **changes), steps=100, model=tiny.config())


def normal(*shape, seed=0, scale=1.0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape) * scale, jnp.float32)


def updates_of(transform, params, gradients):
    """The update for each of `gradients` in turn; each is applied to the parameters before the next."""
    state, updates = transform.init(params), []
    step = jax.jit(transform.update)
    for gradient in gradients:
        update, state = step(gradient, state, params)
        params = optax.apply_updates(params, update)
        updates.append(update)
    return updates


def test_adamw_equals_optaxs():
    params = {"dense": {"kernel": normal(3, 4), "bias": normal(4)}}
    gradients = [jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i + 1), params) for i in range(4)]
    changes = {"b1": 0.8, "b2": 0.95, "eps": 0.1}  # none of optax's defaults
    ours = optimizer(name="adamw", weight_decay=0.1, no_decay=("bias",), **changes)
    mask = {"dense": {"kernel": True, "bias": False}}
    theirs = optax.adamw(0.5, **changes, weight_decay=0.1, mask=mask)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        updates_of(ours, params, gradients),
        updates_of(theirs, params, gradients),
    )


def test_rms_scaled_adamw_by_hand():
    # Adam's first step is the gradient's sign. RMS([3, 4, 0, 5]) = sqrt(50 / 4); zeros are scaled by 1e-3.
    params = {"a": jnp.array([[3.0, 4.0], [0.0, 5.0]]), "b": jnp.zeros((2,))}
    gradients = {"a": jnp.array([[1.0, -2.0], [3.0, -4.0]]), "b": jnp.array([0.1, -0.2])}
    (update,) = updates_of(optimizer(name="rms_scaled_adamw"), params, [gradients])
    step = 0.5 * 12.5**0.5
    np.testing.assert_allclose(update["a"], [[-step, step], [-step, step]], rtol=1e-5)
    np.testing.assert_allclose(update["b"], [-0.0005, 0.0005], rtol=1e-5)


def test_decay_is_the_rate_times_the_parameter_for_any_rms():
    params = {"encoder": {"layers": {"kernel": jnp.array([[[8.0, 6.0]]])}}}
    gradients = {"encoder": {"layers": {"kernel": jnp.zeros((1, 1, 2))}}}
    for name in NAMES:
        if name == "lamb":  # whose steps are as long as the parameter
            continue
        (update,) = updates_of(optimizer(name=name, weight_decay=0.1), params, [gradients])
        np.testing.assert_allclose(update["encoder"]["layers"]["kernel"], [[[-0.4, -0.3]]], rtol=1e-6, err_msg=name)


def test_adafactor_equals_optaxs_without_stacked_layers():
    params = {"a": {"kernel": normal(128, 130)}, "b": {"kernel": normal(130, 127)}, "c": {"scale": normal(5)}}
    gradients = [jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i + 1), params) for i in range(3)]
    theirs = optax.adafactor(0.5, min_dim_size_to_factor=128, decay_rate=0.8, clipping_threshold=1.0, eps=1e-30)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        updates_of(optimizer(name="adafactor"), params, gradients),
        updates_of(theirs, params, gradients),
    )


def test_lamb_by_hand():
    # Adam's first step is the gradient's sign, and the decay 0.1 * (3, 4): the sum (1.3, -0.6) gets the norm of (3, 4).
    params = {"a": jnp.array([3.0, 4.0]), "zero": jnp.zeros(2), "bias": jnp.array([3.0, 4.0])}
    gradients = dict.fromkeys(params, jnp.array([1.0, -2.0]))
    (update,) = updates_of(optimizer(name="lamb", weight_decay=0.1, no_decay=("bias",)), params, [gradients])
    ratio = 5 / (1.3**2 + 0.6**2) ** 0.5
    np.testing.assert_allclose(update["a"], [-0.5 * ratio * 1.3, 0.5 * ratio * 0.6], rtol=1e-5)
    for name in ("zero", "bias"):
        np.testing.assert_allclose(update[name], [-0.5, 0.5], rtol=1e-5, err_msg=name)


def test_lamb_equals_optaxs_without_stacked_layers():
    params = {"a": {"kernel": normal(3, 4)}, "b": {"kernel": normal(4, 5, scale=30.0)}}
    gradients = [jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i + 1), params) for i in range(3)]
    changes = {"b1": 0.8, "b2": 0.95, "eps": 0.1, "weight_decay": 0.1}
    found = updates_of(optimizer(name="lamb", **changes), params, gradients)
    expected = updates_of(optax.lamb(0.5, **changes), params, gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_stable_adamw_is_the_papers_algorithm():
    """Algorithm 2, whose decay rates b (1 - b^(t - 1)) / (1 - b^t) are the bias correction. The third step is cut."""
    b1, b2, eps, decay = 0.8, 0.95, 1e-3, 0.1
    params = {"kernel": normal(4, 5), "scale": normal(3)}
    gradients = [jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i + 1) * (1, 1, 30, 1)[i], params) for i in range(4)]
    changes = {"b1": b1, "b2": b2, "eps": eps, "weight_decay": decay, "no_decay": ("scale",)}
    found = updates_of(optimizer(name="stable_adamw", **changes), params, gradients)
    for name in params:
        theta, v, u, cut = np.float64(params[name]), 0.0, 0.0, []
        for t, (update, gradient) in enumerate(zip(found, gradients, strict=True), start=1):
            g = np.float64(gradient[name])
            of_v, of_u = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (b1, b2))
            v, u = of_v * v + (1 - of_v) * g, of_u * u + (1 - of_u) * g**2
            cut.append(max(1, np.sqrt(np.mean(g**2 / np.maximum(u, eps**2)))))
            step = v / (np.sqrt(u) + eps) + (decay * theta if name == "kernel" else 0)
            np.testing.assert_allclose(update[name], -0.5 / cut[-1] * step, rtol=1e-4)
            theta = theta - 0.5 / cut[-1] * step
        assert cut[0] == 1 and cut[2] > 1.5 and cut[3] == 1


def test_lion_by_hand():
    # Momentum 0, then 0.02 * (1, -1) = (0.02, -0.02). Second: 0.8 * 0.02 - 0.2 * 0.1 < 0, 0.8 * -0.02 + 0.2 * 0.2 > 0.
    gradients = [{"a": jnp.array([1.0, -1.0])}, {"a": jnp.array([-0.1, 0.2])}]
    first, second = updates_of(optimizer(name="lion", b1=0.8), {"a": jnp.ones(2)}, gradients)
    assert first["a"].tolist() == [-0.5, 0.5] and second["a"].tolist() == [0.5, -0.5]


def newton_schulz(matrix):
    """Five steps of Jordan's quintic in float64, in terms of the singular values: x -> a x + b x^3 + c x^5."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 24), (32, 8)])
def test_muon_orthogonalises_the_momentum_of_each_layers_matrix(shape):
    sizes = np.array([0.01, 30.0], np.float32)[:, None, None]  # layers of different sizes would show a norm over both
    params = {"decoder": {"layers": {"kernel": normal(2, *shape)}}}
    gradients = [{"decoder": {"layers": {"kernel": normal(2, *shape, seed=i + 1) * sizes}}} for i in range(3)]
    updates = [jax.tree.leaves(update)[0] for update in updates_of(optimizer(name="muon"), params, gradients)]
    step = 0.5 * 0.2 * max(shape) ** 0.5
    momentum = np.zeros((2, *shape))
    for n, (update, gradient) in enumerate(zip(updates, gradients, strict=True), start=1):
        gradient = np.float64(jax.tree.leaves(gradient)[0])
        momentum = 0.95 * momentum + 0.05 * gradient
        looking_ahead = 0.95 * momentum / (1 - 0.95 ** (n + 1)) + 0.05 * gradient / (1 - 0.95**n)
        for layer in range(2):
            np.testing.assert_allclose(update[layer], -step * newton_schulz(looking_ahead[layer]), atol=2e-4)
            singular_values = np.linalg.svd(update[layer], compute_uv=False) / step
            assert singular_values.min() > 0.6 and singular_values.max() < 1.3, "far from orthogonal"
            assert np.sqrt(np.mean(np.square(update[layer]))) == pytest.approx(0.5 * 0.2, rel=0.2), "0.2 times the rate"


def model_shapes(**changes):
    """The shapes of the parameters of a model with every kind of parameter."""
    changes = {"positions": "relative", "prediction_head": "bert", "use_bias": True, "norm": "layer"} | changes
    config = tiny.config(num_token_types=2, embedding_norm=True, tie_embeddings=False, **changes)
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def by_name(tree):
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_muon_updates_the_matrices_of_layers_and_nothing_else(positions):
    shapes = model_shapes(positions=positions)
    state = by_name(jax.eval_shape(optimizer(name="muon").init, shapes))
    hidden, other = (
        {path.partition(f"/{moment}/")[2] for path in state if f"/{group}/" in path and f"/{moment}/" in path}
        for group, moment in (("hidden", "mu"), ("other", "nu"))
    )
    assert hidden | other == by_name(shapes).keys() and not hidden & other
    attention = {
        f"{layer}_attention/{kernel}"
        for layer in ("encoder/layers/self", "decoder/layers/self", "decoder/layers/cross")
        for kernel in ("query", "key", "value", "out")
    }
    mlp = {f"{stack}/layers/mlp/{kernel}" for stack in ("encoder", "decoder") for kernel in ("wi_0", "wi_1", "wo")}
    assert hidden == {f"{module}/kernel" for module in attention | mlp}


def test_muon_updates_other_parameters_exactly_as_adamw():
    shapes = {"token_embedder": {"embedding": (6, 4)}, "encoder": {"layers": {"mlp": {"wo": {"bias": (2, 4)}}}}}
    shapes["logits_dense"] = {"kernel": (4, 6)}
    params = jax.tree.map(lambda shape: normal(*shape), shapes, is_leaf=lambda shape: type(shape) is tuple)
    hidden = {"decoder": {"layers": {"mlp": {"wi": {"kernel": normal(2, 4, 5)}}}}}
    gradients = [jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i), params | hidden) for i in (1, 2)]
    changes = {"weight_decay": 0.01, "no_decay": ("embedd",)}
    muon = updates_of(optimizer(name="muon", **changes), params | hidden, gradients)
    adamw = updates_of(optimizer(name="adamw", **changes), params | hidden, gradients)
    for one, other in zip(muon, adamw, strict=True):
        jax.tree.map(np.testing.assert_array_equal, {k: one[k] for k in params}, {k: other[k] for k in params})
        assert not np.allclose(*(jax.tree.leaves(update["decoder"])[0] for update in (one, other)), rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_every_array_of_the_state_is_sharded_as_its_parameter(name):
    mesh = jax.sharding.AbstractMesh((1, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
    shapes = model_shapes(d_model=128, d_ff=256, num_heads=4, num_kv_heads=4, head_dim=32)
    places = {path: sharding.spec for path, sharding in by_name(shardings(mesh, shapes)).items()}
    matrices = {path for path, spec in places.items() if {"fsdp", "tensor"} <= set(spec)}
    assert len(matrices) > 10
    state = by_name(shardings(mesh, jax.eval_shape(optimizer(name=name).init, shapes)))
    split = 0
    for path, sharding in state.items():
        parameter = next((parameter for parameter in places if path.endswith(f"/{parameter}")), None)
        if parameter is None or name == "adafactor":
            assert sharding.spec == P(), path
        else:
            assert sharding.spec == places[parameter], path
            split += parameter in matrices
    moments = {"adamw": 2, "rms_scaled_adamw": 2, "adafactor": 0, "lion": 1, "muon": 1, "lamb": 2, "stable_adamw": 2}
    assert split >= moments[name] * len(matrices)


@pytest.mark.parametrize(
    "name", ["adamw", "rms_scaled_adamw", "adafactor", "lamb", "stable_adamw"]
)  # Lion is elementwise; Muon: see above
def test_a_stacked_leaf_is_updated_layer_by_layer(name):
    # Layers and gradients of very different sizes, so that an RMS, clip or factorization over the stack would show.
    sizes = np.array([0.01, 1.0, 30.0], np.float32)
    stacked = {
        "encoder": {
            "layers": {
                "mlp": {"wi": {"kernel": normal(3, 128, 129) * sizes[:, None, None]}},
                "self_attention": {"query": {"kernel": normal(3, 6, 4) * sizes[:, None, None]}},
                "norm": {"scale": normal(3, 5) * sizes[:, None]},
            }
        },
        "decoder": {"layers": {"norm": {"scale": normal(2, 5) * sizes[:2, None]}}},  # another depth
        "token_embedder": {"embedding": normal(128, 128)},
    }
    # The second gradient is far larger than the first, so that Adafactor clips it, each layer differently.
    gradients = [
        jax.tree.map(lambda x, i=i: normal(*x.shape, seed=i) * (1, 100, 0.1)[i] * x**2, stacked) for i in range(3)
    ]

    def one_by_one(tree):
        return {
            "encoder": [jax.tree.map(lambda x, n=n: x[n], tree["encoder"]["layers"]) for n in range(3)],
            "decoder": [jax.tree.map(lambda x, n=n: x[n], tree["decoder"]["layers"]) for n in range(2)],
            "token_embedder": tree["token_embedder"],
        }

    transform = optimizer(name=name, weight_decay=0.01)
    together = updates_of(transform, stacked, gradients)
    apart = updates_of(transform, one_by_one(stacked), [one_by_one(gradient) for gradient in gradients])
    for one, other in zip(together, apart, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), one_by_one(one), other)


def test_gradients_are_clipped_by_their_global_norm():
    # The norm of (3, 4) is 5; clipped to 1 it is (0.6, 0.8). Adam's first moment is 0.1 of the clipped gradient.
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}

    def first_moment(clip_norm):
        transform = optimizer(clip_norm=clip_norm)
        _, state = transform.update(gradients, transform.init(params), params)
        moment = optax.tree_utils.tree_get(state, "mu")
        return [float(moment["a"][0]), float(moment["b"][0])]

    assert first_moment(1.0) == pytest.approx([0.06, 0.08])
    assert first_moment(10.0) == pytest.approx([0.3, 0.4])
    assert first_moment(0.0) == pytest.approx([0.3, 0.4])


def test_decay_mask_matches_anywhere_in_the_path():
    tree = {
        "token_embedder": {"embedding": 0},
        "encoder": {"layers": {"pre_mlp_norm": {"scale": 0}, "mlp": {"wi": {"kernel": 0, "bias": 0}}}},
    }
    assert decay_mask(tree, ("norm", "bias", "embedd")) == {
        "token_embedder": {"embedding": False},
        "encoder": {"layers": {"pre_mlp_norm": {"scale": False}, "mlp": {"wi": {"kernel": True, "bias": False}}}},
    }
    assert all(jax.tree.leaves(decay_mask(tree, ())))


def test_a_pattern_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"^optimizer.no_decay: '\(bias' is not a regular expression") as error:
        optimizer(no_decay=("norm", "(bias"))
    assert "\n" not in str(error.value)
