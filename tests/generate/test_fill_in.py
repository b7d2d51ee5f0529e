"""The order and the steps in which masks are filled in, with a model whose probabilities are known."""

import types

import numpy as np
import pytest
from scipy import stats

from contract.errors import ConfigError
from generate import fill_masks
from generate.fill_masks import Unmasking, fill_in, first_masks, read_masked_prompt
from generate.texts import NamedText, Options, answer_texts, read_texts
from tests.table import small_experiment

MASK = 9
PROBABILITIES = np.array(
    [[0.4, 0.39, 0.2, 0.01], [0.5, 0.1, 0.1, 0.3], [0.45, 0.45, 0.05, 0.05], [0.36, 0.04, 0.3, 0.3]], np.float32
)  # margins 0.01, 0.2, 0.0, 0.06; likeliest 0.4, 0.5, 0.45, 0.36


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("margin", [1, 3, 0, 2]),
        ("probability", [1, 2, 0, 3]),
        ("left_to_right", [0, 1, 2, 3]),
        ("entropy", [2, 0, 1, 3]),  # 1.02, 1.12, 1.17, 1.22 nats
    ],
)
def test_masks_by_order(order, expected):
    random = np.random.default_rng(0)
    assert first_masks(PROBABILITIES, order, 4, random).tolist() == expected
    assert first_masks(PROBABILITIES, order, 2, random).tolist() == expected[:2]


@pytest.mark.parametrize("temperature", [1e-40, 1e-310])
def test_a_tiny_temperature_draws_one_of_the_likeliest_tokens(temperature):
    random, certain = np.random.default_rng(0), np.array([[0, 0, 1, 0]], np.float32)
    drawn = fill_masks._draw(np.concatenate([PROBABILITIES, certain]), temperature, random)
    assert drawn[[0, 1, 3, 4]].tolist() == [0, 0, 0, 2] and drawn[2] in (0, 1)


def test_a_random_order_has_each_mask_first_equally_often():
    random = np.random.default_rng(0)
    first = [int(first_masks(PROBABILITIES, "random", 1, random)[0]) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(first) / 4000, 0.25, atol=0.03)


@pytest.fixture
def seen(monkeypatch):
    """The texts that the model read, in order. It knows the token of a place: the place's number, modulo 4."""
    seen = []

    def probabilities(experiment, params, texts, *, batch_size):
        seen.append([text.tolist() for text in texts])
        for text in texts:
            places = np.flatnonzero(text == MASK)
            yield np.eye(4, dtype=np.float32)[places % 4] * 0.9 + 0.025

    monkeypatch.setattr(fill_masks, "mask_probabilities", probabilities)
    return seen


def fill(texts, **options):
    experiment = types.SimpleNamespace(vocab=types.SimpleNamespace(mask=MASK))
    seed = options.pop("seed", 0)
    unmasking = Unmasking(**{"order": "left_to_right"} | options)
    filled = fill_in(experiment, {}, [np.array(text) for text in texts], unmasking, seed=seed)
    return [text.tolist() for text, _ in filled]


def test_one_mask_in_each_step_and_visible_tokens_stay(seen):
    assert fill([[7, MASK, 7, MASK, MASK], [MASK]]) == [[7, 1, 7, 3, 0], [0]]
    assert seen == [[[7, 9, 7, 9, 9], [9]], [[7, 1, 7, 9, 9]], [[7, 1, 7, 3, 9]]]


def test_steps_divide_the_masks_evenly(seen):
    assert fill([[MASK] * 5], steps=2) == [[0, 1, 2, 3, 0]]
    assert [texts[0].count(MASK) for texts in seen] == [5, 2]
    seen.clear()
    assert fill([[MASK] * 5], order="once") == [[0, 1, 2, 3, 0]] and len(seen) == 1


def test_blocks_are_filled_in_from_left_to_right_and_earlier_ones_stay(seen):
    assert fill([[MASK, 7, MASK, MASK, MASK, MASK]], order="margin", block_length=2, steps=1) == [[0, 7, 2, 3, 0, 1]]
    assert seen == [[[9, 7, 9, 9, 9, 9]], [[0, 7, 2, 9, 9, 9]], [[0, 7, 2, 3, 0, 9]]]
    seen.clear()
    assert fill([[MASK] * 8], order="random", block_length=4, remask=0.5) == [[0, 1, 2, 3] * 2]
    assert len(seen) == 8 and all(MASK not in texts[0][:4] for texts in seen[4:])
    assert all(texts[0][4:] == [MASK] * 4 for texts in seen[:4])


