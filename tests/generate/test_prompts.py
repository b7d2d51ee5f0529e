"""Prompts: laid out as in training, answers put into them, and prompts that cannot work."""

import dataclasses
import io
import types

import numpy as np
import pytest

from configs.bart import VARIANTS
from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from experiment.experiment import make_experiment
from generate.fill_masks import candidates, candidates_line, mask_probabilities, read_masked_prompt
from generate.prompts import Prompt, first_position, max_answer_length, prompt_batch, read_prompt, with_mode
from objectives.prompting import PromptTokens, replace_sentinels, spans_by_sentinel
from tests.objectives.helpers import sequence, vocab
from tests.small_fields import small_config
from tests.train.tiny_experiments import PREFIX_LM, random_params, tiny_experiment

OWN_FLAGS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False}
VOCAB = vocab()
S = [int(VOCAB.sentinel(k)) for k in range(5)]


# Answers to the prompt "a <0> b <1> c", and the resulting texts; ids 10, 11, 12 are a, b, c.
ANSWERS = {
    "in order": ([S[0], 20, 21, S[1], 30], [10, 20, 21, 11, 30, 12]),
    "an empty span": ([S[0], S[1], 30], [10, 11, 30, 12]),
    "a missing span: its sentinel stays": ([S[0], 20], [10, 20, 11, S[1], 12]),
    "empty": ([], [10, S[0], 11, S[1], 12]),
    "repeated: the first counts": ([S[0], 20, S[1], 30, S[0], 40, S[1], 41], [10, 20, 11, 30, 12]),
    "tokens before the first sentinel are dropped": ([20, S[0], 21, S[1], 30], [10, 21, 11, 30, 12]),
    "more spans than sentinels in the prompt": ([S[0], 20, S[1], 30, S[2], 40, S[4]], [10, 20, 11, 30, 12]),
}


