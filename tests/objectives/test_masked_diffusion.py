"""Masked diffusion: its losses are the any-order bound, by enumeration over every mask of a short text."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from configs.masked_diffusion import VARIANTS
from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from experiment.experiment import make_experiment
from objectives import MaskedDiffusion, ResponseDiffusion, denoisers_of
from objectives.objective import RowShape
from run.compiled_run import make_run
from run.corpus import open_corpora
from run.evaluation import evaluate
from tests.learners.row_learners import params_of
from tests.objectives.helpers import make_collator, random_keys, vocab
from tests.table import reads_corpus, small_config, small_experiment

VOCAB = vocab()
DIFFUSION = MaskedDiffusion(alignment="same")
BERNOULLI = {
    "linear": dataclasses.replace(DIFFUSION, noise="bernoulli"),
    "cosine": dataclasses.replace(DIFFUSION, noise="bernoulli", noise_schedule="cosine"),
    "polynomial": dataclasses.replace(DIFFUSION, noise="bernoulli", noise_schedule="polynomial"),
    "cubic": dataclasses.replace(DIFFUSION, noise="bernoulli", noise_schedule="polynomial", power=3.0),
}
N = 4  # tokens of a text over {0, 1, 2}
SUBSETS = [frozenset(subset) for k in range(1, N + 1) for subset in itertools.combinations(range(N), k)]


@pytest.mark.parametrize("noise", ["count", "bernoulli"])
def test_a_share_of_the_texts_is_cut_to_a_random_length(noise):
    """Of texts of 1 to 8 tokens; what is left is a text of its own, with the weights and denominators of its length."""
    objective = dataclasses.replace(DIFFUSION, noise=noise, random_length_share=0.5)
    count, keys = 8000, random_keys(8000)
    tokens, lengths = np.full((count, 8), 20, np.int32), 1 + np.arange(count) % 8
    examples = objective.corrupt(tokens, lengths, keys, VOCAB)
    read = examples.inputs.lengths
    whole = lengths == 8
    expected = 0.5 / 8 + 0.5 * (np.arange(1, 9) == 8)
    np.testing.assert_allclose(np.bincount(read[whole], minlength=9)[1:] / whole.sum(), expected, atol=0.06)
    assert (read <= lengths).all() and not (examples.selected & (np.arange(8) >= read[:, None])).any()
    np.testing.assert_array_equal(objective.hidden_mask(tokens, lengths, keys, VOCAB), examples.selected)
    sizes = examples.weights if noise == "count" else examples.denominators
    np.testing.assert_allclose(sizes.sum(axis=1), read, rtol=1e-5)
    assert objective.heldout() == DIFFUSION and not objective.covers_window and DIFFUSION.covers_window
    with pytest.raises(ConfigError, match=r"^x.random_length_share=0.5 must be 0.0 for prompts and responses"):
        ResponseDiffusion("same", random_length_share=0.5).check("x")


def random_nats(seed: int) -> dict[frozenset, np.ndarray]:
    """Hidden tokens -> the nats, float64 [N], that a model without any structure gives to each hidden token."""
    generator = np.random.default_rng(seed)
    return {subset: generator.exponential(1 + len(subset), N) for subset in SUBSETS}


def conditional_nats(joint: np.ndarray, text: tuple[int, ...]) -> dict[frozenset, np.ndarray]:
    """As `random_nats`, of the true conditional distributions of `joint`, float64 [3] * N."""
    nats = {}
    for hidden in SUBSETS:
        values = np.zeros(N)
        for i in hidden:
            visible = tuple(slice(None) if j in hidden else text[j] for j in range(N))
            own = tuple(text[j] if j == i or j not in hidden else slice(None) for j in range(N))
            values[i] = math.log(joint[visible].sum() / joint[own].sum())
        nats[hidden] = values
    return nats


def expected_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The expectation of the objective's loss of a text: k uniform, k tokens hidden, weights n / k."""
    of_counts = [
        np.mean([N / k * sum(nats[subset][i] for i in subset) for subset in SUBSETS if len(subset) == k])
        for k in range(1, N + 1)
    ]
    return float(np.mean(of_counts))


