"""CompleteP: its factors, its equality with the paper's multipliers, and activations that keep their size."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.optimizer import make_optimizer
from huggingface.decoders import Llama
from models.complete_p import factors
from models.transformer import bind, init_params
from tests.models import tiny
from tests.small_fields import small_config

COMPLETE = {
    "model__parameterization": "complete_p",
    "model__base_d_model": 32,
    "model__base_num_layers": 2,
    "model__initializer": "t5",
    "optimizer__name": "adamw",
    "optimizer__learning_rate": 2e-3,
}

PARAMETERIZATIONS = ("complete_p", "standard")


@functools.partial(jax.jit, static_argnums=0)
def initial(config):
    """The initial parameters, from one program instead of one for each operation."""
    return init_params(config, jax.random.key(0))


def experiment_of(width=32, depth=2, **overrides):
    heads = width // 16
    sizes = dict(d_model=width, num_layers=depth, d_ff=2 * width, num_heads=heads, num_kv_heads=heads)
    sizes = {f"model__{field}": value for field, value in sizes.items()}
    return make_experiment(small_config("clm", "decoder_only", **(COMPLETE | sizes | overrides)))


def test_factors_of_four_times_the_width_and_eight_times_the_depth():
    """The steps and eps of table 1, with the multipliers 1/8 of branches and 1/4 of logits moved into the kernels.

    The third number is the multiplier.
    """
    config = experiment_of(width=128, depth=16).model
    expected = {
        "transformer/token_embedder/embedding": (1, 1 / 4, 1),
        "transformer/decoder/layers/self_attention/query/kernel": (1 / 4, 1 / 32, 1),
        "transformer/decoder/layers/self_attention/query/bias": (1, 1 / 32, 1),
        "transformer/decoder/layers/self_attention/out/kernel": (1 / 32, 1 / 4, 1 / 8),
        "transformer/decoder/layers/self_attention_norm/scale": (1, 1 / 32, 1),
        "transformer/decoder/layers/mlp/wi_0/kernel": (1 / 4, 1 / 32, 1),
        "transformer/decoder/layers/mlp/wo/kernel": (1 / 32, 1 / 4, 1 / 8),
        "transformer/decoder/layers/mlp/wo/bias": (1 / 8, 1 / 4, 1 / 8),
        "transformer/decoder/final_norm/scale": (1, 1 / 4, 1),
        "heads/layers/self_attention/out/kernel": (1 / 32, 1 / 4, 1 / 8),
        "heads/layers/mlp_norm/scale": (1, 1 / 32, 1),
        "heads/layers/projection/kernel": (1 / 4, 1 / 4, 1),  # of the main path, as the norms of sequential heads
        "heads/layers/final_norm/scale": (1, 1 / 4, 1),
        "heads/layers/hidden_norm/scale": (1, 1 / 4, 1),
        "heads/layers/embedding_norm/scale": (1, 1 / 4, 1),
        "transformer/logits_dense/kernel": (1 / 4, 1, 1 / 4),
        "summary_head/logits_dense/kernel": (1 / 4, 1, 1 / 4),
        "classifier/classes_dense/kernel": (1 / 4, 1, 1 / 4),
        "classifier/classes_dense/bias": (1, 1, 1),
        "discriminator_head/logits/kernel": (1 / 4, 1, 1 / 4),
        "transformer/prediction_head/bias": (1, 1, 1),
        "transformer/target_positions/offset_projection/kernel": (1, 1 / 4, 1),  # from head_dim, which stays
    }
    assert {name: tuple(factors(config, name)) for name in expected} == expected


def test_initial_kernels_have_the_standard_deviations_of_the_table():
    model = experiment_of(width=128, depth=16).model
    sizes = {
        "decoder/layers/self_attention/query/kernel": 1 if model.scale_attention else 4,  # or a head's 16 dimensions
        "decoder/layers/self_attention/out/kernel": 8,
        "decoder/layers/mlp/wo/kernel": 8 * 2**0.5,  # of twice the inputs
        "decoder/layers/mlp/wi_0/kernel": 1,
        "logits_dense/kernel": 2,
    }
    for (name, size), kernel in zip(sizes.items(), tiny.initial(model, tuple(sizes)), strict=True):
        np.testing.assert_allclose(np.std(kernel) * size * 128**0.5, 1, rtol=0.02, err_msg=name)


def test_relative_biases_start_alike_at_all_widths():
    """Uniform of variance 2 / (2 + 32), with the 2 heads of the base, and 2 / (8 + 32) in a standard model."""
    for parameterization, variance in zip(PARAMETERIZATIONS, (2 / 34, 2 / 40), strict=True):
        config = experiment_of(width=128, model__parameterization=parameterization, model__positions="relative").model
        assert config.num_heads == 8 and config.relative_num_buckets == 32
        [table] = tiny.initial(config, ("decoder/relative_position_bias/embedding",))
        bound = (3 * variance) ** 0.5
        assert 0.98 * bound < abs(table).max() <= bound


@pytest.mark.parametrize(
    ("name", "architecture", "head", "module"),
    [
        ("future_summary", "decoder_only", "summary_head", "logits_dense"),
        ("classification", "encoder_only", "classifier", "classes_dense"),
        ("nsp", "encoder_only", "pair_classifier", "classes_dense"),
        ("electra", "encoder_only", "discriminator_head", "logits"),
    ],
)
def test_all_logits_start_as_those_of_the_table(name, architecture, head, module):
    """With kernels of the standard deviation of the base, divided by the width's ratio."""
    sizes = dict(d_model=128, num_heads=8, num_kv_heads=8, norm_position="pre", tie_embeddings=False)
    overrides = COMPLETE | {f"model__{field}": value for field, value in sizes.items()}
    if name == "electra":
        overrides["objective__generator_size"] = 1.0
    kernels = []
    for parameterization in PARAMETERIZATIONS:
        overrides["model__parameterization"] = parameterization
        experiment = make_experiment(small_config(name, architecture, **overrides))
        kernel = jax.jit(lambda key: experiment.learner.init_params(key)[head][module]["kernel"])  # noqa: B023
        kernels.append(kernel(jax.random.key(0)))
    np.testing.assert_allclose(kernels[0] * 4**0.5, kernels[1], rtol=1e-5)


