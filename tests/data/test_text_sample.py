"""A sample of text is of the training side of the split that a run makes, random, and bounded."""

import dataclasses
import json

import numpy as np
import pytest

from contract.errors import ConfigError
from data.sources import Part, Source, open_source
from data.sources.filters import OFF
from data.sources.source import RawDocument
from data.tokenizers.tokenizer import make_tokenizer
from data.train_tokenizer import draw_samples
from data.windows.split import Split, split_documents
from tests.data.corpus import corpus_config, opened, read, write_texts


def samples(corpus, split):
    return draw_samples(open_source(corpus), split, corpus.filters, seed=0, max_bytes=(10**9, 10**9))


def sides(corpus, split):
    """The texts of the two sides of a run's split, each in the order of the store."""
    tokenizer = make_tokenizer(corpus)
    for documents in split_documents(opened(corpus, progress=False), split):
        index = sorted(range(len(documents)), key=lambda i: documents.index[i])
        yield [tokenizer.decode(documents.tokens(i)) for i in index]


def corpus_of(kind, tmp_path):
    """Of every fifth text the filters remove all paragraphs, and of others the numbers."""
    texts = [f"document {k}\n\n{k * k}\n\nits end {k % 7}".replace(" ", " # " * (k % 5 == 0) or " ") for k in range(60)]
    filters = dataclasses.replace(OFF, min_characters=8, max_symbol_fraction=0.3)
    if kind in ("pairs", "labels"):
        # Responses to one prompt are on one side, with text that is in no other document.
        pairs = [{"prompt": f"prompt {k // 3}, ", "response": f"response {k}" + " #" * (k % 5)} for k in range(60)]
        labelled = [{"text": text, "label": f"l{k % 9}"} for k, text in enumerate(texts)]
        (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, pairs if kind == "pairs" else labelled)))
        return corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "c.jsonl"), filters=filters)
    one_file = ["\n\n".join(texts)]
    write_texts(tmp_path, {"one file": one_file, "one file left": [*one_file, "short\n\n#"]}.get(kind, texts))
    write_texts(tmp_path / "other", ["other 1", "#"])
    other = str(tmp_path / "other") if kind == "held-out path" else ""
    per = "file" if kind in ("files", "held-out path") else "paragraph"
    return corpus_config(tmp_path, document_per=per, heldout_path=other, filters=filters)


@pytest.mark.parametrize(
    "kind", ["files", "paragraphs", "one file", "one file left", "pairs", "labels", "held-out path"]
)
@pytest.mark.parametrize("fraction", [0.001, 0.3])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_the_sides_are_those_of_a_run(kind, fraction, is_filtered, tmp_path):
    corpus = corpus_of(kind, tmp_path)
    corpus = corpus if is_filtered else dataclasses.replace(corpus, filters=OFF)
    split = Split(fraction, 5, "label" if kind == "labels" else "auto")
    num_read = 0
    for sample, expected in zip(samples(corpus, split), sides(corpus, split), strict=True):
        assert list(map("".join, sample)) == expected  # the prompt and the response
        num_read += len(expected)
    assert (num_read < len(read(corpus)[0])) == is_filtered


def source_of(texts):
    """A source of one file per text."""

    def documents(_):
        for k, text in enumerate(texts):
            yield RawDocument(f"{k}", text, file_digest=k * 0x9E3779B97F4A7C15 % 2**64)

    return Source("data.path='x'", {}, "file", (Part("x", 0, documents),))


def test_a_sample_is_random_deterministic_and_as_large_as_its_limits():
    texts, split = [f"{k:05}" * 2 for k in range(3000)], Split(0.1, 0, "auto")

    def draw(seed, most):
        sample, _ = draw_samples(source_of(texts), split, OFF, seed=seed, max_bytes=(most, 10**9))
        return [text for document in sample for text in document]

    sample = draw(0, 995)
    assert len(set(sample)) == 100 and sample == sorted(sample), "the document that reaches it"
    assert sample == draw(0, 1000) != draw(1, 1000) and len(draw(0, 1)) == 1
    assert set(draw(0, 500)) < set(sample), "a smaller sample is a part of a larger one"
    places = np.array([int(text[:5]) for seed in range(10) for text in draw(seed, 1000)])
    assert abs(places.mean() - 1500) < 110, "uniform: four standard errors"


def test_a_corpus_that_cannot_be_split_is_refused_as_in_a_run(tmp_path):
    write_texts(tmp_path, ["only one"])
    with pytest.raises(ConfigError, match=r"nothing can be held out: data\.split_by='document' needs two different"):
        samples(corpus_config(tmp_path), Split(0.1, 0, "auto"))
    with pytest.raises(ConfigError, match=r"data\.heldout_fraction=1\.0 must lie between 0 and 1"):
        samples(corpus_config(tmp_path), Split(1.0, 0, "auto"))
    write_texts(tmp_path, ["  ", "\n"])
    with pytest.raises(ConfigError, match=r"text' contains no document with text to train .*skipped [12] empty doc"):
        (tmp_path / "text" / "000.txt").write_text(" ")
        samples(corpus_config(tmp_path), Split(0.1, 0, "auto"))
    write_texts(tmp_path, ["a", "b"])
    (tmp_path / "text" / "000.txt").write_text("a")
    filters = dataclasses.replace(OFF, min_characters=100)
    with pytest.raises(ConfigError, match=r"to train a tokenizer on that data\.filters leaves"):
        samples(corpus_config(tmp_path, filters=filters), Split(0.1, 0, "auto"))