def any_order_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The mean over all orders of the nats of each token given the tokens before it in the order."""
    orders = [sum(nats[frozenset(order[i:])][order[i]] for i in range(N)) for order in itertools.permutations(range(N))]
    return float(np.mean(orders))


def integral_loss(nats: dict[frozenset, np.ndarray]) -> float:
    """The integral over t in (0, 1] of 1 / t times the expected nats of the tokens hidden with probability t."""

    def at(t):
        return sum(
            t ** (len(subset) - 1) * (1 - t) ** (N - len(subset)) * sum(nats[subset][i] for i in subset)
            for subset in SUBSETS
        )

    return integrate.quad(at, 0, 1, epsabs=1e-12)[0]


def bernoulli_loss(nats: dict[frozenset, np.ndarray], objective: MaskedDiffusion) -> float:
    """The expectation of the loss of a text of a "bernoulli" objective, over t by Gauss-Legendre quadrature."""
    nodes, shares = np.polynomial.legendre.leggauss(80)
    p, weights = objective.rates((nodes + 1) / 2)
    at_nodes = sum(
        p ** len(subset) * (1 - p) ** (N - len(subset)) * weights * sum(nats[subset][i] for i in subset)
        for subset in SUBSETS
    )
    return float(shares / 2 @ at_nodes)


RISING = {subset: np.full(N, 1 + 2 * (len(subset) - 1) / (N - 1)) for subset in SUBSETS}  # more hidden cost more


@pytest.mark.parametrize("schedule", BERNOULLI)
def test_every_schedule_has_the_expected_loss_of_the_bound(schedule):
    objective = dataclasses.replace(BERNOULLI[schedule], eps=0.0)
    for nats in (*map(random_nats, range(4)), RISING):
        assert bernoulli_loss(nats, objective) == pytest.approx(any_order_loss(nats), abs=1e-9)


def test_the_least_rate_of_hidden_tokens_makes_another_loss_of_every_schedule():
    """LLaDA's: the mean over p in [eps, 1]. The part that is not the bound's is why evaluations do not use it."""
    expected = bernoulli_loss(RISING, dataclasses.replace(DIFFUSION, noise="bernoulli", eps=1e-3))
    for objective in BERNOULLI.values():
        assert bernoulli_loss(RISING, objective) == pytest.approx(expected, abs=1e-9)
    assert 1e-4 < expected / any_order_loss(RISING) - 1 < 1e-3
    assert all(objective.heldout() == dataclasses.replace(objective, noise="count") for objective in BERNOULLI.values())
    assert DIFFUSION.heldout() == DIFFUSION


def test_other_normalizations_of_bernoulli_are_no_bound():
    """Forcing a token into an empty draw, the mean over a text's hidden tokens, and these of a whole batch."""
    nodes, shares = np.polynomial.legendre.leggauss(80)
    p = (nodes + 1) / 2
    hidden = [np.mean([sum(RISING[s][i] for i in s) for s in SUBSETS if len(s) == k]) for k in range(1, N + 1)]
    of_count = [math.comb(N, k) * p**k * (1 - p) ** (N - k) for k in range(N + 1)]
    some = 1 - of_count[0]
    wrong = {
        "forced": sum(of_count[k] / some / p * hidden[k - 1] for k in range(1, N + 1)),
        "mean of a text": N * sum(of_count[k] / some / k * hidden[k - 1] for k in range(1, N + 1)),
        "mean of a batch": N * sum(of_count[k] * hidden[k - 1] for k in range(1, N + 1)) / (N / 2),
    }
    bound = any_order_loss(RISING)
    for name, at_nodes in wrong.items():
        assert abs(float(shares / 2 @ at_nodes) / bound - 1) > 0.05, name


