"""A sample of text is of the training side of the split that a run makes, random, and bounded."""

import dataclasses
import json

import numpy as np
import pytest

from contract.errors import ConfigError
from data.prepare.text_sample import Limits, draw_samples
from data.sources import Part, Source, open_source
from data.sources.filters import OFF
from data.sources.source import RawDocument
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, split_documents
from tests.data.corpus import corpus_config, opened, read, write_texts

ALL = Limits(max_bytes=10**9, num_documents=10**9)


def samples(corpus, split, **changes):
    arguments = {"seed": 0, "train": ALL, "heldout": ALL, "has_heldout_text": bool(corpus.heldout_path)} | changes
    return draw_samples(open_source(corpus), split, corpus.filters, **arguments)


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
        parts = 2 if kind == "pairs" else 1  # the prompt and the response
        texts = ["".join(sample.texts[k : k + parts]) for k in range(0, len(sample.texts), parts)]
        assert texts == expected
        assert sample.is_whole and sample.num_documents == len(expected)
        assert sample.num_bytes == sum(len(text.encode()) for text in expected)
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

    def draw(seed, **limits):
        limits = Limits(**({"max_bytes": 10**9, "num_documents": 10**9} | limits))
        arguments = {"seed": seed, "train": limits, "heldout": ALL, "has_heldout_text": False}
        return draw_samples(source_of(texts), split, OFF, **arguments)[0]

    sample = draw(0, max_bytes=995)
    assert (sample.num_documents, sample.num_bytes, sample.is_whole) == (100, 1000, False), (
        "the document that reaches it"
    )
    assert sample == draw(0, num_documents=100) == draw(0, num_documents=100, max_bytes=2000)
    assert sample.texts == sorted(sample.texts) and len(set(sample.texts)) == 100
    assert sample.texts != draw(1, num_documents=100).texts
    assert draw(0, max_bytes=1).num_documents == 1
    assert set(draw(0, num_documents=50).texts) < set(sample.texts), "a smaller sample is a part of a larger one"
    places = np.array([int(text[:5]) for seed in range(10) for text in draw(seed, num_documents=100).texts])
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
