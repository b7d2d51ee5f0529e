"""Vocabularies without appended special tokens, and models' own: what trains, what is refused, how it is prompted."""

import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from generate.fill_masks import read_masked_prompt
from generate.prompts import read_prompt
from generate.sampling import allowed_tokens
from tests.data import tiny_tokenizers
from tests.table import random_windows, reads_corpus, small_experiment
from tests.train.tiny_experiments import tiny_experiment
from train.loop import train_and_evaluate


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    pytest.importorskip("tokenizers")
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in tiny_tokenizers.KINDS.items()}


def test_pad_is_eos_where_there_is_no_other(folders, corpus, tmp_path, capsys):
    overrides = {"data__tokenizer": folders["gpt2"], "data__append_special_tokens": False, "data__documents": "split"}
    experiment = small_experiment("clm", "decoder_only", **reads_corpus("clm", corpus), **overrides)
    vocab = experiment.vocab
    assert vocab.pad == vocab.eos == vocab.size - 1 == 300
    allowed = np.asarray(allowed_tokens(vocab, experiment.model.vocab_size))
    assert allowed.sum() == vocab.size and allowed[vocab.eos], "EOS may be generated though it is pad"
    train_and_evaluate(experiment, str(tmp_path))
    out = capsys.readouterr().out
    assert "padding  id 300, which is EOS: data.append_special_tokens=False adds no pad id" in out
    assert "done: 2 steps" in out


@pytest.mark.parametrize("name", ["span_corruption", "iid_denoising:iid_15_m_f", "fim", "ul2"])
def test_batches_contain_the_sentinels_of_the_model(folders, name):
    overrides = {"data__tokenizer": folders["t5"], "data__num_sentinels": 10}
    append = name == "ul2"  # whose mode tokens the model lacks
    experiment = small_experiment(name, "encoder_decoder", **overrides, data__append_special_tokens=append)
    vocab = experiment.vocab
    assert vocab.sentinel(0) == vocab.content_end + 9, "as in T5, the first sentinel has the highest id of the model"
    batch = experiment.collate(random_windows(experiment, 12, same_keys=False), 12)
    check_batch(batch, "encoder_decoder")
    used = np.intersect1d(batch["decoder_target_tokens"], vocab.sentinels)
    if name == "iid_denoising:iid_15_m_f":  # the inputs alone have sentinels, all of them the first
        used = np.intersect1d(batch["encoder_input_tokens"], vocab.sentinels)
        assert used.tolist() == [vocab.sentinel(0)]
    assert used.tolist() == sorted(vocab.sentinel_ids[: len(used)]) and len(used)


def test_prompts_accept_the_general_name_and_the_models_own(folders):
    experiment = tiny_experiment("mlm", "encoder_only", data={"tokenizer": folders["roberta"]})
    mask, a = experiment.vocab.mask, experiment.tokenizer.encode("a").tolist()
    for text in ("a[MASK]a", "a<mask>a"):
        assert read_masked_prompt(experiment, text).tolist() == [*a, mask, *a]
    assert mask not in read_masked_prompt(experiment, "[MASK]<s></s>")[1:], "only masks are special in a prompt"
    with pytest.raises(ConfigError, match=r"--prompt has no <mask>, and this run's model fills in masks"):
        read_masked_prompt(experiment, "a")


def test_sentinels_in_prompts(folders):
    data = {"tokenizer": folders["t5"], "num_sentinels": 10}
    experiment = tiny_experiment("span_corruption", "encoder_decoder", data=data)
    vocab = experiment.vocab
    prompt, notes = read_prompt(experiment, "the<extra_id_0>fox<extra_id_1>", None)
    assert [id_ for id_ in prompt.inputs.tolist() if id_ in vocab.sentinel_ids] == list(vocab.sentinel_ids[:2])
    assert not notes
    answer = np.array([vocab.sentinel(1), 5, vocab.sentinel(0), 6], np.int32)
    completed = prompt.prompting.complete(prompt.text, answer, vocab)
    assert completed.tolist()[-1] == 5 and 6 in completed and not np.isin(completed, vocab.sentinels).any()


def test_a_prompt_for_a_vocabulary_without_special_tokens(folders):
    data = {"tokenizer": folders["gpt2"], "append_special_tokens": False}
    experiment = tiny_experiment("clm", "decoder_only", data=data)
    prompt, _ = read_prompt(experiment, "a[MASK]", None)
    assert prompt.text.tolist() == experiment.tokenizer.encode("a[MASK]").tolist()
