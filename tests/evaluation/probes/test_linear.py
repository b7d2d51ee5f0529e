"""--probe=linear: states of texts, files of labelled texts, and what the regressions read."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs.studies.base import probe
from contract.errors import ConfigError
from evaluation.probes.command import answer, check_probe
from evaluation.probes.linear import Linear, _accuracies, _draw, _encode, _predict, pooled_states
from experiment.experiment import make_experiment
from models.transformer import bind, init_params
from run.restore import reading_mesh, transformer_alone
from studies.measures import Trained, make_measure
from tests.table import small_config

STACKS = {
    "mlm": ("mlm", "encoder_only"),
    "clm": ("clm", "decoder_only"),
    "prefix_lm": ("prefix_lm", "decoder_only"),
    "span_corruption": ("span_corruption", "encoder_decoder"),
    "electra": ("electra", "encoder_only"),
    "masked_diffusion": ("masked_diffusion", "encoder_only"),
    "masked_diffusion_decoder": ("masked_diffusion", "decoder_only"),
    "mntp": ("masked_diffusion:next", "decoder_only"),
    "block_diffusion": ("block_diffusion", "decoder_only"),
    "mlm_decoder": ("mlm", "decoder_only"),
    "left_to_right": ("unilm:left_to_right", "encoder_only"),
    "simcse": ("simcse", "encoder_only"),
}


@pytest.fixture(scope="module")
def runs():
    """Name of STACKS, or of a config on a decoder -> an experiment, random parameters of its learner and a mesh."""
    found = {}

    def run(name):
        if name not in found:
            experiment = make_experiment(small_config(*STACKS.get(name, (name, "decoder_only"))))
            rng = np.random.default_rng(0)
            shapes = experiment.params_shapes
            params = jax.tree.map(lambda s: jax.numpy.asarray(rng.normal(0, 0.3, s.shape).astype(s.dtype)), shapes)
            found[name] = experiment, params, reading_mesh(experiment, batch_size=8)
        return found[name]

    return run


def row(experiment, before, text, after):
    """The fields of a row without padding, int32 [1, n]."""
    stack = "encoder" if experiment.model.has_encoder else "decoder"
    tokens = np.array([[*before, *text, *after]], np.int32)
    fields = {"input_tokens": tokens, "segment_ids": np.ones_like(tokens), "positions": np.arange(tokens.size)[None]}
    fields = {f"{stack}_{name}": value for name, value in fields.items()}
    if experiment.model.has_prefix:
        fields["decoder_bidirectional_mask"] = np.ones(tokens.shape, bool)
    return fields


@pytest.mark.parametrize("name", STACKS)
def test_the_state_of_a_text_is_that_of_its_row_alone(runs, name):
    """A row by hand: [CLS] text [SEP] in an encoder, the start token and the text in a decoder, text EOS in T5's.

    Masked diffusion, and block diffusion of one block, have the text alone in their rows.
    """
    experiment, params, mesh = runs(name)
    vocab, tokenizer = experiment.vocab, experiment.tokenizer
    texts = [tokenizer.encode(text) for text in ("one of more than sixteen tokens", "x")]
    experiment, params = transformer_alone(experiment, params)
    transformer = bind(experiment.model, params)
    states_of = jax.jit(transformer.encode if experiment.model.has_encoder else transformer.hidden)
    ends, start, alone = ([vocab.cls], [vocab.sep]), ([vocab.decoder_start], []), ([], [])
    around = {"encoder_only": ends, "decoder_only": start, "encoder_decoder": ([], [vocab.eos])}
    own = {"masked_diffusion": alone, "masked_diffusion_decoder": alone, "block_diffusion": alone, "mlm_decoder": ends}
    before, after = own.get(name, around[experiment.model.architecture])
    expected: dict[str, list] = {"mean": [], "last": [], "first": []}
    for text in texts:
        fields = row(experiment, before, text, after)
        if name == "left_to_right":
            fields["encoder_attention_order"] = fields["encoder_positions"]
        [states] = np.asarray(states_of(fields))
        expected["mean"].append(states.mean(axis=0))
        expected["last"].append(states[-1])
        expected["first"].append(states[0])
    for pooling in expected:
        found = pooled_states(experiment, params, mesh, texts, pooling=pooling)
        np.testing.assert_allclose(found, expected[pooling], rtol=2e-4, atol=2e-5, err_msg=pooling)


def test_a_decoder_reads_the_mode_token_before_the_text(runs):
    experiment, params, mesh = runs("ul2")
    vocab, text = experiment.vocab, experiment.tokenizer.encode("a short text")
    experiment, params = transformer_alone(experiment, params)
    fields = row(experiment, [vocab.decoder_start, vocab.mode("[S]")], text, [])
    expected = np.asarray(bind(experiment.model, params).hidden(fields))[0].mean(axis=0)
    found = pooled_states(experiment, params, mesh, [text], mode="[S]")
    np.testing.assert_allclose(found[0], expected, rtol=2e-4, atol=2e-5)


def write(path, texts_and_labels):
    path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in texts_and_labels))
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Two classes of texts with different letters, 40 labelled and 30 scored; three scored texts have a wrong label.

    Most of the labelled texts are of the first class, and most of the scored ones of the second.
    """
    rng = np.random.default_rng(1)

    def text(letters):
        return "".join(rng.choice(list(letters), 12))

    train = [(text("abcdef"), "first") if k % 2 or not k else (text("uvwxyz"), "second") for k in range(40)]
    test = [(text("abcdef"), "first") if k % 2 else (text("uvwxyz"), "second") for k in range(27)]
    test += [(text("abcdef"), "second") for _ in range(3)]
    return write(tmp_path / "train.jsonl", train), write(tmp_path / "test.jsonl", test)