@pytest.mark.parametrize("seed", range(4))
def test_the_expected_loss_is_the_any_order_bound_and_the_integral_over_t(seed):
    nats = random_nats(seed)
    assert expected_loss(nats) == pytest.approx(any_order_loss(nats), abs=1e-9)
    assert expected_loss(nats) == pytest.approx(integral_loss(nats), abs=1e-9)


def test_a_mean_over_the_hidden_tokens_is_no_bound():
    """BERT's normalization, at the same masks: hidden tokens of all texts over their number. More hidden cost more."""
    hidden = [np.mean([sum(RISING[s][i] for i in s) for s in SUBSETS if len(s) == k]) for k in range(1, N + 1)]
    by_number = N * np.sum(hidden) / np.sum(np.arange(1, N + 1))
    assert by_number / any_order_loss(RISING) > 1.1


def test_with_true_conditionals_the_bound_is_the_likelihood():
    joint = np.random.default_rng(0).dirichlet(np.ones(3**N)).reshape([3] * N)
    for text in [(0, 1, 2, 0), (2, 2, 2, 2)]:
        assert expected_loss(conditional_nats(joint, text)) == pytest.approx(-math.log(joint[text]), abs=1e-9)


def test_a_wrong_model_lies_above_the_likelihood():
    joint, other = np.random.default_rng(1).dirichlet(np.ones(3**N), size=2).reshape(2, *[3] * N)
    texts = list(itertools.product(range(3), repeat=N))
    bound = sum(joint[text] * expected_loss(conditional_nats(other, text)) for text in texts)
    entropy = -sum(joint[text] * math.log(joint[text]) for text in texts)
    assert bound > entropy


@pytest.mark.parametrize("length", [1, 4, 7])
def test_every_set_of_tokens_is_hidden_with_the_probability_of_the_enumeration(length):
    """k is uniform, the set is uniform given k, and the weights of a text add up to its length. EOS may be hidden."""
    count = 20_000
    tokens = np.full((count, length + 3), VOCAB.content_start, np.int32)
    tokens[:, length - 1] = VOCAB.eos
    examples = DIFFUSION.corrupt(tokens, np.full(count, length), random_keys(count), VOCAB)
    selected = examples.selected[:, :length]
    assert not examples.selected[:, length:].any()
    k = selected.sum(axis=1)
    np.testing.assert_allclose(np.bincount(k, minlength=length + 1)[1:] / count, 1 / length, atol=0.015)
    np.testing.assert_allclose(examples.weights[:, :length], selected * (length / k)[:, None], rtol=1e-6)
    np.testing.assert_allclose(examples.weights.sum(axis=1), length, rtol=1e-5)
    np.testing.assert_array_equal(examples.inputs.tokens[:, :length] == VOCAB.mask, selected)
    if length == 4:
        for size in (1, 2, 3):
            of_size = selected[k == size]
            sets = of_size @ (1 << np.arange(length))
            shares = np.bincount(sets, minlength=16)[[sum(1 << i for i in s) for s in SUBSETS if len(s) == size]]
            np.testing.assert_allclose(shares / len(of_size), 1 / math.comb(4, size), atol=0.03)


def of_equal_texts(objective, length, count, **columns):
    tokens = np.full((count, length + 2), VOCAB.content_start, np.int32)
    return objective.corrupt(tokens, np.full(count, length), random_keys(count), VOCAB, **columns)


