"""The pad id may be any id of the vocabulary, and tokenizers without one, such as Llama's, get one."""

import dataclasses
import json

import numpy as np
import pytest

from contract.batch import check_batch
from data.tokenizers.tokenizer import SentencePieceTokenizer
from run.compiled_run import make_run
from tests.data.test_tokenizer import LLAMA_LIKE, train_model
from tests.table import CASES, random_windows, reads_corpus, small_experiment
from tests.train.subprocesses import run_main
from train.loop import train_and_evaluate


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_batches_contain_the_vocabularys_pad_and_no_other(name, architecture):
    experiment = small_experiment(name, architecture)
    collate, vocab = experiment.collate, experiment.vocab
    swapped = dataclasses.replace(vocab, pad=vocab.unk, unk=vocab.pad)
    windows = random_windows(experiment, 12, same_keys=False)
    expected = collate(windows, 12)
    batch = dataclasses.replace(collate, vocab=swapped)(windows, 12)
    check_batch(batch, architecture)
    for field, array in expected.items():
        if field.endswith("_tokens"):
            assert not (array == vocab.unk).any()
            array = np.where(array == vocab.pad, swapped.pad, array)
        np.testing.assert_array_equal(batch[field], array, err_msg=field)


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("spm") / "llama.model", **LLAMA_LIKE)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("sft", "decoder_only"), ("ul2", "encoder_decoder"), ("mlm", "encoder_only"), ("clm", "decoder_only")],
)
def test_a_model_without_a_pad_id_trains(name, architecture, llama_like, corpus, tmp_path, capsys):
    overrides = {
        "data__tokenizer": llama_like,
        "train__steps": 3,
        "data__inputs_length": 96,
        "data__targets_length": 96,
    }
    if name == "sft":  # the prompts of the tests' pairs are whitespace, which SentencePiece drops
        pairs = [{"prompt": f"the fox {n}", "response": f"the lazy dog {n % 7}"} for n in range(60)]
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        overrides["data__path"] = str(tmp_path / "pairs.jsonl")
    experiment = small_experiment(name, architecture, **reads_corpus(name, corpus) | overrides)
    vocab, run = experiment.vocab, make_run(experiment, show_progress=False)
    pieces = SentencePieceTokenizer(llama_like, num_sentinels=0, mode_tokens=())._model.get_piece_size()
    assert vocab.pad == pieces and experiment.model.vocab_size >= vocab.size
    made = run.train_batches(0)
    for batch in (next(made) for _ in range(3)):
        check_batch(batch, architecture)
        for field in (field for field in batch if field.endswith("_tokens")):
            tokens = batch[field]
            assert (tokens >= 0).all() and (tokens < vocab.size).all(), field
            if field != "decoder_input_tokens":  # which begin with pad
                is_padding = batch[field.split("_")[0] + "_segment_ids"] == 0
                np.testing.assert_array_equal(tokens == vocab.pad, is_padding, err_msg=field)

    train_and_evaluate(experiment, str(tmp_path))
    out = capsys.readouterr().out
    assert f"   padding  id {pieces}, a row added to the vocabulary: {llama_like} has no pad id" in out
    assert "done: 3 steps" in out
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 2, 3]
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_a_tokenizer_with_a_pad_id_adds_none(corpus, tmp_path, capsys):
    train_and_evaluate(small_experiment("clm", "decoder_only", **reads_corpus("clm", corpus)), str(tmp_path))
    assert "padding" not in capsys.readouterr().out


def test_generation_never_draws_the_added_pad(llama_like, corpus, tmp_path):
    overrides = {"data__tokenizer": llama_like, "data__inputs_length": 96}
    experiment = small_experiment("clm", "decoder_only", **reads_corpus("clm", corpus), **overrides)
    train_and_evaluate(experiment, str(tmp_path))
    status, stdout, stderr = run_main(
        f"--workdir={tmp_path}", "--prompt=def f", "--max_tokens=40", "--temperature=100", module="train.generate"
    )
    assert status == 0, stderr
    assert stdout.startswith("def f") and "<pad>" not in stdout