@pytest.mark.parametrize("name", ["mlm", "clm"])
def test_separable_classes_are_read_and_the_standard_error_is_over_texts(runs, files, name):
    experiment, params, mesh = runs(name)
    linear = Linear(path=files[0], test=files[1], labels=("10", "all"), draws=2)
    check_probe(linear, experiment)
    found = answer(linear, experiment, params, None, mesh)
    assert (found["texts"], found["test_texts"], found["classes"], found["cut_texts"]) == (40, 30, 2, 0)
    assert found["majority_class"] == 13 / 30 and found["test_texts_in_path"] == 0
    every = found["labels"]["all"]
    assert every["accuracy"] == pytest.approx(0.9)  # the three wrong labels
    assert every["accuracy_stderr"] == pytest.approx((0.9 * 0.1 / 29) ** 0.5)
    assert every["gain"] == pytest.approx(every["accuracy"] - every["random_accuracy"])
    floors = {"majority class": found["majority_class"], "random Transformer": every["random_accuracy"]}
    assert every["floors"] == floors
    assert "draws_sd" not in every and "draws_sd" in found["labels"]["10"]
    assert found["labels"]["10"]["accuracy"] > 0.7


def test_the_error_of_a_gain_is_that_of_the_difference_at_each_text():
    # One text of eight differs: the variance is 1/8, and that of the mean 1/64.
    is_right = np.array([[[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]]], bool)
    found = _accuracies(is_right, 0.5)
    assert (found["gain"], found["gain_stderr"]) == pytest.approx((1 / 8, 1 / 8))
    two = np.concatenate([is_right, ~is_right & (np.arange(8) == 7)])  # of accuracies 1/2 and 1/8
    assert _accuracies(two, 0.5)["draws_sd"] == pytest.approx(3 / 8 / np.sqrt(2))


def test_the_random_transformer_has_the_seed_of_the_run(runs, files, monkeypatch):
    """So that the floors of a study's runs are a sample, as the runs are."""
    experiment, params, mesh = runs("mlm")
    keys = []
    monkeypatch.setattr(
        "evaluation.probes.linear.init_params", lambda model, key: keys.append(key) or init_params(model, key)
    )
    linear = Linear(path=files[0], test=files[1], labels=("10",), draws=1)
    answer(linear, dataclasses.replace(experiment, seed=7), params, None, mesh)
    assert keys == [jax.random.key(7)]


def test_the_accuracies_of_draws_by_hand():
    """Two draws of four scored texts: 3 and 2 are right, and 1 and 1 of a Transformer at its start."""
    of_run, random = [[1, 1, 1, 0], [1, 1, 0, 0]], [[1, 0, 0, 0], [0, 1, 0, 0]]
    found = _accuracies(np.array([of_run, random], bool).swapaxes(0, 1), 0.5)
    assert (found["accuracy"], found["random_accuracy"], found["gain"]) == (0.625, 0.25, 0.375)
    assert found["draws_sd"] == pytest.approx(0.125 * 2**0.5)
    assert found["floors"] == {"majority class": 0.5, "random Transformer": 0.25}