def test_a_model_of_blocks_fills_in_the_blocks_of_the_text_and_names_what_each_could_be_when_it_is_reached(seen):
    text = [7, MASK, MASK, 7, MASK, MASK, MASK]
    assert fill([text], order="random", trained_on=3) == [[7, 1, 2, 7, 0, 1, 2]]
    blocks = [[1, 2], [4, 5], [6]]
    for step, [shown] in enumerate(seen):
        hidden = np.flatnonzero(np.array(shown) == MASK)
        filled_in = [not set(block) & set(hidden) for block in blocks]
        assert filled_in == sorted(filled_in, reverse=True) and len(hidden) == 5 - step
    assert len(seen) == 5
    seen.clear()
    assert fill([text, [MASK]], order="once", trained_on=3) == [[7, 1, 2, 7, 0, 1, 2], [0]]
    assert [len(texts) for texts in seen] == [2, 1, 1]


def test_candidates_of_a_later_block_are_those_of_a_text_with_the_blocks_before_it(monkeypatch):
    def share_of_shown(experiment, params, texts, *, batch_size):
        for text in texts:
            yield np.full(((text == MASK).sum(), 4), (text != MASK).sum(), np.float32)

    monkeypatch.setattr(fill_masks, "mask_probabilities", share_of_shown)
    experiment = types.SimpleNamespace(vocab=types.SimpleNamespace(mask=MASK))
    for trained_on, expected in ((0, [1, 1, 1, 1, 1]), (3, [1, 1, 3, 3, 3]), (2, [1, 2, 2, 4, 4])):
        unmasking = Unmasking("margin", trained_on=trained_on)
        [(_, first)] = fill_in(experiment, {}, [np.array([7] + [MASK] * 5)], unmasking, seed=0)
        assert first[:, 0].tolist() == expected


def test_prompts_of_a_model_of_blocks():
    experiment = small_experiment("block_diffusion", "decoder_only")
    for text, options, match in (
        (
            "a[MASK]",
            Options(block_length=2),
            r"--block_length does not apply .* was trained on blocks of 4 tokens: remove",
        ),
        ("a" * 20 + "[MASK]", Options(), r"--prompt has 21 tokens, .* half of data.inputs_length=40 allows 20"),
    ):
        with pytest.raises(ConfigError, match=match):
            read_texts(experiment, [NamedText(text, "--prompt")], options)
    [read], _ = read_texts(experiment, [NamedText("a" * 19 + "[MASK]", "--prompt")], Options())
    assert len(read) == 20
    prompting, text = experiment.denoisers[0].objective.prompting, np.arange(40, 50, dtype=np.int32)
    assert (
        prompting.demonstration(text, None, experiment.vocab)[0].tolist()
        == [*range(40, 48)] + [experiment.vocab.mask] * 2
    )


def test_what_is_hidden_again_is_filled_in_by_the_same_step_and_the_last_step_hides_none(seen):
    assert fill([[MASK] * 64 + [7]], order="random", steps=4, remask=0.25) == [[place % 4 for place in range(64)] + [7]]
    masks = [texts[0].count(MASK) for texts in seen]
    assert len(masks) == 4 and masks[0] == 64 and masks[3] == 16
    assert all(least < count < least + 20 for count, least in zip(masks[1:3], (48, 32), strict=True))
    seen.clear()
    fill([[MASK] * 64], order="random", steps=4, remask=0.99)
    # 16, 32 and 48 tokens are filled in before, and 32, 16 and 0 masks are left after: at most 1, 1/2 and none again.
    assert [texts[0].count(MASK) for texts in seen][3] == 16 and seen[1][0].count(MASK) >= 62


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"block_length": 2}, {"order": "margin"}])
def test_samples_follow_the_joint_distribution_of_true_conditionals(monkeypatch, options):
    joint = np.random.default_rng(1).dirichlet(np.ones(8)).reshape(2, 2, 2)

    def conditionals(experiment, params, texts, *, batch_size):
        for text in texts:
            given = joint[tuple(slice(None) if token == MASK else int(token) for token in text)]
            marginals = [given.sum(axis=tuple(set(range(given.ndim)) - {axis})) for axis in range(given.ndim)]
            yield np.stack(marginals) / given.sum()

    monkeypatch.setattr(fill_masks, "mask_probabilities", conditionals)
    chosen = {"order": "random", "temperature": 1.0} | options
    samples = [fill([[MASK] * 3], seed=seed, **chosen)[0] for seed in range(4000)]
    counts = np.bincount(np.array(samples) @ [4, 2, 1], minlength=8)
    assert stats.chisquare(counts, joint.ravel() * 4000).pvalue > 1e-4
    biased = [fill([[MASK] * 3], seed=seed, **chosen | {"steps": 1})[0] for seed in range(4000)]
    if "block_length" not in options:
        wrong = np.bincount(np.array(biased) @ [4, 2, 1], minlength=8)
        assert stats.chisquare(wrong, joint.ravel() * 4000).pvalue < 1e-4, "independent draws"