@pytest.mark.parametrize(("length", "eps"), [(2, 0.1), (32, 1e-3), (128, 1e-3), (128, 0.05)])
def test_the_noise_of_the_count_is_that_of_its_formula_and_texts_without_hidden_tokens_count(length, eps):
    """Every token costs 1 nat, so the bound is 1 a token. Var[1 / p - 1] / n for p uniform in [eps, 1]."""
    count = 100_000
    examples = of_equal_texts(dataclasses.replace(BERNOULLI["linear"], eps=eps), length, count)
    sums, denominators = (values.astype(np.float64).sum(axis=1) for values in (examples.weights, examples.denominators))
    assert (denominators == length).all()
    assert ((sums == 0).mean() > 1e-4) == (eps * length < 5)  # a text of which nothing is hidden
    losses = sums / denominators
    spread = math.sqrt((math.log(1 / eps) / (1 - eps) - 1) / length)
    assert losses.mean() == pytest.approx(1, abs=5 * spread / math.sqrt(count))
    assert losses.std() == pytest.approx(spread, rel=0.05)
    exact = of_equal_texts(DIFFUSION, length, 1000)
    np.testing.assert_allclose(exact.weights.sum(axis=1), length, rtol=1e-5)
    assert exact.denominators is None


@pytest.mark.parametrize("schedule", BERNOULLI)
def test_tokens_are_hidden_independently_at_the_rate_of_the_quantile(schedule):
    objective, count = BERNOULLI[schedule], 20_000
    quantiles = np.tile([0.0, 0.3, 0.9], count)
    examples = of_equal_texts(objective, 5, 3 * count, quantiles=quantiles)
    p, weights = objective.rates(1 - quantiles[:3])
    hidden = examples.selected[:, :5].reshape(count, 3, 5)
    np.testing.assert_allclose(hidden.mean(axis=(0, 2)), p, atol=0.01)
    np.testing.assert_allclose(hidden.sum(axis=2).var(axis=0), 5 * p * (1 - p), atol=0.05)
    np.testing.assert_allclose(examples.weights[:3], examples.selected[:3] * weights[:, None], rtol=1e-6)
    assert not examples.selected[:, 5:].any() and not examples.denominators[:, 5:].any()


def test_rates_by_hand():
    t = np.array([0.5, 1.0])
    for schedule, eps, p, weights in (
        ("linear", 0.5, [0.75, 1.0], [4 / 3, 1.0]),
        ("cosine", 0.0, [math.sqrt(0.5), 1.0], [math.pi / 2, 0.0]),
        ("polynomial", 0.0, [0.25, 1.0], [4.0, 2.0]),
    ):
        found = dataclasses.replace(BERNOULLI[schedule], eps=eps).rates(t)
        np.testing.assert_allclose(found, (p, weights), atol=1e-12)
    for outside in (0.0, 1.1):
        with pytest.raises(ValueError, match=r"times of masked diffusion must be in \(0, 1\], not from"):
            BERNOULLI["linear"].rates(np.array([outside]))


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.25, [0.25 * 2.3125 / 2, 0.25 * 2.5 / 2, 0.25 * 2.06640625 / 2]), (1.0, [0.5, 0.5, 0.5])],
)
@pytest.mark.parametrize("objective", [DIFFUSION, BERNOULLI["linear"]])
def test_weights_of_dream_by_hand(objective, p, expected):
    """Of the text o m m o o m the first mask has visible tokens at the distances 1, 2, 3: 1 + 3/4 + 9/16 is 2.3125."""
    examples = of_equal_texts(dataclasses.replace(objective, cart_p=p), 6, 4000)
    pattern = np.array([False, True, True, False, False, True])
    found = (examples.selected[:, :6] == pattern).all(axis=1)
    assert found.any()
    assert (examples.weights[found][:, np.flatnonzero(pattern)] == np.float32(expected)).all()
    np.testing.assert_array_equal(examples.denominators > 0, np.arange(8) < [[6]] * 4000)
    assert not examples.weights[examples.selected[:, :6].all(axis=1)].any()  # no token is visible