@pytest.mark.parametrize("sizes, count", [((20, 20), 39), ((5, 9, 30), 7), ((98, 2), 4), ((2, 2, 2, 2, 2, 90), 12)])
def test_a_draw_has_the_shares_of_the_classes_and_two_texts_of_each(sizes, count):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    draws = _draw(labels, count, 3)
    for chosen in draws:
        found = np.bincount(labels[chosen], minlength=len(sizes))
        assert len(set(chosen.tolist())) == count == found.sum() and found.min() >= 2
        assert (found <= np.ceil(np.array(sizes) * count / sum(sizes)) + 1).all() and (found <= sizes).all()
        states = np.random.default_rng(1).normal(size=(count, 4))
        assert _predict(states, labels[chosen], states[:3], seed=0).shape == (3,)
    assert not np.array_equal(draws[0], draws[1]) and np.array_equal(draws[0], _draw(labels, count, 1)[0])


def test_a_text_longer_than_a_row_is_cut_and_counted(runs, files, tmp_path):
    experiment, params, mesh = runs("mlm")
    long = write(tmp_path / "long.jsonl", [("a" * 500, "first"), ("z" * 500, "second")])
    found = answer(Linear(path=files[0], test=long, labels=("all",)), experiment, params, None, mesh)
    assert found["cut_texts"] == 2 and found["labels"]["all"]["accuracy"] == 1.0
    [ids, fits], cut = _encode(experiment, ["a" * 500, "a" * 38])
    assert len(ids) == len(fits) == 40 - 2 and cut == 1  # [CLS] and [SEP] are in the row too


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"test": None}, "needs --test=FILE"),
        ({"labels": ("some",)}, "'some' is neither a number above 0 nor all"),
        ({"labels": ("5", "5")}, "must be different"),
        ({"mode": "[X]"}, "is not a mode of this run"),
        ({"pooling": "first"}, "needs an encoder"),
    ],
)
def test_flags_that_cannot_work_are_refused_before_a_checkpoint_is_read(runs, changes, message):
    linear = dataclasses.replace(Linear(path="train.jsonl", test="test.jsonl"), **changes)
    with pytest.raises(ConfigError, match=message):
        check_probe(linear, runs("clm")[0])


@pytest.mark.parametrize(
    "train, test, labels, message",
    [
        ([("x", "a"), ("y", "a")], [("x", "a")], "all", "texts of one class, 'a'"),
        ([("x", "a"), ("y", "a"), ("z", "b")], [("x", "a")], "all", "one text of the class 'b'"),
        ([("x", "a"), ("y", "a"), ("z", "b"), ("w", "b")], [("x", "c")], "all", "class 'c', which no text of --path"),
        ([("x", "a"), ("y", "a"), ("z", "b"), ("w", "b")], [("x", "a")], "5", "--labels=5 must be from 4"),
        ([("x", "a"), ("y", "")], [("x", "a")], "all", "train.jsonl:2 has no label"),
    ],
)
def test_labelled_texts_that_no_regression_can_use_are_refused_at_the_start(
    runs, tmp_path, train, test, labels, message
):
    paths = {"path": write(tmp_path / "train.jsonl", train), "test": write(tmp_path / "test.jsonl", test)}
    with pytest.raises(ConfigError, match=message):
        check_probe(Linear(**paths, labels=(labels,)), runs("mlm")[0])


LINE = {
    "labels": {
        "10": {"accuracy": 0.7, "accuracy_stderr": 0.02, "floors": {"majority class": 0.5, "random Transformer": 0.6}},
        "all": {"accuracy": 0.9, "accuracy_stderr": 0.01, "floors": {"majority class": 0.5, "random Transformer": 0.8}},
    }
}


def test_measures_of_a_study_name_a_number_of_labels_and_share_one_answer(runs, files, monkeypatch):
    experiment, params, mesh = runs("mlm")
    fields = dict(path=files[0], test=files[1], labels=("10", "all"), draws=2)
    measures = {
        n: make_measure(n, probe("linear", f"labels.{n}.accuracy", better="higher", **fields)) for n in ("10", "all")
    }
    trained = Trained(None, None, {})
    vars(trained).update(experiment=experiment, params=params, mesh=mesh)
    calls = []
    monkeypatch.setattr(Linear, "measure", lambda *_: calls.append(1) or LINE)
    for name, measure in measures.items():
        measure.check(experiment)
        found = measure.measure(name, trained)
        assert found.value == LINE["labels"][name]["accuracy"] and found.floors == LINE["labels"][name]["floors"]
        assert found.margin == LINE["labels"][name]["accuracy_stderr"]
    assert len(calls) == 1
    with pytest.raises(ConfigError, match=r"name it as in 'labels\.all\.accuracy'"):
        make_measure("m", probe("linear", "labels.500.accuracy", better="higher", **fields)).check(experiment)