def test_a_model_of_the_base_is_the_standard_one_bit_for_bit():
    complete, standard = experiment_of(), experiment_of(model__parameterization="standard")
    params = initial(complete.model)
    jax.tree.map(np.testing.assert_array_equal, params, initial(standard.model))
    states = []
    for experiment in (complete, standard):
        optimizer = make_optimizer(experiment.optimizer, 10, experiment.model)
        states.append(jax.jit(lambda p: optimizer.update(jax.tree.map(jnp.cos, p), optimizer.init(p), p)[0])(params))  # noqa: B023
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_training_is_that_of_a_model_with_the_papers_multipliers():
    """y = m w x with Adam's rate r and eps e, against y = v x with v = m w, in which the code has the factors."""
    model = experiment_of(width=128, depth=16).model
    config = dataclasses.replace(
        experiment_of().optimizer, schedule="constant", warmup_steps=0, weight_decay=0.1, no_decay=(), clip_norm=0.0,
        eps=1e-2, learning_rate=0.1,
    )  # fmt: skip
    x = np.linspace(-1, 2, 6, dtype=np.float32).reshape(3, 2)
    wide, deep, start = 1 / 4, 1 / 8, np.asarray([[0.5], [-0.25]], np.float32)
    cases = {  # name: multiplier, and the rate, the eps and the decay of the paper's table
        "decoder/layers/mlp/wo/kernel": (deep, 0.1 * wide, 1e-2 * wide * deep, 0.1 / wide),
        "logits_dense/kernel": (wide, 0.1, 1e-2 * wide, 0.1),
        "decoder/layers/mlp/wi_0/kernel": (1.0, 0.1 * wide, 1e-2 * wide * deep, 0.1 / wide),
        "token_embedder/embedding": (1.0, 0.1, 1e-2 * wide, 0.1),
    }
    for name, (multiplier, rate, eps, decay) in cases.items():
        paper = optax.adamw(rate, b1=config.b1, b2=config.b2, eps=eps, weight_decay=decay)
        ours = make_optimizer(config, 10, model)
        tree = ours_tree(name, start * multiplier)
        paper_state, our_state, w = paper.init(start), ours.init(tree), start

        def loss(v, multiplier=1.0):
            return jnp.square(x @ (multiplier * v) - 1).mean() / 20  # small gradients, of which eps is a part

        for _ in range(5):
            update, paper_state = paper.update(jax.grad(loss)(w, multiplier), paper_state, w)
            w = optax.apply_updates(w, update)
            update, our_state = ours.update(jax.tree.map(jax.grad(loss), tree), our_state, tree)
            tree = optax.apply_updates(tree, update)
        np.testing.assert_allclose(jax.tree.leaves(tree)[0], multiplier * w, rtol=1e-5, err_msg=name)


def test_gradients_are_clipped_by_the_norm_of_the_papers_parameters():
    """The norm of two kernels: the output of a branch, with the multiplier 1/8, and an input without one."""
    config = dataclasses.replace(
        experiment_of().optimizer, schedule="constant", warmup_steps=0, weight_decay=0.0, clip_norm=1.0, eps=1e-2,
        learning_rate=0.1,
    )  # fmt: skip
    x = np.linspace(-1, 2, 6, dtype=np.float32).reshape(3, 2)
    wide, deep = 1 / 4, 1 / 8
    w = {"wo": np.asarray([[0.5], [-0.25]], np.float32), "wi_0": np.asarray([[0.3], [0.2]], np.float32)}
    adam = optax.adamw(0.1 * wide, b1=config.b1, b2=config.b2, eps=1e-2 * wide * deep, weight_decay=0.0)
    paper = optax.chain(optax.clip_by_global_norm(1.0), adam)
    ours = make_optimizer(config, 10, experiment_of(width=128, depth=16).model)

    def loss(kernels, scale, multiplier):
        return scale * jnp.square(x @ (multiplier * kernels["wo"] + kernels["wi_0"]) - 1).mean()

    def tree_of(kernels, multiplier=1.0):
        kernels = {"wo": kernels["wo"] * multiplier, "wi_0": kernels["wi_0"]}
        return {"decoder": {"layers": {"mlp": {name: {"kernel": kernel} for name, kernel in kernels.items()}}}}

    v = {"wo": w["wo"] * deep, "wi_0": w["wi_0"]}
    paper_state, our_state, norms = paper.init(w), ours.init(tree_of(v)), []
    for scale in (3.0, 0.3, 1.05, 3.0, 0.3):  # clipped and not clipped
        gradients = jax.grad(loss)(w, scale, deep)
        norms.append(float(optax.tree.norm(gradients)))
        update, paper_state = paper.update(gradients, paper_state, w)
        w = optax.apply_updates(w, update)
        update, our_state = ours.update(tree_of(jax.grad(loss)(v, scale, 1.0)), our_state, tree_of(v))
        kernels = optax.apply_updates(tree_of(v), update)["decoder"]["layers"]["mlp"]
        v = {name: leaf["kernel"] for name, leaf in kernels.items()}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), tree_of(v), tree_of(w, deep))
    assert max(norms) > 1.5 and min(norms) < 0.9


