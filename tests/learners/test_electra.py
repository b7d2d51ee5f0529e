"""ELECTRA's two models in one step: which loss trains which parameters, and the inputs of each model."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import ELECTRA as SHAPES
from configs.base import get_config
from contract.errors import ConfigError
from learners.electra import generator_config
from learners.learner import TokenPredictionLearner
from models.config import ModelConfig
from models.parameters import leaf_name
from tests.table import random_windows, small_experiment

OFF = np.float32(np.inf)  # as the denominator of a term: the term and its gradient are 0
SHARED = ("token_embedder", "position_embedder", "embedding_norm")


@functools.cache
def electra(**overrides):
    return small_experiment("electra", "encoder_only", model__positions="learned", **overrides)


def greedy_learner():
    """Samples the most likely tokens, so the discriminator's inputs depend neither on keys nor on microbatches."""
    return electra(objective__temperature=1e-6).learner


@pytest.fixture(scope="module")
def batch():
    return jax.tree.map(jnp.asarray, electra().collate(random_windows(electra(), 8, same_keys=False), 8))


@pytest.fixture(scope="module")
def params():
    """Random values, different from the initial 0 and 1.

    ELECTRA's tree of parameters sets the order of the draws.
    """
    generator, shapes = np.random.default_rng(0), jax.eval_shape(electra().learner.init_params, jax.random.key(0))

    def draw(path, leaf):
        return np.float32(leaf_name(path).endswith("scale") + 0.1 * generator.standard_normal(leaf.shape))

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def gradients():
    """(params, batch, weights) -> gradients and Sums."""

    def loss(params, batch, weights):
        return greedy_learner().loss(params, batch, weights, key=jax.random.key(1), train=True)

    return jax.jit(jax.grad(loss, has_aux=True))


def without_shared(transformer):
    return {name: leaves for name, leaves in transformer.items() if name not in SHARED}


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def assert_close(one, other):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6), one, other)


def test_the_generator_learns_from_its_own_loss_alone(params, batch):
    """That loss is the MLM loss of the generator alone, with logits at every position."""
    learner = electra().learner
    generator, language_model = learner.language_model(params)
    assert generator == learner.generator and generator.d_model == 16 and learner.model.d_model == 32
    setup = dataclasses.replace(learner.setup, most_scored=learner.setup.inputs_length)
    alone = TokenPredictionLearner(learner.objective, generator, setup)
    loss = functools.partial(alone.loss, key=jax.random.key(0), train=False)
    _, expected = jax.jit(loss)({"transformer": language_model}, batch, alone.weights(batch))

    weights = learner.weights(batch)
    both, sums = gradients()(params, batch, weights)
    ratios = sums.pop("ratios")
    assert_close(sums, expected)
    assert float(weights["generator"]) == float(sums["weight_sum"]) == float(batch["encoder_loss_weights"].sum())
    assert float(weights["discriminator"]) == float(ratios["discriminator_loss"][1]) == 8 * 40
    without, _ = gradients()(params, batch, weights | {"discriminator": OFF})
    for name in ("encoder", "input_projection", "prediction_head"):
        assert largest(both["generator"][name]) > 1e-3
        assert_close(both["generator"][name], without["generator"][name])
    assert largest([without_shared(without["transformer"]), without["discriminator_head"]]) == 0


def test_the_discriminators_loss_trains_the_embeddings_and_nothing_else_of_the_generator(params, batch):
    weights = electra().learner.weights(batch)
    both, discriminators, generators = (
        gradients()(params, batch, weights | off)[0] for off in ({}, {"generator": OFF}, {"discriminator": OFF})
    )
    assert largest(discriminators["generator"]) == 0
    assert_close(without_shared(both["transformer"]), without_shared(discriminators["transformer"]))
    assert largest(discriminators["discriminator_head"]) > 1e-3
    for name in SHARED:
        gradients_of_both = generators["transformer"][name], discriminators["transformer"][name]
        assert min(map(largest, gradients_of_both)) > 1e-4
        assert_close(both["transformer"][name], jax.tree.map(np.add, *gradients_of_both))


