"""Block diffusion: rows by hand, leaks, the limits in nats, and the bound by enumeration over every mask."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import block_diffusion
from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from experiment.experiment import make_experiment
from generate.fill_masks import mask_probabilities
from models.attention import attention_mask
from models.kernels import choose_attention
from objectives import BlockDiffusion, denoisers_of
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked, RowShape
from objectives.rows import layout
from run.compiled_run import make_run
from run.evaluation import evaluate
from tests.learners.row_learners import params_of
from tests.models import tiny
from tests.objectives.helpers import make_collator, random_keys, vocab
from tests.objectives.test_masked_diffusion import conditional_nats
from tests.table import random_windows, reads_corpus, small_config, small_experiment

VOCAB = vocab()
M, START, EOS = VOCAB.mask, VOCAB.decoder_start, VOCAB.eos
ARCHITECTURES = ["decoder_only", "encoder_only"]
ALIGNMENTS = ["same", "next"]


def place(examples, architecture, row_ids, num_rows, length):
    """The batch of Masked examples."""
    where = np.asarray(row_ids), np.zeros(len(row_ids), np.int32), num_rows, RowShape(architecture, length, 0, 1), VOCAB
    return getattr(layout, architecture)(examples, *where)


def masked(texts, hidden, block_length, alignment, weights=None):
    """Masked examples of `texts`, int [E, W] with 0 after their ends, of which `hidden` is hidden."""
    texts, hidden = np.asarray(texts, np.int32), np.asarray(hidden, bool)
    lengths = (texts > 0).sum(axis=1)
    blocks = np.tile(1 + np.arange(texts.shape[1], dtype=np.int32) // block_length, (len(texts), 1))
    return Masked(
        Sequences(np.where(hidden, M, texts), lengths),
        texts,
        hidden,
        weights=None if weights is None else np.asarray(weights, np.float32),
        shifted=np.full(len(texts), alignment == "next"),
        blocks=blocks,
    )


# Rows


def two_documents(alignment, architecture):
    """Blocks of 2. 10 11 12 13 14 with 10, 13 and 14 hidden, then 20 21 with both hidden."""
    hidden = [[1, 0, 0, 1, 1], [1, 1, 0, 0, 0]]
    weights = [[2, 0, 0, 2, 1], [1, 1, 0, 0, 0]]
    examples = masked([[10, 11, 12, 13, 14], [20, 21, 0, 0, 0]], hidden, 2, alignment, weights)
    batch = place(examples, architecture, [0, 0], 1, 16)
    check_batch(batch, architecture)
    side = architecture.partition("_")[0]
    return {name.removeprefix(f"{side}_"): array[0].tolist() for name, array in batch.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_of_two_documents_by_hand(architecture):
    row = two_documents("same", architecture)
    assert row["input_tokens"] == [M, 11, 12, M, M, 10, 11, 12, 13, 14, M, M, 20, 21, 0, 0]
    assert row["target_tokens"] == [10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 20, 21, 0, 0, 0, 0]
    assert row["loss_weights"] == [2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert row["segment_ids"] == [1] * 10 + [2] * 4 + [0, 0]
    assert row["positions"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 0, 1, 0, 0]
    assert row["attention_order"] == [-1, -1, -2, -2, -3, 1, 1, 2, 2, 3, -1, -1, 1, 1, 0, 0]
    assert row.get("bidirectional_mask", [1] * 14 + [0, 0]) == [1] * 14 + [0, 0]
    shifted = two_documents("next", architecture)
    #                      block 1  | block 2 reads 11 | 13 of block 3 is read clean
    first = [START, M, 11, 12, 13, START, 10, 11, 12, 13]
    assert shifted.pop("input_tokens") == [*first, START, M, START, 20, 0, 0]
    assert shifted == {name: values for name, values in row.items() if name != "input_tokens"}


def test_the_mask_of_a_text_of_five_tokens_by_hand():
    """Blocks of 2: noisy blocks 11223, then clean blocks 11223."""
    row = two_documents("same", "decoder_only")
    fields = {name: np.array([row[name]]) for name in ("segment_ids", "attention_order", "bidirectional_mask")}
    found = attention_mask(
        fields["segment_ids"],
        fields["segment_ids"],
        causal=True,
        bidirectional_mask=fields["bidirectional_mask"],
        order_BxL=fields["attention_order"],
    )
    expected = [
        "11000 00000",
        "11000 00000",
        "00110 11000",
        "00110 11000",
        "00001 11110",
        "00000 11000",
        "00000 11000",
        "00000 11110",
        "00000 11110",
        "00000 11111",
    ]
    assert np.asarray(found)[0, 0, :10].astype(int).tolist() == [
        [int(cell) for cell in line.replace(" ", "")] + [0] * 6 for line in expected
    ]
    assert not np.asarray(found)[0, 0, 10:14, :10].any()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 10), st.sampled_from(ALIGNMENTS))
def test_rows_by_their_definition(lengths, block_length, alignment):
    """Of random texts packed into one row, with random tokens hidden."""
    generator = np.random.default_rng(sum(lengths))
    width = max(lengths)
    texts = np.where(
        np.arange(width) < np.array(lengths)[:, None], generator.integers(10, 90, (len(lengths), width)), 0
    )
    examples = masked(texts, (generator.random(texts.shape) < 0.5) & (texts > 0), block_length, alignment)
    batch = place(examples, "decoder_only", [0] * len(lengths), 1, 73)  # the longest, and one more; of one shape
    check_batch(batch, "decoder_only")
    facts = []  # of each position: its text, whether it is clean, its block, its position, what it reads
    for e, length in enumerate(lengths):
        noisy, clean = examples.inputs.tokens[e], texts[e]
        for is_clean, i in itertools.product((False, True), range(length)):
            reads = (clean if is_clean else noisy)[i]
            if alignment == "next":
                within = is_clean or i % block_length
                reads = START if i == 0 else (clean if is_clean or not within else noisy)[i - 1]
            facts.append((e, is_clean, i // block_length, i, reads))
    order, segments = batch["decoder_attention_order"], batch["decoder_segment_ids"]
    visible = np.asarray(attention_mask(segments, segments, causal=False, order_BxL=order))[0, 0]
    for q, (e, is_clean, block, i, reads) in enumerate(facts):
        assert (batch["decoder_input_tokens"][0, q], batch["decoder_positions"][0, q]) == (reads, i)
        for k, (of_key, key_is_clean, key_block, _, _) in enumerate(facts):
            own = is_clean == key_is_clean and block == key_block
            assert visible[q, k] == (e == of_key and (own or (key_is_clean and key_block < block)))


def test_a_mixture_with_examples_without_blocks_has_rows_of_each_kind():
    """Each row is the same, with the same fields, in a batch of examples of its kind. MNTP's have no weights."""
    rows = {name: dict(weight=1.0, mode="", **fields) for name, fields in {
        "clm": dict(name="clm"),
        "mntp": dict(name="mntp", mask_rate=0.5, mask_token_rate=1.0, random_token_rate=0.0, weighting="token"),
        "blocks": block_diffusion.VARIANTS["next"],
    }.items()}  # fmt: skip
    fields = small_config("hybrid", "decoder_only")
    for kept in (list(rows), ["clm", "blocks"], ["mntp", "blocks"], ["blocks", "mntp"]):
        objective = fields["objective"] | {"denoisers": {name: rows[name] for name in kept}}
        experiment = make_experiment(fields | {"objective": objective})
        windows = random_windows(experiment, 6, same_keys=False)
        batch = experiment.collate(windows, 6)
        check_batch(batch, "decoder_only")
        for k, name in enumerate(kept):
            alone = windows.denoiser_ids == k
            has_copy = batch["decoder_attention_order"][alone] < 0
            assert has_copy.sum() == (20 * alone.sum() if name == "blocks" else 0)
            of_one = Windows(*(None if column is None else column[alone] for column in windows))
            of_one = of_one._replace(row_ids=np.arange(alone.sum()))
            found = experiment.collate(of_one, int(alone.sum()))
            assert found.keys() == batch.keys()
            for field, array in found.items():
                np.testing.assert_array_equal(array, batch[field][alone], err_msg=field)