def ours_tree(name, value):
    for part in reversed(name.split("/")):
        value = {part: value}
    return value


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model__tie_embeddings", True, "needs model.tie_embeddings=False, not True"),
        ("model__scale_embeddings", True, "needs model.scale_embeddings=False, not True"),
        ("model__initializer", "normal", "needs model.initializer='t5', not 'normal'"),
        ("optimizer__name", "lion", "needs optimizer.name='adamw', not 'lion'"),
    ],
)
def test_what_has_other_factors_is_refused(field, value, message):
    with pytest.raises(ConfigError, match=message):
        experiment_of(**{field: value})


@pytest.mark.parametrize(("width", "heads"), [(128, 2), (128, 6), (48, 2)])
def test_heads_of_no_base_are_refused(width, heads):
    """4 and 1.5 times the base's width: its heads would be 0.5, 1.5 and 4 / 3."""
    fields = {"model__num_heads": heads, "model__num_kv_heads": heads}
    with pytest.raises(ConfigError, match=f"model.num_heads={heads} must be a multiple of {4 if width == 128 else 3} "):
        experiment_of(width, **fields)


def test_electra_is_refused():
    fields = {"objective__generator_size": 0.5} | COMPLETE | {"model__norm_position": "pre"}
    with pytest.raises(
        ConfigError, match=r"objective.generator_size=0.5: for the generator, .* needs model.embedding_size=0"
    ):
        make_experiment(small_config("electra", "encoder_only", **fields, model__tie_embeddings=False))


def test_a_class_of_transformers_holds_the_model():
    """Only training differs."""
    complete, standard = (
        dataclasses.replace(experiment_of().model, parameterization=name) for name in PARAMETERIZATIONS
    )
    assert Llama().mismatches(complete) == Llama().mismatches(standard)


def learned_in_ten_steps(experiment):
    """The RMS of what ten steps on random bigrams add to the last residual stream and to the logits."""
    config, draws = experiment.model, np.random.default_rng(0)
    after = draws.integers(3, 60, 60)
    tokens = np.full((8, 16), 5)
    for k in range(1, 16):
        tokens[:, k] = np.where(draws.uniform(size=8) < 0.1, draws.integers(3, 60, 8), after[tokens[:, k - 1]])
    batch = {
        "decoder_input_tokens": jnp.asarray(tokens),
        "decoder_positions": jnp.broadcast_to(jnp.arange(16), (8, 16)),
        "decoder_segment_ids": jnp.ones((8, 16), jnp.int32),
        "decoder_bidirectional_mask": jnp.zeros((8, 16), bool),
    }

    def loss(params):
        logits = bind(config, params)(batch)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["decoder_input_tokens"][:, 1:]).mean()

    optimizer = make_optimizer(dataclasses.replace(experiment.optimizer, schedule="constant"), 10, config)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = first = initial(config)
    state = jax.jit(optimizer.init)(params)
    for _ in range(10):
        params, state = step(params, state)
    return [
        float(jnp.sqrt(jnp.square(after - before).mean()))
        for after, before in zip(outputs(config, params, batch), outputs(config, first, batch), strict=True)
    ]


@functools.partial(jax.jit, static_argnums=0)
def outputs(config, params, batch):
    model = bind(config, params)
    logits = model(batch)
    model.decoder.final_norm = lambda x, dropout_key=None: x
    return model.hidden(batch), logits


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[(64, 2), (512, 2)], [(64, 2), (64, 16)]])
def test_what_is_learned_keeps_its_size(sizes):
    """The coordinate check of muP, over widths and over depths, which standard models fail.

    What the smallest models learn is not yet that of the limit, so that a factor of 1.8 is left.
    """

    def spread(**overrides):
        found = [learned_in_ten_steps(experiment_of(*size, model__base_d_model=64, **overrides)) for size in sizes]
        return max(max(column) / min(column) for column in zip(*found, strict=True))

    assert spread() < 1.8
    assert spread(model__parameterization="standard") > 2.2