def test_gradients_of_parts_add_up_to_those_of_the_batch(params, batch):
    """In each part the other part's rows are padding. The parts differ in the number of tokens and scored tokens."""
    segments, scored = (np.array(batch[f"encoder_{name}"]) for name in ("segment_ids", "loss_weights"))
    segments[1, 20:] = segments[3, 30:] = 0
    batch = batch | {"encoder_segment_ids": segments, "encoder_loss_weights": scored * segments}
    weights = electra().learner.weights(batch)
    parts = []
    for number in (0, 1):
        is_in_part = (np.arange(8) % 2 == number)[:, None]
        fields = {name: batch[name] * is_in_part for name in ("encoder_segment_ids", "encoder_loss_weights")}
        parts.append(gradients()(params, batch | fields, weights))
    whole, _ = gradients()(params, batch, weights)
    assert_close(jax.tree.map(np.add, *(grads for grads, _ in parts)), whole)
    sizes = [(float(sums["weight_sum"]), float(sums["ratios"]["discriminator_loss"][1])) for _, sums in parts]
    assert sizes[0][0] > sizes[1][0] and sizes[0][1] > sizes[1][1]


def evaluate_in_batches(params, batch, size):
    """The Sums of evaluation, with its fixed key, added over batches of `size` rows."""
    learner = electra().learner

    @jax.jit
    def sums_of(batch):
        return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(0), train=False)[1]

    rows = len(batch["encoder_input_tokens"])
    parts = [{name: array[begin : begin + size] for name, array in batch.items()} for begin in range(0, rows, size)]
    return jax.tree.map(lambda *sums: np.sum(sums, axis=0), *map(sums_of, parts))


def test_evaluation_does_not_depend_on_the_batch_size(params, batch):
    sizes = {size: evaluate_in_batches(params, batch, size) for size in (1, 8)}
    assert float(sizes[1]["ratios"]["replaced_fraction"][0]) > 0
    assert_close(sizes[8], sizes[1])


def test_the_samples_of_a_step_depend_on_its_key(params, batch):
    learner = electra().learner
    weights = learner.weights(batch)
    loss = jax.jit(lambda key: learner.loss(params, batch, weights, key=key, train=True)[1]["ratios"])
    first, again, other = (float(loss(jax.random.key(k))["discriminator_loss"][0]) for k in (0, 0, 1))
    assert first == again != other


class Stub:
    """Replaces both Transformers: records its arguments and returns zeros."""

    def __init__(self):
        self.batches, self.keys = [], []

    def hidden(self, batch, *, dropout_key):
        self.batches.append(batch)
        self.keys.append(dropout_key)
        return jnp.zeros((*batch["encoder_input_tokens"].shape, 4))

    def logits(self, hidden):
        return jnp.zeros((*hidden.shape[:-1], 10))


