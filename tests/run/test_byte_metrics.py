"""Bits per byte are named after the tokens that they score, and the shares that they do not cover are metrics."""

import math
import pathlib

import numpy as np
import pytest

from data.windows.corpus_statistics import HELDOUT_TOKENS, trigram_loss
from evaluation.__main__ import evaluate
from run.compiled_run import make_run
from tests.learners.row_learners import params_of
from tests.table import reads_corpus, small_experiment
from train.summary import count_text, summary_lines


def run_of(corpus, name, **overrides):
    fields = reads_corpus(name, corpus) | {"data__inputs_length": 96} | overrides
    return make_run(small_experiment(name, "decoder_only", **fields), show_progress=False)


def evaluated(run):
    return evaluate(run, params_of(run.experiment.learner))


def scored(run):
    """The scored targets of the held-out batches, int [n]."""
    batches = [run.heldout.batches[n] for n in range(run.heldout.batches.end)]
    return np.concatenate([b["decoder_target_tokens"][b["decoder_loss_weights"] > 0] for b in batches])


@pytest.fixture(scope="module")
def lossy(corpus, tmp_path_factory):
    """A SentencePiece model trained as the error message advised before: it loses characters and line ends."""
    spm = pytest.importorskip("sentencepiece")
    prefix = str(tmp_path_factory.mktemp("spm") / "m")
    text = sorted((corpus / "text").glob("*.txt"))[0].read_text().replace("e", "").split("\n")
    flags = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(text), model_prefix=prefix, vocab_size=300, **flags)
    return f"{prefix}.model"


@pytest.mark.parametrize("name", ["clm", "multi_token_prediction", "fim"])
def test_bits_per_byte_of_reordered_text_with_sentinels_have_another_name(corpus, name):
    run = run_of(corpus, name)
    metrics, targets = evaluated(run), scored(run)
    is_text = np.isin(targets, np.arange(3, 259)) | (targets == run.experiment.vocab.eos)
    assert is_text.all() == (name != "fim")
    expected, other = ("bits_per_byte", "fim_bits_per_byte")[:: 1 if is_text.all() else -1]
    assert expected in metrics and other not in metrics
    num_bytes = np.isin(targets, np.arange(3, 259)).sum()
    assert metrics[expected] == pytest.approx(metrics["loss"] * len(targets) / math.log(2) / num_bytes, rel=1e-5)
    assert metrics["bytes_covered"] == 1.0 and metrics["unknown_fraction"] == 0.0


def test_objectives_that_score_a_part_of_the_text_have_no_bits_per_byte(corpus):
    metrics = evaluated(run_of(corpus, "prefix_lm"))
    assert not [name for name in metrics if "byte" in name] and metrics["unknown_fraction"] == 0.0


def test_unknown_tokens_and_bytes_that_no_token_spells_are_metrics(corpus, lossy):
    run = run_of(corpus, "clm", data__tokenizer=lossy)
    metrics, targets, vocab = evaluated(run), scored(run), run.experiment.vocab
    assert metrics["unknown_fraction"] == pytest.approx((targets == vocab.unk).mean(), rel=1e-6) and targets.size
    assert metrics["unknown_fraction"] > 0.02
    documents, tokenizer = run.corpora.heldout_documents, run.experiment.tokenizer
    texts = [pathlib.Path(documents.name(i)).read_text(encoding="utf-8") for i in range(len(documents))]
    spelled = sum(tokenizer.num_bytes(tokenizer.encode(text)) - 1 for text in texts)  # a space before each text
    assert metrics["bytes_covered"] == pytest.approx(spelled / sum(len(text.encode()) for text in texts), rel=1e-9)
    assert metrics["bytes_covered"] < 0.95


@pytest.mark.parametrize("documents", ["join", "pack"])
def test_bits_per_byte_do_not_count_the_space_that_sentencepiece_puts_before_a_text(corpus, tmp_path, documents):
    spm = pytest.importorskip("sentencepiece")
    (tmp_path / "lines.txt").write_text("".join(f"the quick fox{' jumps' * (i % 30)} {i}\n" for i in range(400)))
    flags = "--pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1 --byte_fallback=true --normalization_rule_name=identity "
    flags += "--remove_extra_whitespaces=false --vocab_size=300 --hard_vocab_limit=false --minloglevel=2"
    spm.SentencePieceTrainer.train(f"--input={tmp_path}/lines.txt --model_prefix={tmp_path}/m {flags}")
    fields = {"data__path": f"{tmp_path}/lines.txt", "data__document_per": "line", "data__documents": documents}
    for count in (0, 3):
        run = run_of(corpus, "clm", **fields, data__tokenizer=f"{tmp_path}/m.model", train__eval_windows=count)
        metrics, targets, store = evaluated(run), scored(run), run.corpora.each[0].store
        places = run.heldout.places(10**6)
        assert sorted(targets) == sorted(store.tokens[places])
        # Each document whose first token is scored has one space more in its tokens than in its text.
        begun = np.isin(places, store.offsets[run.corpora.heldout_documents.index]).sum()
        num_bytes = run.experiment.tokenizer.num_bytes(targets) - begun
        assert count or num_bytes == store.text_bytes[run.corpora.heldout_documents.index].sum()
        bits = metrics["loss"] * len(targets) / math.log(2)
        assert metrics["bits_per_byte"] == pytest.approx(bits / num_bytes, rel=1e-5)
        assert metrics["bytes_covered"] == 1.0


def test_the_summary_says_what_the_tokens_cover_what_is_copied_and_what_a_trigram_model_reaches(corpus, lossy):
    run = run_of(corpus, "clm", data__tokenizer=lossy)
    lines = summary_lines(run, "runs/x")
    [text] = run.corpora.each
    unknown = (text.store.tokens == run.experiment.vocab.unk).sum() / text.store.unigram_counts.sum()
    assert lines["tokens"].startswith(f"{unknown:.2%} of the corpus's tokens are unknown; the tokens spell ")
    assert lines["copies"] == str(text.overlap) and lines["copies"].startswith(
        f"of {len(run.corpora.heldout_documents)} held-out documents, 0 are identical"
    )
    places = run.heldout.places(HELDOUT_TOKENS)
    loss = trigram_loss(run.corpora.train_documents, places, 1)
    assert len(places) == len(scored(run)) == run.heldout.num_raw_tokens.sum()
    assert lines["trigram"].startswith(f"{loss.nats:.3f} nats per token")
    assert lines["trigram"].endswith(f" bits: a trigram model ({count_text(loss.train_tokens)} training tokens)")
    assert "trigram" not in summary_lines(run_of(corpus, "classification"), "")
