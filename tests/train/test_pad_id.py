"""Tokenizers without a pad id, such as Llama's, get one: a row added to the vocabulary, which is never generated."""

import json

import numpy as np
import pytest

from contract.batch import check_batch
from data.tokenizers.tokenizer import SentencePieceTokenizer
from run.compiled_run import make_run
from tests.data.test_tokenizer import LLAMA_LIKE, train_model
from tests.table import reads_corpus, small_experiment
from tests.train.subprocesses import run_main
from train.loop import train_and_evaluate


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("spm") / "llama.model", **LLAMA_LIKE)


def experiment_of(name, architecture, llama_like, corpus, folder):
    """A small experiment with that tokenizer, whose pieces the corpus has."""
    lengths = {"data__inputs_length": 96, "data__targets_length": 96}
    overrides = reads_corpus(name, corpus) | lengths | {"data__tokenizer": llama_like}
    if name == "sft":  # the prompts of the tests' pairs are whitespace, which SentencePiece drops
        pairs = [{"prompt": f"the fox {n}", "response": f"the lazy dog {n % 7}"} for n in range(60)]
        (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        overrides["data__path"] = str(folder / "pairs.jsonl")
    return small_experiment(name, architecture, **overrides)


def num_pieces(llama_like):
    return SentencePieceTokenizer(llama_like, num_sentinels=0, mode_tokens=())._model.get_piece_size()


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("sft", "decoder_only"), ("ul2", "encoder_decoder"), ("mlm", "encoder_only"), ("clm", "decoder_only")],
)
def test_padding_alone_has_the_added_pad_id(name, architecture, llama_like, corpus, tmp_path):
    experiment = experiment_of(name, architecture, llama_like, corpus, tmp_path)
    vocab, run = experiment.vocab, make_run(experiment, show_progress=False)
    assert vocab.pad == num_pieces(llama_like) and experiment.model.vocab_size >= vocab.size
    made = run.train_batches(0)
    for batch in (next(made) for _ in range(3)):
        check_batch(batch, architecture)
        for field in (field for field in batch if field.endswith("_tokens")):
            tokens = batch[field]
            assert (tokens >= 0).all() and (tokens < vocab.size).all(), field
            if field != "decoder_input_tokens":  # which begin with pad
                is_padding = batch[field.split("_")[0] + "_segment_ids"] == 0
                np.testing.assert_array_equal(tokens == vocab.pad, is_padding, err_msg=field)


def test_a_run_trains_and_its_model_never_writes_the_added_pad(llama_like, corpus, tmp_path, capsys):
    train_and_evaluate(experiment_of("clm", "decoder_only", llama_like, corpus, tmp_path), str(tmp_path))
    out = capsys.readouterr().out
    added = f"padding  id {num_pieces(llama_like)}, a row added to the vocabulary: {llama_like} has no pad id"
    assert added in out and "done: 2 steps" in out
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["loss"]) for line in lines)
    status, stdout, stderr = run_main(
        f"--workdir={tmp_path}", "--prompt=def f", "--max_tokens=40", "--temperature=100", module="train.generate"
    )
    assert status == 0, stderr
    assert stdout.startswith("def f") and "<pad>" not in stdout