def test_a_row_by_hand(monkeypatch):
    """[CLS] a b c [SEP], a and c scored; the generator's samples are x and c. One of the five tokens is replaced."""
    cls, a, b, c, sep, mask, x = range(1, 8)
    stub, module = Stub(), "learners.electra"
    monkeypatch.setattr(f"{module}.bind", lambda config, params: stub)
    monkeypatch.setattr(f"{module}.bind_module", lambda *_, params: lambda hidden: jnp.full((1, 6), math.log(3)))
    monkeypatch.setattr(f"{module}.scored_positions", lambda weights, num_positions: jnp.asarray([[1, 3, 0]]))
    monkeypatch.setattr(f"{module}.sample_tokens", lambda logits, keys, temperature: jnp.asarray([[x, c, b]]))
    row = {
        "encoder_input_tokens": [cls, mask, b, c, sep, 0],  # c is kept
        "encoder_target_tokens": [cls, a, b, c, sep, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 1, 0],
        "encoder_positions": [0, 1, 2, 3, 4, 0],
        "encoder_loss_weights": [0.0, 1, 0, 1, 0, 0],
        "example_source": [0] * 6,
    }
    batch = {name: jnp.asarray([values]) for name, values in row.items()}
    learner = electra(model__dropout_rate=0.1).learner
    params = {"transformer": {}, "generator": {}, "discriminator_head": {}}
    weights = learner.weights(batch)
    assert {name: float(weight) for name, weight in weights.items()} == {"generator": 2, "discriminator": 5}

    @jax.jit
    def run(batch):
        loss, sums = learner.loss(params, batch, weights, key=jax.random.key(0), train=True)
        return loss, sums, [batch["encoder_input_tokens"] for batch in stub.batches], stub.keys

    loss, sums, inputs, keys = run(batch)
    assert [tokens.tolist() for tokens in inputs] == [[row["encoder_input_tokens"]], [[cls, x, b, c, sep, 0]]]
    assert float(sums["loss_sum"]) == pytest.approx(2 * math.log(10))
    # Every token is predicted as replaced with probability 3/4, and one of the five is replaced.
    discriminator = -(math.log(3 / 4) + 4 * math.log(1 / 4))
    ratios = {name: tuple(float(value) for value in pair) for name, pair in sums["ratios"].items()}
    assert ratios.pop("discriminator_loss") == pytest.approx((discriminator, 5))
    assert ratios == {
        "discriminator_accuracy": (1, 5),
        "discriminator_precision": (1, 5),
        "discriminator_recall": (1, 1),
        "replaced_fraction": (1, 5),
    }
    assert float(loss) == pytest.approx(math.log(10) + 50 * discriminator / 5)

    first, second = (np.asarray(jax.random.key_data(key)) for key in keys)
    assert (first != second).any()
    jax.eval_shape(lambda: learner.loss(params, batch, weights, key=jax.random.key(0), train=False))
    assert stub.keys[2:] == [None, None]


def shape(name, **changes):
    fields = get_config().model.to_dict() | SHAPES[name] | {"vocab_size": 384, "max_length": 16} | changes
    return ModelConfig(**fields, dtype="float32")


def test_the_references_generators():
    sizes = lambda config: (config.d_model, config.num_heads, config.d_ff, config.num_layers, config.embedding_width)  # noqa: E731
    assert sizes(generator_config(shape("small"), 0.25)) == (64, 1, 256, 12, 128)
    assert sizes(generator_config(shape("base"), 1 / 3)) == (256, 4, 1024, 12, 768)
    assert sizes(generator_config(shape("base"), 0.33333)) == (256, 4, 1024, 12, 768)
    assert sizes(generator_config(shape("large"), 0.25)) == (256, 4, 1024, 24, 1024)
    assert generator_config(shape("small"), 1.0) == dataclasses.replace(shape("small"), embedding_size=128)
    assert sizes(generator_config(shape("base"), 1.0, 0.5)) == (768, 12, 3072, 6, 768)  # DeBERTaV3's


def test_a_generator_of_half_the_depth_has_half_the_layers():
    learner = electra(objective__generator_layers=0.5, model__num_layers=4).learner
    params = learner.init_params(jax.random.key(0))
    kernels = (params[model]["encoder"]["layers"]["mlp"]["wo"]["kernel"] for model in ("transformer", "generator"))
    assert [len(kernel) for kernel in kernels] == [4, 2]
    with pytest.raises(ConfigError, match=r"generator_layers=0.3 of model.num_layers=4 is 1.2, .*: 0.25 would"):
        electra(objective__generator_layers=0.3, model__num_layers=4)
    complete = dict(parameterization="complete_p", initializer="t5", norm_position="pre", tie_embeddings=False)
    with pytest.raises(ConfigError, match=r"generator_layers=0.5 must be 1.0 with model.parameterization='complete_p'"):
        generator_config(shape("base", **complete, prediction_head="linear"), 1.0, 0.5)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 0.3, r"objective.generator_size=0.3 of model.d_model=256 is 76.8, which is not a whole .*: 0.25 would"),
        ({}, 0.125, r"objective.generator_size=0.125 of model.num_heads=4 is 0.5, which is not .*: 0.25 would"),
        ({"prediction_head": "linear", "embedding_size": 0}, 0.5, r"generator, model.embedding_size=256 differs"),
    ],
)
def test_sizes_that_are_not_whole_are_refused_with_one_that_is(changes, size, message):
    with pytest.raises(ConfigError, match=message) as error:
        generator_config(shape("small", **changes), size)
    assert len(str(error.value).splitlines()) == 1