# The model: leaks, and nats by other computations


@functools.cache
def model_of(alignment, architecture, **overrides):
    """A small experiment and random parameters, and log probabilities of batches: float64 [B, L, V]."""
    name = "block_diffusion:next" if alignment == "next" else "block_diffusion"
    experiment = small_experiment(name, architecture, **overrides)
    params = params_of(experiment.learner)
    logits = functools.partial(tiny.run, experiment.model)

    def log_probabilities(batch):
        found = np.asarray(logits(params, {k: v for k, v in batch.items() if "source" not in k}), np.float64)
        return (
            found
            - np.log(np.exp(found - found.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - found.max(-1, keepdims=True)
        )

    return experiment, log_probabilities


def nats(log_probabilities, batch, side):
    """float64 [B, L]: of each target."""
    return -np.take_along_axis(log_probabilities(batch), batch[f"{side}_target_tokens"][..., None], axis=-1)[..., 0]


TEXT = np.arange(40, 50)
HIDDEN = np.array([0, 1, 1, 1, 1, 0, 0, 1, 1, 0], bool)  # blocks of 4, 4 and 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_each_position_depends_on_what_it_may_read_and_on_nothing_else(alignment, architecture):
    """Over all pairs of 20 positions: each input is changed in a row of its own."""
    _, log_probabilities = model_of(alignment, architecture)
    side = architecture.partition("_")[0]
    batch = place(masked([TEXT] * 21, [HIDDEN] * 21, 4, alignment), architecture, range(21), 21, 20)
    changed = batch[f"{side}_input_tokens"]
    changed[np.arange(20), np.arange(20)] = 77
    found = log_probabilities(batch)
    depends = (found[:20] != found[20]).any(axis=-1).T  # [position, changed input]
    place_, block = np.arange(20), np.arange(20) % 10 // 4
    is_clean, key_is_clean = (place_ >= 10)[:, None], (place_ >= 10)[None]
    own = (is_clean == key_is_clean) & (block[:, None] == block)
    np.testing.assert_array_equal(depends, own | (key_is_clean & (block[None] < block[:, None])))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_token_changes_the_predictions_of_later_blocks_alone_and_as_shown_those_of_its_own(alignment, architecture):
    """Each token of the text is changed, as hidden and then as shown: its clean copy changes too."""
    _, log_probabilities = model_of(alignment, architecture)
    texts = np.tile(TEXT, (11, 1))
    texts[np.arange(10), np.arange(10)] = 77
    block = np.arange(10) // 4
    examples = masked(texts, np.tile(HIDDEN, (11, 1)), 4, alignment)
    same_inputs = examples._replace(
        inputs=examples.inputs._replace(tokens=np.tile(examples.inputs.tokens[10], (11, 1)))
    )
    later, own = block[:, None] > block, block[:, None] == block
    ends = np.array([False, False, False, True] * 2 + [False, True])  # not read within their blocks, where shifted
    read = ~HIDDEN & ~(ends & (alignment == "next"))
    for placed, expected in ((same_inputs, later), (examples, later | (own & read))):
        found = log_probabilities(place(placed, architecture, range(11), 11, 20))[:, :10]
        depends = (found[:10] != found[10]).any(axis=-1).T
        np.testing.assert_array_equal(depends, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_nats_are_those_of_rows_with_one_block_after_the_clean_text_before_it(alignment, architecture):
    """As a sampler reads: no second copy, and no negative order. Clean blocks see the blocks up to theirs."""
    _, log_probabilities = model_of(alignment, architecture)
    side, n = architecture.partition("_")[0], len(TEXT)
    found = nats(log_probabilities, place(masked([TEXT], [HIDDEN], 4, alignment), architecture, [0], 1, 2 * n), side)
    for block in range(3):
        begin, end = 4 * block, min(4 * block + 4, n)
        text, hidden = TEXT[:end], HIDDEN[:end] & (np.arange(end) >= begin)
        example = masked([text], [hidden], 4, alignment)
        example = example._replace(blocks=None, attention_order=example.blocks)
        alone = nats(log_probabilities, place(example, architecture, [0], 1, 2 * n), side)
        np.testing.assert_allclose(found[0, begin:end], alone[0, begin:end], rtol=1e-5)


def test_blocks_of_one_token_have_clms_nats_where_it_predicts():
    """alignment="next": each position reads what CLM's does, whatever is hidden; exactly CLM's loss of each window."""
    experiment, log_probabilities = model_of("next", "decoder_only")
    fields = experiment.config | {"objective": experiment.config["objective"] | {"block_length": 1}}
    blocks = make_experiment(fields)
    clm = small_experiment("clm", "decoder_only", data__inputs_length=20)
    windows = random_windows(blocks, 6, same_keys=False)
    windows = windows._replace(lengths=np.array([20, 1, 7, 20, 13, 2]))
    batch, of_clm = blocks.collate(windows, 6), clm.collate(windows, 6)
    np.testing.assert_array_equal(batch["decoder_loss_weights"][:, :20].sum(axis=1), windows.lengths)
    np.testing.assert_array_equal(batch["decoder_loss_weights"].sum(axis=1), windows.lengths)
    assert not (batch["decoder_input_tokens"] == blocks.vocab.mask).any()
    scored = of_clm["decoder_loss_weights"] > 0
    of_blocks = nats(log_probabilities, batch, "decoder")[batch["decoder_loss_weights"] > 0]
    np.testing.assert_allclose(of_blocks, nats(log_probabilities, of_clm, "decoder")[scored], rtol=1e-5)


def test_blocks_of_one_token_at_its_position_are_a_causal_model_that_reads_a_mask_last():
    """alignment="same": the nats of token i are those of a causal row of the tokens before i and a mask."""
    _, log_probabilities = model_of("same", "decoder_only")
    batch = place(masked([TEXT], [[True] * 10], 1, "same"), "decoder_only", [0], 1, 20)
    found = nats(log_probabilities, batch, "decoder")[0, :10]
    rows = np.where(np.arange(10) < np.arange(10)[:, None], TEXT, M).astype(np.int32)
    causal = {
        "decoder_input_tokens": rows,
        "decoder_segment_ids": (np.arange(10) <= np.arange(10)[:, None]).astype(np.int32),
        "decoder_positions": np.tile(np.arange(10, dtype=np.int32), (10, 1)),
        "decoder_bidirectional_mask": np.zeros((10, 10), bool),
    }
    alone = -log_probabilities(causal)[np.arange(10), np.arange(10), TEXT]
    np.testing.assert_allclose(found, alone, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_one_block_has_the_nats_of_masked_diffusion(alignment, architecture):
    """On the same draws: the examples without their blocks are those of masked diffusion."""
    _, log_probabilities = model_of(alignment, architecture)
    side, count, n = architecture.partition("_")[0], 8, 12
    tokens = np.random.default_rng(0).integers(10, 90, (count, n)).astype(np.int32)
    lengths = np.array([12, 12, 1, 5, 12, 7, 2, 12])
    objective = BlockDiffusion(n, alignment)
    examples = objective.corrupt(tokens, lengths, random_keys(count), VOCAB)
    batch = place(examples, architecture, range(count), count, 2 * n)
    diffusion = place(examples._replace(blocks=None), architecture, range(count), count, 2 * n)
    sums = [(nats(log_probabilities, b, side) * b[f"{side}_loss_weights"]).sum(axis=1) for b in (batch, diffusion)]
    np.testing.assert_allclose(*sums, rtol=1e-5)
    assert (sums[0] > 0).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_documents_have_the_nats_of_rows_of_their_own_where_they_are_packed(architecture):
    """In rows of 30 tokens of text and in rows of one document, with the same draws: blocks start with a document."""
    experiment, log_probabilities = model_of("next", architecture, data__inputs_length=60)
    side, lengths = architecture.partition("_")[0], np.array([7, 1, 13, 4, 5, 9, 21])
    windows = random_windows(experiment, 7, same_keys=False)._replace(lengths=lengths)
    sums = []
    for row_ids in (np.array([0, 0, 0, 0, 0, 1, 1]), np.arange(7)):
        batch = experiment.collate(windows._replace(row_ids=row_ids), row_ids[-1] + 1)
        weighted = nats(log_probabilities, batch, side) * batch[f"{side}_loss_weights"]
        segment = batch[f"{side}_segment_ids"]
        of_documents = [
            weighted[row][segment[row] == 1 + int((row_ids[:e] == row).sum())].sum() for e, row in enumerate(row_ids)
        ]
        sums.append(of_documents)
    np.testing.assert_allclose(*sums, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_masks_of_a_prompt_are_predicted_where_and_as_in_training(alignment, architecture):
    """The masks of the first block that has some: training reads the text behind them too, clean."""
    experiment, log_probabilities = model_of(alignment, architecture)
    hidden = (np.arange(10) >= 4) & HIDDEN
    batch = place(masked([TEXT], [HIDDEN], 4, alignment), architecture, [0], 1, 20)
    params = params_of(experiment.learner)
    [found] = mask_probabilities(experiment, params, [np.where(hidden, experiment.vocab.mask, TEXT).astype(np.int32)])
    places = np.flatnonzero(hidden)
    first = places // 4 == 1
    expected = log_probabilities(batch)[0, places[first]]
    text = np.s_[experiment.vocab.content_start : experiment.vocab.content_end]
    ratios = np.log(found[first, text]) - expected[:, text]  # equal up to the normalization of each position
    np.testing.assert_allclose(ratios - ratios[:, :1], 0, atol=1e-4)


# The bound


def expected_loss(nats_of, n, block_length):
    """The expectation over draws. nats_of: (places of a block, hidden places) -> nats, float [n]."""
    total = 0.0
    for begin in range(0, n, block_length):
        places = range(begin, min(begin + block_length, n))
        m = len(places)
        of_counts = [
            np.mean([m / k * sum(nats_of(places, hidden)[i] for i in hidden) for hidden in subsets])
            for k in range(1, m + 1)
            for subsets in [list(itertools.combinations(places, k))]
        ]
        total += float(np.mean(of_counts))
    return total


def blockwise(nats_of, n, block_length):
    """The mean, over all orders within each block, of the chain rule from the first block to the last."""
    total = 0.0
    for begin in range(0, n, block_length):
        places = tuple(range(begin, min(begin + block_length, n)))
        orders = itertools.permutations(places)
        total += np.mean([sum(nats_of(places, order[i:])[order[i]] for i in range(len(order))) for order in orders])
    return total


@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_the_expected_loss_is_the_any_order_bound_of_each_block(block_length):
    @functools.cache
    def random_nats(places, hidden):
        return np.random.default_rng([*places, 9, *sorted(hidden)]).exponential(1 + len(hidden), 4)

    def of(places, hidden):
        return random_nats(tuple(places), tuple(sorted(hidden)))

    assert expected_loss(of, 4, block_length) == pytest.approx(blockwise(of, 4, block_length), abs=1e-9)


@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_with_true_conditionals_the_bound_is_the_likelihood_and_with_others_it_is_above(block_length):
    """Later blocks are not known: they are hidden too, in the conditionals of the toy."""
    joint, other = np.random.default_rng(1).dirichlet(np.ones(81), size=2).reshape(2, 3, 3, 3, 3)

    def loss(of_model, text):
        nats_by_hidden = conditional_nats(of_model, text)
        return expected_loss(
            lambda places, hidden: nats_by_hidden[frozenset(hidden) | frozenset(range(places[-1] + 1, 4))],
            4,
            block_length,
        )

    texts = list(itertools.product(range(3), repeat=4))
    for text in texts[::7]:
        assert loss(joint, text) == pytest.approx(-math.log(joint[text]), abs=1e-9)
    bound = sum(joint[text] * loss(other, text) for text in texts)
    assert bound > sum(-joint[text] * math.log(other[text]) for text in texts) - 1e-9
    assert bound > -sum(joint[text] * math.log(joint[text]) for text in texts)


@pytest.mark.parametrize(("length", "block_length"), [(7, 3), (4, 4), (3, 5), (6, 1)])
def test_draws_are_those_of_the_enumeration(length, block_length):
    """In each block k and, given k, the set are uniform, and weights add up to its length; blocks are independent."""
    count = 20_000
    tokens = np.full((count, length + 2), VOCAB.content_start, np.int32)
    tokens[:, length - 1] = EOS
    examples = BlockDiffusion(block_length, "same").corrupt(tokens, np.full(count, length), random_keys(count), VOCAB)
    selected, weights = examples.selected, examples.weights
    assert not selected[:, length:].any() and not weights[:, length:].any()
    np.testing.assert_array_equal(examples.inputs.tokens[:, :length] == M, selected[:, :length])
    counts = []
    for begin in range(0, length, block_length):
        of_block = selected[:, begin : min(begin + block_length, length)]
        m, k = of_block.shape[1], of_block.sum(axis=1)
        counts.append(k)
        np.testing.assert_allclose(np.bincount(k, minlength=m + 1)[1:] / count, 1 / m, atol=0.015)
        np.testing.assert_allclose(weights[:, begin : begin + m], of_block * (m / k)[:, None], rtol=1e-6)
        for size in range(1, m):
            sets = of_block[k == size] @ (1 << np.arange(m))
            shares = np.unique(sets, return_counts=True)[1] / len(sets)
            np.testing.assert_allclose(shares, 1 / math.comb(m, size), atol=0.03)
    for first, second in itertools.pairwise(counts):
        if first.std() and second.std():
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_clipped_schedules_hide_shares_between_their_bounds_with_the_same_weights():
    """Blocks of 10 and a last one of 1: 3 to 8 hidden, as 0.3 * 10 is 3; evaluations hide 1 to 10."""
    objective = BlockDiffusion(10, "same", min_mask_share=0.3, max_mask_share=0.8)
    tokens, lengths = np.full((6000, 11), VOCAB.content_start, np.int32), np.full(6000, 11)
    examples = objective.corrupt(tokens, lengths, random_keys(6000), VOCAB)
    k = examples.selected[:, :10].sum(axis=1)
    np.testing.assert_allclose(np.bincount(k, minlength=11)[3:9] / 6000, 1 / 6, atol=0.02)
    assert (k.min(), k.max()) == (3, 8) and examples.selected[:, 10].all()
    np.testing.assert_allclose(examples.weights[:, :10], examples.selected[:, :10] * (10 / k)[:, None], rtol=1e-6)
    assert objective.heldout() == BlockDiffusion(10, "same")
    with pytest.raises(ConfigError, match=r"x.min_mask_share=0.9 must be x.max_mask_share=0.8 or less"):
        dataclasses.replace(objective, min_mask_share=0.9).check("x")


def test_evaluations_print_the_bound_of_the_text_once(corpus):
    """As many bytes and tokens as CLM's evaluation of the same windows, and with blocks of one its metrics."""

    def metrics(name, **overrides):
        fields = small_config(name, "decoder_only", **reads_corpus(name, corpus) | overrides)
        fields["data"]["documents"] = "split"
        if name == "block_diffusion:next":
            fields["objective"]["block_length"] = 1
        experiment = make_experiment(fields)
        return evaluate(make_run(experiment, show_progress=False), params_of(experiment.learner))

    found = metrics("block_diffusion:next")
    expected = metrics("clm", data__inputs_length=20)
    renamed = {name.replace("/clm", "/block_diffusion"): value for name, value in expected.items()}
    assert found == pytest.approx(renamed, rel=1e-5) and "bits_per_byte" in found


# Refusals


def test_what_cannot_work_is_refused_in_one_line():
    for overrides, match in (
        ({"model__positions": "relative"}, r"relative' does not say where .* with objective \(BlockDiffusion\), whose"),
        ({"model__positions": "none"}, r"none' does not say where .* does not go with objective \(BlockDiffusion\), "),
        ({"data__attention_annealing_steps": 2}, r"steps=2 opens attention .* does not go with objective \(BlockDiff"),
        (
            {"data__inputs_length": 7},
            r"objective.block_length=4 is longer than a window of 3 tokens, half of a row: set",
        ),
    ):
        with pytest.raises(ConfigError, match=match) as error:
            small_experiment("block_diffusion", "decoder_only", **overrides)
        assert "\n" not in str(error.value)
    model = dataclasses.replace(model_of("same", "encoder_only")[0].model, attention="splash")
    with pytest.raises(ValueError, match="must be 'auto' or 'xla': splash has no prefix and no attention order"):
        choose_attention(model, "tpu", length=40, per_row_masks=True)
    collate = make_collator(
        denoisers_of(BlockDiffusion(2, "same"), "x"),
        RowShape("decoder_only", 4, 0, 1),
        VOCAB,
        documents="split",
        bidirectional_inputs=True,
    )
    assert collate.batch_spec.windows[0].raw_length == 2