def test_weights_of_dream_are_a_geometric_distribution_of_the_distance_to_visible_tokens_of_the_same_text():
    """The prompt is visible, and what is after the text is not, as of a window from another text."""
    lengths, prompts = np.array([40, 33, 1, 20] * 50), np.array([0, 7, 0, 19] * 50)
    objective = ResponseDiffusion("next", "bernoulli", cart_p=0.1)
    tokens = np.full((200, 41), VOCAB.content_start, np.int32)
    examples = objective.corrupt(tokens, lengths, random_keys(200), VOCAB, prompt_lengths=prompts)
    distances = np.abs(np.arange(41)[:, None] - np.arange(41))
    visible = ~examples.selected & (np.arange(41) < lengths[:, None])
    expected = np.where(examples.selected, visible @ stats.geom.pmf(distances, 0.1) / 2, 0)
    np.testing.assert_allclose(examples.weights, expected, rtol=1e-5)
    assert examples.denominators.sum(axis=1).tolist() == (lengths - prompts).tolist()
    assert objective.heldout() == ResponseDiffusion("next")


def test_the_quantiles_of_packed_rows_are_spread_over_all_examples_of_a_batch(corpus):
    fields = reads_corpus("masked_diffusion", corpus) | {"data__examples_per_row": 2}
    experiment = small_experiment("masked_diffusion", "encoder_only", **fields)
    documents = open_corpora(experiment, show_progress=False).train_documents
    windows = experiment.batches(documents, transform=lambda windows, num_rows: windows)[0]
    np.testing.assert_allclose(np.diff(np.sort(windows.quantiles)), np.full(15, 1 / 16))


def test_quantiles_of_a_batch_spread_the_counts():
    """Of eight texts of four tokens two have each count."""
    quantiles = (0.7 + np.arange(8) / 8) % 1.0
    counts = of_equal_texts(DIFFUSION, 4, 8, quantiles=quantiles).selected.sum(axis=1)
    assert np.bincount(counts).tolist() == [0, 2, 2, 2, 2]


# Responses


PAIRS = Windows(  # prompt 10 11 12, response 13 14; no prompt, response 20; prompt 30 31, an empty response
    np.array([[10, 11, 12, 13, 14, VOCAB.eos], [20, VOCAB.eos, 7, 7, 7, 7], [30, 31, VOCAB.eos, 7, 7, 7]], np.int32),
    np.array([6, 2, 3]),
    np.array([0, 0, 1]),
    np.zeros(3, np.uint64),
    np.zeros(3, np.int32),
    prompt_lengths=np.array([3, 0, 2], np.int32),
)


