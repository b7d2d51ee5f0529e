"""Teacherless training: literal rows, inputs that show nothing of the response, and answers in one pass."""

import jax
import numpy as np
import pytest

from contract.windows import Windows
from experiment.experiment import make_experiment
from generate.fill_masks import mask_probabilities
from objectives import SFT, Teacherless, denoisers_of
from objectives.objective import RowShape
from tests.models import tiny
from tests.objectives.helpers import make_collator, random_keys, sequence, vocab
from tests.small_fields import small_config

VOCAB = vocab()
EOS, MASK = VOCAB.eos, VOCAB.mask
# Prompt 10 11 12, response 13 14; no prompt, response 20; prompt 30, response 31.
TOKENS = np.asarray([[10, 11, 12, 13, 14], [20, 7, 7, 7, 7], [30, 31, 7, 7, 7]], np.int32)
LENGTHS, PROMPTS = np.asarray([5, 1, 2]), np.asarray([3, 0, 1], np.int32)
WINDOWS = Windows(
    TOKENS, LENGTHS, np.asarray([0, 0, 1]), np.zeros(3, np.uint64), np.zeros(3, np.int32), prompt_lengths=PROMPTS
)


def rows_of(objective):
    shape = RowShape("decoder_only", 12, 0, 1)
    collate = make_collator(denoisers_of(objective, "x"), shape, VOCAB, documents="whole", bidirectional_inputs=False)
    return collate(WINDOWS, 2)


def test_inputs_are_the_prompt_and_masks():
    examples = Teacherless().corrupt(TOKENS, LENGTHS, np.zeros(3, np.uint64), VOCAB, prompt_lengths=PROMPTS)
    inputs = [sequence(examples.inputs, e) for e in range(3)]
    assert inputs == [[10, 11, 12, MASK, MASK, MASK], [MASK, MASK], [30, MASK, MASK]]
    assert examples.targets[0].tolist() == [10, 11, 12, 13, 14, EOS]
    assert examples.selected.astype(int).tolist() == [[0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]


def test_a_packed_row_is_the_one_of_sft_but_for_the_masks_that_it_reads():
    batch, of_sft = rows_of(Teacherless()), rows_of(SFT(inputs_eos=False))
    assert of_sft["decoder_input_tokens"][0].tolist() == [0, 10, 11, 12, 13, 14, 0, 20, 0, 0, 0, 0]
    assert batch["decoder_input_tokens"][0].tolist() == [0, 10, 11, 12, MASK, MASK, 0, MASK, 0, 0, 0, 0]
    assert batch.keys() == of_sft.keys() and not batch["decoder_bidirectional_mask"].any()
    for name in batch.keys() - {"decoder_input_tokens"}:
        np.testing.assert_array_equal(batch[name], of_sft[name], err_msg=name)


def test_inputs_show_nothing_of_a_response():
    """Other responses of the same length have the same inputs; the prompt is shown."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 30, 50)
    prompts = generator.integers(0, lengths)
    texts = generator.integers(3, 100, (2, 50, 30)).astype(np.int32)
    texts[1] = np.where(np.arange(30) < prompts[:, None], texts[0], texts[1])
    of_texts = [Teacherless().corrupt(text, lengths, random_keys(50), VOCAB, prompt_lengths=prompts) for text in texts]
    for e in range(50):
        inputs, others = (sequence(examples.inputs, e) for examples in of_texts)
        assert inputs == others == [*texts[0, e, : prompts[e]], *[MASK] * (lengths[e] - prompts[e] + 1)]


@pytest.fixture(scope="module")
def model():
    """A small experiment and random parameters."""
    experiment = make_experiment(small_config("teacherless", "decoder_only"))
    draws = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: draws.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype), experiment.params_shapes)
    return experiment, params


def test_an_answer_is_predicted_where_training_predicts_it(model):
    """The probabilities at the masks of a prompt are those of the scored positions of the same example in training."""
    experiment, params = model
    ids = experiment.vocab
    tokens = np.asarray([[50, 60, 70, 80, 90]], np.int32)
    windows = WINDOWS._replace(tokens=tokens, lengths=LENGTHS[:1], row_ids=np.zeros(1, int), keys=random_keys(1))
    windows = windows._replace(denoiser_ids=np.zeros(1, np.int32), prompt_lengths=np.asarray([2], np.int32))
    batch = experiment.collate(windows, 1)
    scored = np.flatnonzero(batch["decoder_loss_weights"][0])
    assert scored.tolist() == [2, 3, 4, 5]
    logits = np.array(tiny.run(experiment.model, params, batch))[0, scored[:3]]
    [found] = mask_probabilities(experiment, params, [np.asarray([50, 60, ids.mask, ids.mask, ids.mask], np.int32)])
    text = np.s_[ids.content_start : ids.content_end]
    ratios = np.log(found[:, text]) - logits[:, text]  # equal up to the normalization of each position
    np.testing.assert_allclose(ratios - ratios[:, :1], 0, atol=1e-4)


def test_the_prompt_hides_the_end_of_a_text_alone():
    text = np.arange(40, 46, dtype=np.int32)
    prompting = Teacherless.prompting
    assert prompting.hide(text, 2, 4, VOCAB) is None
    assert prompting.hide(text, 4, 6, VOCAB).inputs.tolist() == [40, 41, 42, 43, MASK, MASK]
    shown, truth = prompting.demonstration(text, None, VOCAB)
    assert shown.tolist() == [40, 41, 42, MASK, MASK, MASK] and truth.tolist() == text.tolist()