def test_draws_have_the_models_probabilities_at_temperature_1_and_do_not_depend_on_other_texts(seen):
    drawn = [fill([[MASK] * 8], temperature=1.0, order="random", seed=seed)[0] for seed in range(500)]
    np.testing.assert_allclose(np.mean(np.array(drawn) == np.arange(8) % 4), 0.925, atol=0.02)
    both = fill([[MASK] * 8, [MASK] * 3], temperature=1.0, order="random", seed=3)
    assert both[0] == drawn[3]


def test_draws_of_different_texts_are_independent_and_those_of_equal_texts_equal(seen):
    texts = [[token, *[MASK] * 8] for token in (6, 7, 7)]
    first, second, again = fill(texts, temperature=1e6)
    assert first[1:] != second[1:] and second == again == fill(texts[1:2], temperature=1e6)[0]


def test_masks_that_were_appended_end_at_an_eos(monkeypatch):
    experiment = small_experiment("masked_diffusion", "encoder_only")
    vocab, encode = experiment.vocab, experiment.tokenizer.encode
    answer = [vocab.eos, *encode("xy"), vocab.eos, *encode("z")]  # the last tokens of it

    def fill_in(experiment, params, texts, unmasking, *, seed, num_samples, batch_size):
        for text in texts:
            masks = np.flatnonzero(text == vocab.mask)
            text[masks] = answer[-len(masks) :]
            yield text, np.full((len(masks), vocab.size), 1 / vocab.size)

    monkeypatch.setattr("generate.texts.fill_in", fill_in)
    for prompt, options, expected in (
        ("ab", Options(max_tokens=4), "abxy"),
        ("ab", Options(max_tokens=5), "ab"),
        ("ab", Options(max_tokens=1), "abz"),
        ("a[MASK][MASK]b", Options(), "a</s>zb"),
    ):
        named = [NamedText(prompt, "--prompt")]
        read, _ = read_texts(experiment, named, options)
        [[filled]] = answer_texts(experiment, {}, named, read, options, batch_size=1)
        assert filled.text == expected and len(filled.candidates) == (options.max_tokens or 2)


def test_masks_are_appended_to_a_prompt_without_masks_alone():
    experiment = small_experiment("masked_diffusion", "encoder_only")
    assert read_masked_prompt(experiment, "ab", max_tokens=3)[2:].tolist() == [experiment.vocab.mask] * 3
    with pytest.raises(ConfigError, match=r"--max_tokens=3 appends masks, and --prompt has masks: remove one"):
        read_masked_prompt(experiment, "a[MASK]", max_tokens=3)


def test_samples_of_a_text_have_draws_of_their_own(seen):
    text, drawn = np.full(16, MASK), Unmasking("random", temperature=3.0)
    experiment = types.SimpleNamespace(vocab=types.SimpleNamespace(mask=MASK))

    def samples(texts, **options):
        return [filled.tolist() for filled, _ in fill_in(experiment, {}, texts, drawn, seed=1, **options)]

    first, second, third = samples([text], num_samples=3)
    assert first != second != third != first and [first] == samples([text])
    assert samples([text[:8], text], num_samples=3, batch_size=2)[3:] == [first, second, third]


def test_samples_that_cannot_differ_are_refused():
    options, texts = Options(num_samples=2), [NamedText("a[MASK]", "--prompt")]
    experiment = small_experiment("masked_diffusion", "encoder_only")
    with pytest.raises(ConfigError, match="num_samples=2 of filled masks are all the same at their temperature of 0"):
        read_texts(experiment, texts, options)
    read_texts(experiment, texts, Options(num_samples=2, temperature=0.5))
