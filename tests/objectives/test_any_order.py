"""Any-order language modeling: rows by hand, orders, leaks, the any-order bound by enumeration, and runs."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.batch import check_batch
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from models.parameters import leaf_name
from models.transformer import bind
from objectives import CLM, BlockDiffusion, MaskedDiffusion, denoisers_of
from objectives.algebra.sequences import Sequences
from objectives.any_order import AnyOrder
from objectives.objective import InputsTargets, RowShape
from objectives.rows import layout
from run.compiled_run import make_run
from run.evaluation import evaluate
from run.step import init_state, make_eval_step, make_train_step
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.objectives.helpers import make_collator, random_keys, random_windows, vocab
from tests.objectives.test_masked_diffusion import SUBSETS, N, expected_loss, random_nats
from tests.table import random_windows as windows_of
from tests.table import reads_corpus, small_config, small_experiment

VOCAB = vocab()
SHUFFLED = AnyOrder(shuffled_share=1.0)
POSITIONS = ("learned", "rope")


def rows_in_order(texts, orders, row_ids=None, length=None, inputs=0) -> dict[str, np.ndarray]:
    """Decoder-only rows of `texts`, lists of tokens, read in `orders`; the first `inputs` tokens are not predicted."""
    lengths = np.array([len(text) for text in texts])
    read, places = np.zeros((2, len(texts), lengths.max()), np.int32)
    for e, (text, order) in enumerate(zip(texts, orders, strict=True)):
        read[e, : len(text)], places[e, : len(text)] = np.asarray(text)[list(order)], order
    given, targets = np.full(len(texts), inputs), Sequences(read[:, inputs:], lengths - inputs)
    examples = InputsTargets(Sequences(read[:, :inputs], given), targets, places=places)
    row_ids = np.arange(len(texts)) if row_ids is None else np.asarray(row_ids)
    shape = RowShape("decoder_only", length or int(lengths.max()), 0, 1)
    num_rows, denoiser_ids = int(row_ids.max()) + 1, np.zeros(len(texts), np.int32)
    batch = layout.decoder_only(examples, row_ids, denoiser_ids, num_rows, shape, VOCAB, bidirectional_inputs=False)
    check_batch(batch, "decoder_only")
    return batch


# Rows


def test_a_packed_row_by_hand():
    """10 11 12 read as 12 10 11, then 20 21 read as 21 20."""
    batch = rows_in_order([[10, 11, 12], [20, 21]], [(2, 0, 1), (1, 0)], row_ids=[0, 0], length=6)
    expected = {
        "decoder_target_tokens": [12, 10, 11, 21, 20, 0],
        "decoder_input_tokens": [0, 12, 10, 0, 21, 0],
        "decoder_segment_ids": [1, 1, 1, 2, 2, 0],
        "decoder_positions": [0, 3, 1, 0, 2, 0],
        "decoder_target_positions": [2, 0, 1, 1, 0, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 0],
    }
    assert {name: batch[name][0].tolist() for name in expected} == expected
    assert not batch["decoder_bidirectional_mask"].any()


def test_the_last_tokens_of_an_order_are_predicted_and_the_others_are_inputs():
    batch = rows_in_order([[10, 11, 12, 13]], [(3, 1, 0, 2)], inputs=3)
    assert batch["decoder_loss_weights"].tolist() == [[0, 0, 0, 1]]
    assert batch["decoder_input_tokens"].tolist() == [[0, 13, 11, 10]]
    assert batch["decoder_positions"].tolist() == [[0, 4, 2, 1]]
    assert batch["decoder_target_positions"].tolist() == [[3, 1, 0, 2]]


def test_only_a_decoder_reads_another_order():
    examples = InputsTargets(*([Sequences(np.ones((1, 2), np.int32), np.array([2]))] * 2), places=np.zeros((1, 4)))
    with pytest.raises(AssertionError, match="only a decoder-only model"):
        layout.encoder_decoder(examples, *[np.zeros(1, int)] * 2, 1, RowShape("encoder_decoder", 4, 4, 1), VOCAB)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 2**40), st.sampled_from([1.0, 0.5, 1 / 6]))
def test_each_token_is_once_at_its_place_and_the_share_is_predicted(lengths, seed, share):
    objective, lengths = dataclasses.replace(SHUFFLED, predicted_share=share), np.array(lengths)
    tokens = (3 + np.arange(12) + 20 * np.arange(len(lengths))[:, None]).astype(np.int32)
    inputs, targets, _, places, *_ = objective.corrupt(tokens, lengths, random_keys(len(lengths), seed), VOCAB)
    for e, n in enumerate(lengths):
        read = [*inputs.tokens[e, : inputs.lengths[e]], *targets.tokens[e, : targets.lengths[e]]]
        assert sorted(places[e, :n]) == list(range(n)) and read == tokens[e, places[e, :n]].tolist()
        assert targets.lengths[e] == max(round(float(n * share)), 1)


def test_all_orders_are_equally_likely_and_the_share_of_texts_is_shuffled():
    """24 orders of four tokens, 12,000 texts: a chi-square statistic of 23 degrees of freedom, at most 60."""
    found = SHUFFLED.places(np.full(12_000, 4), random_keys(12_000), 4)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24 and ((counts - 500) ** 2 / 500).sum() < 60
    some = AnyOrder(shuffled_share=0.3).places(np.full(4000, 30), random_keys(4000), 40)
    is_shuffled = (some != np.arange(40)).any(axis=1)
    assert abs(is_shuffled.mean() - 0.3) < 4 * np.sqrt(0.21 / 4000)
    turns = (some[is_shuffled] == 0).argmax(axis=1)  # of the first token, uniform whatever has chosen the text
    assert abs(turns.mean() - 14.5) < 4 * 8.66 / np.sqrt(len(turns))
    assert (some[:, 30:] == np.arange(30, 40)).all()


def test_the_curriculum_shuffles_more_texts_from_step_to_step():
    fields = small_config("sigma_gpt", "decoder_only", data__documents="join", train__steps=100)
    fields["objective"] |= {"begin_step": 0, "end_step": 20}
    collate = make_experiment(fields).collate
    windows = random_windows(np.random.default_rng(0), np.full(1200, 40))
    steps = np.repeat([0, 5, 10, 20, 99], 240)
    batch = collate(windows._replace(row_steps=steps), 1200)
    shuffled = (batch["decoder_target_positions"] != np.arange(40)).any(axis=1)
    for step, share in zip((0, 5, 10, 20, 99), (0, 0.25, 0.5, 1, 1), strict=True):
        assert abs(shuffled[steps == step].mean() - share) <= 4 * np.sqrt(share * (1 - share) / 240), step


def test_rows_of_a_mixture_keep_their_order():
    tables = {"a": SHUFFLED, "b": CLM(), "c": AnyOrder(shuffled_share=0.0)}
    denoisers = tuple(denoisers_of(objective, name)[0] for name, objective in tables.items())
    shape = RowShape("decoder_only", 9, 9, 1)
    collate = make_collator(denoisers, shape, VOCAB, documents="join", bidirectional_inputs=False)
    windows = random_windows(np.random.default_rng(0), [6, 6, 6], denoiser_ids=np.arange(3, dtype=np.int32))
    batch = collate(windows, 3)
    check_batch(batch, "decoder_only")
    places = batch["decoder_target_positions"][0, :6]
    assert sorted(places) == list(range(6)) and places.tolist() != list(range(6))
    np.testing.assert_array_equal(batch["decoder_target_tokens"][0, :6], windows.tokens[0, places])
    np.testing.assert_array_equal(batch["decoder_positions"][0, 1:6], places[:-1] + 1)
    in_order = [[*range(6), 0, 0, 0]] * 2
    for name in ("decoder_positions", "decoder_target_positions"):
        assert batch[name][1:].tolist() == in_order


@pytest.mark.parametrize("other", [MaskedDiffusion("next"), BlockDiffusion(2, "same"), CLM()])
def test_batches_of_a_mixture_have_the_same_fields_whatever_their_rows_are(other):
    denoisers = (*denoisers_of(SHUFFLED, "a"), *denoisers_of(other, "b"))
    shape = RowShape("decoder_only", 12, 12, 1)
    collate = make_collator(denoisers, shape, VOCAB, documents="join", bidirectional_inputs=False)
    windows = random_windows(np.random.default_rng(0), [6, 5, 6])
    batches = [collate(windows._replace(denoiser_ids=np.array(ids)), 3) for ids in ([0, 0, 0], [1, 1, 1], [0, 1, 0])]
    for batch in batches:
        check_batch(batch, "decoder_only")
        assert batch.keys() == batches[0].keys()
    in_order = batches[1]
    np.testing.assert_array_equal(in_order["decoder_target_positions"], in_order["decoder_positions"])
    for row, batch in enumerate((batches[0], batches[1], batches[0])):
        for name in ("decoder_positions", "decoder_target_positions", "decoder_input_tokens", "decoder_loss_weights"):
            np.testing.assert_array_equal(batches[2][name][row], batch[name][row], err_msg=name)


# The model


def zeroed(params):
    """The parameters with a second position encoding of 0."""

    def value(path, leaf):
        return np.zeros_like(leaf) if "target_positions" in leaf_name(path) else leaf

    return jax.tree_util.tree_map_with_path(value, params)


@pytest.mark.parametrize("positions", POSITIONS)
def test_from_left_to_right_batches_losses_and_logits_are_those_of_clm_bit_for_bit(positions):
    """Where the second encoding is 0; and in a model without it, which does not read the field."""
    fields = small_config("sigma_gpt", "decoder_only", data__documents="pack", objective=vars(SHUFFLED))
    fields["objective"] = {"name": "any_order", "shuffled_share": 0.0, "predicted_share": 1.0}
    fields["model"] |= {"positions": positions, "max_length": 41}
    experiment = make_experiment(fields)
    plain = fields | {"objective": {"name": "clm"}, "model": fields["model"] | {"target_positions": False}}
    clm = make_experiment(plain)
    windows = windows_of(clm, 8, same_keys=False)
    windows = windows._replace(lengths=np.array([40, 12, 1, 40, 7, 3, 33, 40]))
    batch, expected = experiment.collate(windows, 8), clm.collate(windows, 8)
    np.testing.assert_array_equal(batch.pop("decoder_target_positions"), expected["decoder_positions"])
    assert batch.keys() == expected.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)
    batch["decoder_target_positions"] = expected["decoder_positions"]

    params = params_of(experiment.learner)
    without = {name: leaf for name, leaf in params["transformer"].items() if name != "target_positions"}
    losses = []
    for learner, of_model, rows in (
        (experiment.learner, zeroed(params), batch),
        (clm.learner, {"transformer": without}, batch),
        (clm.learner, {"transformer": without}, expected),
    ):
        step = jax.jit(make_eval_step(learner, bytes_of_token=None, unk=2))
        losses.append(np.asarray(step(of_model, rows)["loss_sum"]))
        losses.append(np.asarray(tiny.run(learner.model, of_model["transformer"], rows)))
    np.testing.assert_array_equal(losses[0], losses[4])
    np.testing.assert_array_equal(losses[2], losses[4])
    np.testing.assert_array_equal(losses[1], losses[5])
    np.testing.assert_array_equal(losses[3], losses[5])
    other = np.asarray(tiny.run(experiment.model, params["transformer"], batch))
    assert (other != losses[5]).any(axis=-1)[batch["decoder_segment_ids"] > 0].all()


def model_of(positions, **changes):
    fields = {"architecture": "decoder_only", "positions": positions, "target_positions": True, "has_prefix": False}
    return tiny.config(**(fields | changes))


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_prediction_depends_on_the_tokens_before_it_in_the_order_and_on_its_place_alone(positions):
    config, order = model_of(positions), np.array([4, 1, 6, 0, 3, 2, 5])
    run = functools.partial(tiny.run, config, tiny.params(config))
    text = 10 + np.arange(7)
    before = np.asarray(run(rows_in_order([text], [order])))[0]
    for k in range(7):  # the token that is read at k + 1 and predicted at k
        changed = text.copy()
        changed[order[k]] = 40
        differs = (np.asarray(run(rows_in_order([changed], [order])))[0] != before).any(axis=-1)
        assert differs.tolist() == [slot > k for slot in range(7)]
        batch = rows_in_order([text], [order])
        batch["decoder_target_positions"][0, k] = 7  # another target
        differs = (np.asarray(run(batch))[0] != before).any(axis=-1)
        assert differs.tolist() == [slot >= k for slot in range(7)]
        swapped = order.copy()  # the tokens after k in another order: k and what is before stay
        swapped[k + 1 :] = swapped[k + 1 :][::-1]
        of_swapped = np.asarray(run(rows_in_order([text], [swapped])))[0]
        np.testing.assert_array_equal(of_swapped[: k + 1], before[: k + 1])


@pytest.mark.parametrize("positions", POSITIONS)
def test_texts_of_a_packed_row_do_not_see_each_other(positions):
    config = model_of(positions)
    run = functools.partial(tiny.run, config, tiny.params(config))
    texts, orders = [[10, 11, 12], [20, 21, 22, 23]], [(2, 0, 1), (3, 0, 2, 1)]
    packed = np.asarray(run(rows_in_order(texts, orders, row_ids=[0, 0], length=8)))[0]
    alone = np.asarray(run(rows_in_order(texts, orders, length=8)))
    np.testing.assert_allclose(packed[:3], alone[0, :3], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(packed[3:7], alone[1, :4], rtol=1e-4, atol=1e-4)


def test_shapes_and_refused_models():
    shapes = tiny.shapes(model_of("learned"))
    assert shapes["target_positions/position_embedder/embedding"] == (12, 16)
    shapes = tiny.shapes(model_of("rope"))
    assert shapes["target_positions/offset_projection/kernel"] == (6, 16)
    assert not any("target" in name for name in tiny.shapes(model_of("rope", target_positions=False)))
    for positions in ("relative", "none"):
        with pytest.raises(ValueError, match=f"positions='{positions}' must be 'learned' or 'rope' for target"):
            model_of(positions)


def test_the_offset_is_encoded_by_hand():
    """Angles of the offsets 0, 3 and -1: cosines, then sines, of offset * theta^(-2i / 6)."""
    config = model_of("rope", has_prefix=False)
    params = tiny.params(config)
    kernel = params["target_positions"]["offset_projection"]["kernel"]
    positions, targets = np.array([[2, 1, 5]]), np.array([[2, 4, 4]])
    angles = np.array([0, 3, -1])[:, None] * 100.0 ** (-np.arange(0, 6, 2) / 6)
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) @ kernel

    def embed(positions, targets):
        model = bind(config, params)
        plain = model.token_embedder(np.zeros((1, 3), np.int32))
        whole = model.embed(np.zeros((1, 3), np.int32), positions, target_positions_BxL=targets, stack="decoder")
        return whole - plain

    np.testing.assert_allclose(jax.jit(embed)(positions, targets)[0], expected, rtol=1e-4, atol=1e-5)


# The bound


def nats_by_prefixes(config, params, text, order):
    """The nats of each token given those before it in `order`, each of a row that ends where the token is predicted."""
    nats = []
    for k in range(len(order)):
        rows = rows_in_order([text], [order], length=len(order))
        cut = {name: array[:, : k + 1] for name, array in rows.items()}
        log_probabilities = jax.nn.log_softmax(tiny.run(config, params, cut)[0, k])
        nats.append(-float(log_probabilities[text[order[k]]]))
    return np.array(nats)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_mean_loss_over_all_orders_is_the_any_order_negative_log_likelihood(positions):
    fields = small_config("sigma_gpt:shuffled", "decoder_only", data__inputs_length=4, loss__z_loss=0.0)
    fields["model"] |= {"positions": positions}
    learner = make_experiment(fields).learner
    params, text = params_of(learner), np.array([50, 60, 50])
    orders = list(itertools.permutations(range(3)))
    sums = jax.jit(make_eval_step(learner, bytes_of_token=None, unk=2))(
        params, rows_in_order([text] * 6, orders, length=4)
    )
    expected = [nats_by_prefixes(learner.model, params["transformer"], text, order).sum() for order in orders]
    assert float(sums["weight_sum"]) == 18
    assert float(sums["loss_sum"]) == pytest.approx(sum(expected), rel=1e-5)
    assert np.std(expected) > 0.01  # the orders differ: their mean is no likelihood of one of them


@pytest.mark.parametrize("seed", range(3))
def test_conditionals_of_sets_give_the_bound_of_masked_diffusion(seed):
    """A row of each order predicts each place from the places that its positions say were read."""
    nats, orders = random_nats(seed), list(itertools.permutations(range(N)))
    batch = rows_in_order([np.arange(10, 10 + N)] * len(orders), orders)
    total = 0.0
    for read, target in zip(batch["decoder_positions"], batch["decoder_target_positions"], strict=True):
        hidden = [frozenset(range(N)) - {*(read[1 : k + 1] - 1).tolist()} for k in range(N)]
        assert set(hidden) <= set(SUBSETS)
        total += sum(nats[hidden[k]][target[k]] for k in range(N))
    assert total / len(orders) == pytest.approx(expected_loss(nats), abs=1e-9)


# Runs


def test_accumulation_gives_the_gradients_of_the_whole_batch():
    experiment = small_experiment("sigma_gpt:xlnet", "decoder_only")
    windows = windows_of(experiment, 8, same_keys=False)
    batch = experiment.collate(windows._replace(lengths=np.array([40, 12, 2, 39, 7, 3, 33, 5])), 8)
    state = init_state(experiment.learner, optax.sgd(1.0), seed=0)
    updated = []
    for accumulation in (1, 4):
        step = make_train_step(experiment.learner, optax.sgd(1.0), grad_accum_steps=accumulation, seed=0)
        updated.append(jax.jit(step)(state, batch)[0].params)
    whole, parts = updated
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), parts, whole)
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), whole, state.params)
    assert min(jax.tree.leaves(moved["transformer"]["target_positions"])) > 0


def fields_on(corpus, name, **overrides):
    return small_config(name, "decoder_only", **(reads_corpus(name, corpus) | overrides))


def test_evaluations_read_in_a_random_order_and_their_metric_says_so(corpus):
    def metrics(name, **changes):
        fields = fields_on(corpus, name)
        fields["objective"] |= changes
        run = make_run(make_experiment(fields), show_progress=False)
        return run, evaluate(run, params_of(run.experiment.learner))

    for changes in ({}, {"final_shuffled_share": 0.2}):  # all texts, whatever the last share is
        run, found = metrics("sigma_gpt", **changes)
        batch = run.heldout.batches[0]
        longest = (batch["decoder_segment_ids"] > 0).sum(axis=1) > 8
        assert (batch["decoder_target_positions"] != batch["decoder_positions"]).any(axis=1)[longest].all()
        assert "any_order_bits_per_byte" in found and "bits_per_byte" not in found
    shares = dict(shuffled_share=0.0)
    run, found = metrics("sigma_gpt:shuffled", **shares)
    batch = run.heldout.batches[0]
    np.testing.assert_array_equal(batch["decoder_target_positions"], batch["decoder_positions"])
    assert "bits_per_byte" in found and "any_order_bits_per_byte" not in found
    _, found = metrics("sigma_gpt:xlnet")
    assert not any(name.endswith("bits_per_byte") for name in found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"target_positions": False}},
            r"^objective \(AnyOrder\) reads texts in another order: set model.tar",
        ),
        (
            {"model": {"positions": "relative"}},
            "^model.positions='relative' must be 'learned' or 'rope' for target_positions=True$",
        ),
        ({"model": {"positions": "learned", "max_length": 40}}, "=40 must be at most model.max_length=40 - 1 with"),
        ({"model": {"architecture": "encoder_only"}, "objective": {"name": "clm"}}, "does not go with"),
        (
            {"objective": {"name": "any_order", "shuffled_share": 1.5, "predicted_share": 1.0}},
            r"shuffled_share=1.5 must be in \[0, 1\]",
        ),
        ({"objective": {"name": "any_order", "shuffled_share": 1.0, "predicted_share": 0.0}}, r"must be in \(0, 1\]"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(changes, message):
    fields = small_config("sigma_gpt:shuffled", "decoder_only")
    for section, values in changes.items():
        fields[section] = values if section == "objective" else fields[section] | values
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(fields)
    assert "\n" not in str(error.value)


def test_the_predicted_share_is_constant():
    """It would change the lengths of inputs and targets."""
    fields = small_config("sigma_gpt", "decoder_only")
    fields["objective"]["final_predicted_share"] = 0.5
    with pytest.raises(ConfigError, match=r"final_predicted_share.* would change the lengths of examples"):
        make_experiment(fields)


def test_inputs_that_see_each_other_are_refused_because_prompts_are_read_in_their_order():
    fields = small_config("sigma_gpt:xlnet", "decoder_only", data__bidirectional_inputs=True)
    with pytest.raises(ConfigError, match=r"reads its inputs in their order: set data\.bidirectional_inputs=False"):
        make_experiment(fields)


@pytest.mark.parametrize("step", [math.nan, math.inf])
def test_steps_that_are_no_numbers_are_one_line(step):
    fields = small_config("sigma_gpt", "decoder_only")
    fields["objective"]["end_step"] = step
    with pytest.raises(ConfigError, match=r"objective\.end_step"):
        make_experiment(fields)


def test_a_model_with_a_second_position_refuses_other_stacks():
    fields = small_config("mlm", "encoder_only")
    fields["model"]["target_positions"] = True
    with pytest.raises(ConfigError, match=r"^model\.target_positions=True does not go with .*'encoder_only': use"):
        make_experiment(fields)