TABLES = ("token_embedder", "position_embedder")


@functools.cache
def initial(sharing):
    """The learner, its initial parameters, and a function of parameters and a batch: the loss, Sums and gradients."""
    learner = electra(objective__embedding_sharing=sharing).learner

    def loss(params, batch, weights):
        return learner.loss(params, batch, weights, key=jax.random.key(1), train=False)

    return learner, learner.init_params(jax.random.key(0)), jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_disentangled_embeddings_begin_as_shared_ones_bit_for_bit(batch):
    shared, params, loss = initial("shared")
    (expected, sums), _ = loss(params, batch, shared.weights(batch))
    learner, params, loss = initial("gdes")
    assert largest([params["transformer"][name] for name in TABLES]) == 0
    (found, found_sums), _ = loss(params, batch, learner.weights(batch))
    jax.tree.map(np.testing.assert_array_equal, (found, found_sums), (expected, sums))


@pytest.mark.parametrize("sharing", ["gdes", "none"])
def test_the_discriminators_loss_has_no_gradient_for_the_generators_own_embeddings(batch, sharing):
    learner, params, loss = initial(sharing)
    assert set(SHARED) <= params["generator"].keys() & params["transformer"].keys()
    weights = learner.weights(batch)
    _, discriminators = loss(params, batch, weights | {"generator": OFF})
    assert largest(discriminators["generator"]) == 0
    assert min(largest(discriminators["transformer"][name]) for name in SHARED) > 1e-5
    _, generators = loss(params, batch, weights | {"discriminator": OFF})
    assert min(largest(generators["generator"][name]) for name in SHARED) > 1e-5
    assert largest(generators["transformer"]) == 0


def test_disentangled_tables_are_the_sum_of_the_generators_and_the_difference(batch):
    """Where the generator's table moves, the discriminator's moves with it."""
    learner, params, _ = initial("gdes")
    difference = np.random.default_rng(0).normal(size=params["transformer"]["token_embedder"]["embedding"].shape)
    params = jax.tree.map(jnp.asarray, params)
    params["transformer"]["token_embedder"]["embedding"] = jnp.asarray(difference, jnp.float32)
    table = params["generator"]["token_embedder"]["embedding"]
    merged = learner.discriminator_params(params)
    np.testing.assert_array_equal(merged["token_embedder"]["embedding"], table + jnp.asarray(difference, jnp.float32))
    for name in ("encoder", "embedding_norm"):
        jax.tree.map(np.testing.assert_array_equal, merged[name], params["transformer"][name])
    jax.tree.map(np.testing.assert_array_equal, learner.language_model(params)[1]["token_embedder"]["embedding"], table)
    whole = learner.transformer(params)
    again = learner.replace_transformer(params, whole)
    jax.tree.map(np.testing.assert_array_equal, learner.discriminator_params(again), merged)
    assert largest([again["transformer"][name] for name in TABLES]) == 0


def test_without_sharing_the_models_begin_with_tables_of_their_own():
    _, params, _ = initial("none")
    tables = [params[entry]["token_embedder"]["embedding"] for entry in ("generator", "transformer")]
    assert np.abs(tables[0] - tables[1]).max() > 1e-3