@pytest.mark.parametrize(("answer", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_replaces_the_sentinels_of_its_prompt(answer, expected):
    text = np.array([10, S[0], 11, S[1], 12], np.int32)
    filled = replace_sentinels(text, spans_by_sentinel(np.array(answer, np.int32), VOCAB), VOCAB)
    assert filled.tolist() == expected


def test_inputs_and_targets_of_training_complete_to_the_text():
    """The inputs of span corruption as a prompt, and its targets as the answer."""
    experiment = tiny_experiment("span_corruption", "encoder_decoder")
    tokens, windows = window(experiment, denoiser_id=0)
    inputs, targets = experiment.collate.examples(windows)[:2]
    prompt, _ = read_prompt(experiment, experiment.tokenizer.decode(inputs.tokens[0, : inputs.lengths[0] - 1]), None)
    answer = targets.tokens[0, : targets.lengths[0] - 1]
    assert len(spans_by_sentinel(answer, experiment.vocab)) > 1
    assert prompt.prompting.complete(prompt.text, answer, experiment.vocab).tolist() == tokens.tolist()


def window(experiment, denoiser_id: int):
    """Random ASCII tokens, as many as a window of the denoiser has, and the window."""
    length = experiment.window_specs[denoiser_id].raw_length
    tokens = np.random.default_rng(denoiser_id).integers(3 + 97, 3 + 123, length).astype(np.int32)
    keys, row_ids = np.array([11], np.uint64), np.zeros(1, np.int32)
    return tokens, Windows(tokens[None], np.array([length]), row_ids, keys, np.array([denoiser_id], np.int32))


BART = {"name": "bart", **VARIANTS["text_infilling"]}
IID = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0}
FIM = {"name": "fim", "fim_rate": 1.0, "spm_rate": 0.0, "min_document_length": 8}
LAYOUTS = {
    "clm": ("clm", {}),
    "prefix_lm": ("prefix_lm", {}),
    "span_corruption": ("span_corruption", {}),
    "ul2": ("ul2", {}),
    "bart": (BART | {"mask_rate": 0.3, "permute_sentences": 1.0, "mask_random": 0.0}, {}),
    "deshuffling": ({"name": "deshuffling"}, {}),
    "mass-style": (IID | {"inputs": "sentinels", "targets": "full"}, {}),
}


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize(("objective", "data"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_prompt_is_laid_out_as_in_training(objective, data, architecture):
    """The text of a training row's inputs, as a prompt, gives that row up to the first target."""
    experiment = tiny_experiment(objective, architecture, data=data)
    for denoiser_id, denoiser in enumerate(experiment.denoisers):
        tokens, windows = window(experiment, denoiser_id)
        row = experiment.collate(windows, 1)
        inputs = sequence(experiment.collate.examples(windows).inputs)
        if objective == "clm":
            text, num_targets = tokens[:5], 5
        else:
            num_added = 1 + getattr(denoiser.objective, "sentinel", False)  # EOS, and the sentinel before it
            text, num_targets = inputs[len(denoiser.mode) // 3 : -num_added], 0
        prompt, notes = read_prompt(experiment, experiment.tokenizer.decode(text), denoiser.mode or None)
        assert prompt.denoiser == denoiser and notes == []
        assert prompt.inputs.tolist() == inputs

        batch = prompt_batch(experiment, [prompt] * 2)
        check_batch(batch, architecture)
        decoder_width = num_targets + 1 if experiment.model.has_encoder else len(inputs) + num_targets + 1
        for name, field in batch.items():
            if name in ("decoder_target_tokens", "decoder_loss_weights", "example_source"):
                continue  # these depend on the answer
            width = 48 if name.startswith("encoder") else decoder_width
            assert field.tolist() == [row[name][0, :width].tolist()] * 2, name


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_a_hole_in_the_middle_is_laid_out_as_in_training(architecture):
    """A PSM row up to <mid>, as a prompt with a sentinel in place of the middle, and the middle as its answer."""
    experiment = tiny_experiment(FIM, architecture, data={"documents": "split"})
    tokens, windows = window(experiment, denoiser_id=0)
    windows = windows._replace(keys=np.array([3], np.uint64))  # the cuts of this key leave no part empty
    targets = sequence(experiment.collate.examples(windows).targets)
    pre, suf, mid = (targets.index(experiment.vocab.sentinel(k)) for k in range(3))
    prefix, suffix, middle = targets[pre + 1 : suf], targets[suf + 1 : mid], targets[mid + 1 : -1]
    assert prefix and suffix and middle
    decode, hole = experiment.tokenizer.decode, "<extra_id_0>"
    prompt, notes = read_prompt(experiment, decode(prefix) + hole + decode(suffix), None)
    assert notes == [] and prompt.inputs.tolist() == [] and prompt.targets_start.tolist() == targets[: mid + 1]
    assert prompt.prompting.complete(prompt.text, np.array(middle), experiment.vocab).tolist() == tokens.tolist()
    prompt, _ = read_prompt(experiment, "ab", None)
    assert prompt.targets_start.tolist() == [100, 101]
    assert prompt.prompting.complete(prompt.text, np.array([50]), experiment.vocab).tolist() == [100, 101, 50]


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("inputs_eos", [False, True])
def test_a_prompt_of_a_fine_tuned_model_is_laid_out_as_in_training(inputs_eos, architecture):
    """The prompt of a pair gives the pair's row up to the response, and completed with the response the pair."""
    data = {"documents": "whole", "bidirectional_inputs": False}
    experiment = tiny_experiment({"name": "sft", "inputs_eos": inputs_eos}, architecture, data=data)
    tokens, windows = window(experiment, denoiser_id=0)
    windows = windows._replace(prompt_lengths=np.array([5], np.int32))
    prompt, notes = read_prompt(experiment, experiment.tokenizer.decode(tokens[:5]), None)
    inputs = sequence(experiment.collate.examples(windows).inputs)
    assert notes == [] and prompt.inputs.tolist() == inputs and len(inputs) == 5 + inputs_eos
    row, batch = experiment.collate(windows, 1), prompt_batch(experiment, [prompt])
    for name in set(batch) - {"decoder_target_tokens", "decoder_loss_weights", "example_source"}:
        width = 48 if name.startswith("encoder") else 1 if experiment.model.has_encoder else len(inputs) + 1
        assert batch[name].tolist() == row[name][:, :width].tolist(), name
    assert prompt.prompting.complete(prompt.text, tokens[5:], experiment.vocab).tolist() == tokens.tolist()


def test_a_prompt_without_a_mode_gets_the_mode_of_the_first_suitable_denoiser():
    experiment = tiny_experiment("ul2", "encoder_decoder")

    def chosen(text, mode=None):
        prompt, notes = read_prompt(experiment, text, mode)
        return prompt.denoiser.name, experiment.tokenizer.decode(prompt.inputs), notes

    note = "denoiser {} reads the prompt, with mode token {}; choose another mode with --mode"
    assert chosen("ab") == ("s", "[S]ab</s>", [note.format("s", "[S]")])
    assert chosen("a<extra_id_0>b") == ("r", "[R]a<extra_id_0>b</s>", [note.format("r", "[R]")])
    assert chosen("a<extra_id_0>b", "[X]") == ("x", "[X]a<extra_id_0>b</s>", [])
    name, inputs, [note] = chosen("ab", "[X]")
    assert (name, inputs) == ("x", "[X]ab<extra_id_0></s>") and "<extra_id_0> was appended to the prompt" in note


def test_a_prompt_with_a_mask_is_for_a_denoiser_that_reads_it_as_one():
    rows = {"lm": {"name": "clm"}, "blank": {"name": "glm", "blanks": "document", "mask_rate": 0.5}}
    rows["blank"] |= {"poisson_lambda": 3.0, "sentence_ends": "stops"}
    rows = {name: row | {"mode": "", "weight": 1.0} for name, row in rows.items()}
    mixture = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": rows}
    fields = small_config("clm", "decoder_only", data__documents="join") | {"objective": mixture}
    experiment = make_experiment(fields)
    assert read_prompt(experiment, "ab[MASK]cd", None)[0].denoiser.name == "blank"
    assert read_prompt(experiment, "ab", None)[0].denoiser.name == "lm"


def test_a_mask_is_refused_where_the_vocabulary_has_none(monkeypatch):
    experiment = tiny_experiment("span_corruption", "encoder_decoder")
    monkeypatch.setattr(experiment.tokenizer, "vocab", dataclasses.replace(experiment.vocab, mask=-1))
    with pytest.raises(
        ConfigError, match=r"^--prompt has \[MASK\], and this run's model fills in sentinels, not masks"
    ):
        read_prompt(experiment, "a[MASK]b<extra_id_0>", None)


def test_text_that_looks_like_a_special_token_is_ordinary_text():
    experiment = tiny_experiment("ul2", "encoder_decoder")
    prompt, [note] = read_prompt(experiment, "[X] <pad></s>", None)
    assert prompt.text.tolist() == [3 + byte for byte in b"[X] <pad></s>"]
    assert note == "[X] in the prompt is read as ordinary text; choose a mode with --mode"
    assert read_prompt(tiny_experiment("clm", "decoder_only"), "[X]", None)[1] == []  # a run without mode tokens
    assert len(read_prompt(tiny_experiment("clm", "decoder_only"), "[MASK]", None)[0].text) == len("[MASK]")


IID = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0}


@pytest.mark.parametrize(
    ("objective", "shown"),
    [
        ({"name": "bart", **VARIANTS["token_masking"]}, ["[MASK]"]),
        ({"name": "bart", **VARIANTS["token_deletion"]}, []),
        ({"name": "bart", **VARIANTS["document_rotation"]}, []),
        ({**IID, "inputs": "drop", "targets": "noise_tokens"}, []),
        ({**IID, "inputs": "sentinels", "targets": "full"}, ["<extra_id_0>"]),
        ({**IID, "inputs": "unique_sentinels", "targets": "full"}, ["<extra_id_0>", "<extra_id_1>"]),
    ],
)
def test_a_model_that_rewrites_reads_the_special_tokens_of_its_training_alone(objective, shown):
    experiment = tiny_experiment(objective, "encoder_decoder")
    prompt, _ = read_prompt(experiment, "".join(["a", *shown]), None)
    assert prompt.text.tolist() == [100, *[experiment.vocab.ids_by_name()[name] for name in shown]]
    for name in {"<extra_id_0>", "[MASK]"} - set(shown):
        assert read_prompt(experiment, name, None)[0].text.tolist() == [3 + byte for byte in name.encode()]


def test_a_continuation_omits_the_leading_sentinel_of_the_answer():
    experiment = tiny_experiment({**PREFIX_LM, "sentinel": True}, "decoder_only")
    vocab = experiment.vocab
    prompt, _ = read_prompt(experiment, "ab", None)
    assert prompt.prompting.complete(prompt.text, np.array([vocab.sentinel(0), 50]), vocab).tolist() == [100, 101, 50]
    assert prompt.prompting.continuation(np.array([50]), vocab).tolist() == [50]
    assert prompt.prompting.continuation(np.array([], np.int32), vocab).tolist() == []


def test_the_maximal_length_of_an_answer_is_what_the_prompt_leaves_of_a_row():
    def max_length(objective, architecture, text, **data):
        experiment = tiny_experiment(objective, architecture, data=data)
        return max_answer_length(experiment, read_prompt(experiment, text, None)[0])

    assert max_length("ul2", "encoder_decoder", "a" * 46) == 48  # with mode token and EOS the encoder is full
    assert max_length("ul2", "decoder_only", "a" * 45) == 1
    assert max_length("clm", "encoder_decoder", "a" * 40) == 8
    assert max_length("clm", "decoder_only", "") == 48
    assert max_length("ul2", "encoder_decoder", "a", targets_length=96) == 96
    # The tokens of a blank have positions of the text, which are fewer.
    mass = make_experiment(small_config("mass", "encoder_decoder", data__inputs_length=48, data__targets_length=96))
    assert max_answer_length(mass, read_prompt(mass, "abc[MASK]", None)[0]) == 48 - 3


INVALID_PROMPTS = {
    "too long": ("ul2", "encoder_decoder", "a" * 47, None, "has 49 tokens.*data.inputs_length=48 allows 48"),
    "too long for an answer": (
        "ul2",
        "decoder_only",
        "a" * 46,
        None,
        "has 48 .*=48, with one position for an answer, ",
    ),
    "empty": ("prefix_lm", "decoder_only", "", None, "--prompt is empty"),
    "numbering": ("ul2", "decoder_only", "<extra_id_1><extra_id_0>", None, "number them <extra_id_0>, <extra_id_1>"),
    "mask": (
        "span_corruption",
        "encoder_decoder",
        "a[MASK]b",
        None,
        "\\[MASK\\], .* masks: write <extra_id_0>, ",
    ),
    "mask and sentinel": ("ul2", "decoder_only", "a[MASK]<extra_id_0>", None, "fills in sentinels, not masks"),
    "mask with another task": ("ul2", "decoder_only", "a[MASK]b", None, "fills in sentinels, not masks"),
    "unknown mode": ("ul2", "decoder_only", "a", "[Q]", "--mode='\\[Q\\]'.*'\\[R\\]', '\\[S\\]', '\\[X\\]'"),
    "no spans": ("clm", "decoder_only", "a<extra_id_0>", None, "this run fills in no spans: remove them$"),
    "not Unicode": ("clm", "decoder_only", "a\udcff", None, "not valid UTF-8 at character 1"),
}


@pytest.mark.parametrize(
    ("objective", "architecture", "text", "mode", "message"), INVALID_PROMPTS.values(), ids=INVALID_PROMPTS
)
def test_invalid_prompts_raise_one_line(objective, architecture, text, mode, message):
    data = {"documents": "split"} if objective == FIM else {}
    experiment = tiny_experiment(objective, architecture, data=data)
    with pytest.raises(ConfigError, match=message) as error:
        max_answer_length(experiment, read_prompt(experiment, text, mode)[0])
    assert "\n" not in str(error.value)


def test_each_mask_has_its_own_probabilities_and_is_filled_with_its_likeliest_token():
    experiment = tiny_experiment("mlm", "encoder_only")
    vocab = experiment.vocab
    text = read_masked_prompt(experiment, "a[MASK]b[MASK]")
    [probabilities] = mask_probabilities(experiment, random_params(experiment), [text])
    assert probabilities.shape == (2, experiment.model.vocab_size)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert not probabilities[:, [vocab.pad, *range(vocab.size, experiment.model.vocab_size)]].any()
    assert (probabilities[0] != probabilities[1]).any()
    first, second = likeliest = probabilities.argmax(axis=-1)
    filled = experiment.denoisers[0].objective.prompting.complete(text, likeliest, vocab)
    assert filled.tolist() == [100, first, 101, second]


@pytest.fixture(scope="module", params=[{}, OWN_FLAGS], ids=["with SentencePiece's defaults", "with the flags of docs"])
def pieces(request, tmp_path_factory):
    """An MLM of a SentencePiece model that has whole words."""
    spm = pytest.importorskip("sentencepiece")
    path, model = tmp_path_factory.mktemp("spm") / "words.model", io.BytesIO()
    sentences = ["the quick brown fox jumps", "the lazy dog sleeps", "the quick dog jumps"] * 50
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=320, model_type="bpe", minloglevel=2,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, **request.param,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return tiny_experiment("mlm", "encoder_only", data={"tokenizer": str(path)})


def test_a_filled_mask_has_the_space_of_its_piece(pieces):
    tokenizer, vocab = pieces.tokenizer, pieces.vocab
    words = tokenizer.encode("the quick dog jumps")
    assert [tokenizer.decode(words[k : k + 1], inside=True) for k in (1, 2, 3)] == [" quick", " dog", " jumps"]
    # The masks hide the same pieces as in training, where the space is a part of the word's piece.
    text = read_masked_prompt(pieces, "the [MASK] [MASK] jumps")
    assert text.tolist() == [words[0], vocab.mask, vocab.mask, words[3]]
    probabilities = np.zeros((2, pieces.model.vocab_size), np.float32)
    probabilities[[0, 1], words[1:3]] = 0.75
    assert candidates_line(candidates(tokenizer, probabilities, 1)[0]) == "' quick' 0.750"
    filled = pieces.denoisers[0].objective.prompting.complete(text, probabilities.argmax(axis=-1), vocab)
    assert tokenizer.decode(filled) == "the quick dog jumps"
    # Text after a special token keeps the space of its first piece.
    assert tokenizer.decode(np.array([words[0], vocab.mask, words[2]])) == "the[MASK] dog"
    assert tokenizer.decode(read_masked_prompt(pieces, "[MASK] dog")) == "[MASK] dog"


def test_a_mode_token_moves_the_position_of_the_first_target():
    """MASS writes a fragment at its places in the inputs, before which the mode token is."""
    experiment = tiny_experiment("ul2", "encoder_decoder")
    tokens = PromptTokens(np.array([7, 8, 9], np.int32), np.zeros(0, np.int32), 2)
    for mode, position in (("[R]", 3), ("", 2)):
        denoiser = types.SimpleNamespace(mode=mode)
        inputs, start, found, _ = with_mode(denoiser, tokens, experiment.vocab)
        assert (len(inputs), found) == (3 + bool(mode), position)
        assert first_position(experiment, Prompt(denoiser, inputs, inputs, start, found)) == position