def rows_of_pairs(objective, architecture, quantile):
    """The batch of PAIRS, whose responses have 3, 2 and 1 tokens with EOS."""
    shape = RowShape(architecture, 10, 0, 1)
    options = {"documents": "whole", "bidirectional_inputs": True}
    collate = make_collator(denoisers_of(objective, "x"), shape, VOCAB, **options)
    return collate(PAIRS._replace(quantiles=np.full(3, quantile)), 2)


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_packed_rows_hide_and_count_responses_alone(architecture):
    side = architecture.partition("_")[0]
    batch = rows_of_pairs(ResponseDiffusion("same"), architecture, 0.99)  # all of a response is hidden
    check_batch(batch, architecture)
    m, eos = VOCAB.mask, VOCAB.eos
    assert batch[f"{side}_input_tokens"].tolist() == [[10, 11, 12, m, m, m, m, m, 0, 0], [30, 31, m] + [0] * 7]
    first = [10, 11, 12, 13, 14, eos, 20, eos, 0, 0]
    assert batch[f"{side}_target_tokens"].tolist() == [first, [30, 31, eos] + [0] * 7]
    assert batch[f"{side}_loss_weights"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1] + [0] * 7]
    assert batch[f"{side}_segment_ids"].tolist() == [[1] * 6 + [2] * 2 + [0] * 2, [1] * 3 + [0] * 7]
    few = rows_of_pairs(ResponseDiffusion("same"), architecture, 0.0)  # one token of each
    assert few[f"{side}_loss_weights"].sum(axis=1).tolist() == [3 + 2, 1]
    np.testing.assert_array_equal(few[f"{side}_loss_weights"] > 0, few[f"{side}_input_tokens"] == m)
    assert few[f"{side}_loss_weights"].max() == 3 and (few[f"{side}_loss_weights"] > 0).sum() == 3
    none = rows_of_pairs(ResponseDiffusion("same", "bernoulli", eps=1e-9), architecture, 1 - 1e-9)
    assert not none[f"{side}_loss_weights"].any()
    np.testing.assert_array_equal(none[f"{side}_loss_denominators"], batch[f"{side}_loss_weights"])


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_shorter_pairs_end_in_eos_that_are_hidden_and_counted_as_the_response(architecture):
    """LLaDA's SFT. The pairs have 6, 2 and 3 tokens."""
    side, m, eos = architecture.partition("_")[0], VOCAB.mask, VOCAB.eos
    objective = ResponseDiffusion("same", "bernoulli", eps=0.0, padded_length=5)
    apart = PAIRS._replace(row_ids=np.arange(3), quantiles=np.zeros(3))  # t is 1: all of a response is hidden
    for each, least in ((objective, 5), (objective.heldout(), 1)):
        assert [capacity.least for capacity in each.capacities(RowShape(architecture, 10, 0, 1))] == [least]
    options = {"documents": "whole", "bidirectional_inputs": True}
    batch = make_collator(denoisers_of(objective, "x"), RowShape(architecture, 10, 0, 1), VOCAB, **options)(apart, 3)
    check_batch(batch, architecture)
    assert batch[f"{side}_input_tokens"].tolist() == [
        [10, 11, 12, m, m, m, 0, 0, 0, 0],
        [m, m, m, m, m, 0, 0, 0, 0, 0],
        [30, 31, m, m, m, 0, 0, 0, 0, 0],
    ]
    assert batch[f"{side}_target_tokens"].tolist() == [
        [10, 11, 12, 13, 14, eos, 0, 0, 0, 0],
        [20, eos, eos, eos, eos, 0, 0, 0, 0, 0],
        [30, 31, eos, eos, eos, 0, 0, 0, 0, 0],
    ]
    of_response = [[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0]]
    for field in ("loss_weights", "loss_denominators"):
        np.testing.assert_allclose(batch[f"{side}_{field}"], np.pad(of_response, ((0, 0), (0, 4))), rtol=1e-6)
    assert objective.heldout() == ResponseDiffusion("same", eps=0.0)


def test_a_pair_cannot_be_padded_to_more_than_a_row():
    with pytest.raises(ConfigError, match=r"padded_length=41 is longer than a row of data.inputs_length=40: set it to"):
        small_experiment(
            "masked_diffusion:padded_response",
            "encoder_only",
            objective=dict(VARIANTS["padded_response"], padded_length=41),
        )


def test_responses_need_prompt_lengths():
    with pytest.raises(TypeError, match="prompt_lengths"):
        ResponseDiffusion("same").corrupt(PAIRS.tokens, PAIRS.lengths, PAIRS.keys, VOCAB)


# Evaluations


def test_evaluations_hide_exact_numbers_and_print_the_bound(corpus):
    def metrics(variant):
        name = f"masked_diffusion:{variant}"
        experiment = make_experiment(small_config(name, "encoder_only", **reads_corpus(name, corpus)))
        run = make_run(experiment, show_progress=False)
        batch = run.heldout.batches[0]
        assert "encoder_loss_denominators" not in batch
        return evaluate(run, params_of(experiment.learner))

    expected, found = metrics("same"), metrics("polynomial")
    assert found.keys() == expected.keys() and "bits_per_byte" in found
    name = {"loss/masked_diffusion": found["loss"]}
    assert found == pytest.approx(expected | name, rel=1e-6)
    assert "bits_per_byte" not in metrics("response")
