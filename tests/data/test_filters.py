"""Filters measure what the papers define, remove what the fields say, and leave the rest of the store as it is."""

import dataclasses
import itertools
import json
import random

import pytest

from contract.errors import ConfigError
from data.sources.filters import (
    OFF,
    duplicate_line_fraction,
    duplicate_ngram_fraction,
    mean_word_length,
    punctuated_line_fraction,
    symbol_fraction,
)
from tests.data.corpus import corpus_config, opened, store_of, write_texts


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [
        (mean_word_length, "ab  abcd\nü", 7 / 3),
        (mean_word_length, " \n", 0),
        (symbol_fraction, "# a ... b\u2026 c", 2 / 5),
        (symbol_fraction, "# # b\u2026 c", 2 / 4),
        (symbol_fraction, "", 0),
        (punctuated_line_fraction, 'one.\n\n two! \nthree\n"four"\nfive,', 3 / 5),
        (punctuated_line_fraction, "\n", 0),
        (duplicate_line_fraction, "a\nb\n\na\n a \n", 2 / 4),
        (duplicate_ngram_fraction, "a b c d e", 0),
        (duplicate_ngram_fraction, "\u00fc\u3000b\u00a0c d e x \u00fc b c d e", 10 / 11),
        (duplicate_ngram_fraction, "a b c d e \u00fc\u00fc a b c d e", 10 / 12),
        (duplicate_ngram_fraction, "a b c d e x a b c d e", 10 / 11),
        (duplicate_ngram_fraction, "aa bb cc dd ee x aa bb cc dd ee", 20 / 21),
        (duplicate_ngram_fraction, "a a a a a a a", 1),
    ],
)
def test_measures_by_hand(measure, text, value):
    assert measure(text) == pytest.approx(value)


def filtered(tmp_path, texts, **fields):
    """The texts of the store, by the last part of the files' names, and the store."""
    changes = {name: fields.pop(name) for name in ("heldout_path", "document_per", "cache_dir") if name in fields}
    store = store_of(tmp_path, texts, filters=dataclasses.replace(OFF, **fields), **changes)
    return [int(store.names[k].rpartition("/")[2][:3]) for k in store.name_ids], store


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"min_characters": 8}, [0, 2, 3]),
        ({"max_characters": 8}, [1, 3]),
        ({"min_tokens": 9}, [0, 2]),
        ({"max_tokens": 7}, [1]),
        ({"min_mean_word_length": 3.0}, [0, 2]),
        ({"max_mean_word_length": 3.7}, [0, 1, 3]),
        ({"max_symbol_fraction": 0.2}, [0, 1, 2]),
        ({"min_punctuated_line_fraction": 1.0}, [0, 3]),
        ({"max_duplicate_line_fraction": 0.3, "min_characters": 3}, [0, 2, 3]),
    ],
)
def test_each_field_removes_its_documents(tmp_path, fields, kept):
    texts = ["one two four.", "a\na", "abcdefghijkl", "a # b c."]
    numbers, store = filtered(tmp_path, texts, **fields)
    assert numbers == kept
    removed = store.meta["removed"]
    assert sum(counts["documents"] for counts in removed.values()) == 4 - len(kept) and set(removed) <= set(fields)
    assert sum(counts["bytes"] for counts in removed.values()) + store.meta["num_bytes"] == sum(map(len, texts))


WORDS = [f"w{k}" for k in range(400)]
LONG, OTHER = " ".join(WORDS[:200]), " ".join(WORDS[200:])
NEAR = LONG.replace(" w7 ", " x7 ")
NEARLY = NEAR.replace(" w90 ", " x90 ").replace(" w150 ", " x150 ")
TEXTS = [LONG, OTHER, NEAR, LONG, "short", NEARLY, "short", OTHER + " end"]


@pytest.mark.parametrize(
    ("choice", "jaccard", "kept"),
    [
        ("none", 0.8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("exact", 0.8, [0, 1, 2, 4, 5, 7]),
        ("near", 0.8, [0, 1, 4]),
        ("near", 0.94, [0, 1, 4, 5]),
        ("near", 1.0, [0, 1, 2, 4, 5, 7]),
    ],
)
def test_the_first_of_copies_stays(tmp_path, choice, jaccard, kept):
    numbers, store = filtered(tmp_path, TEXTS, remove_duplicates=choice, jaccard=jaccard)
    assert numbers == kept
    # What remains is the store of the files that remain.
    write_texts(tmp_path / "rest", [TEXTS[k] for k in kept])
    rest = opened(corpus_config(tmp_path / "rest"))
    assert rest.content_digest == store.content_digest
    for name in ("tokens.bin", "duplicate_ids.npy", "near_duplicate_pairs.npy", "unigram_counts.npy", "text_bytes.npy"):
        assert (rest.folder / name).read_bytes() == (store.folder / name).read_bytes()


def test_heldout_text_of_the_corpus_is_not_filtered(tmp_path):
    write_texts(tmp_path / "held", ["out", "out", LONG])
    options = {"heldout_path": str(tmp_path / "held" / "text"), "min_characters": 10, "remove_duplicates": "exact"}
    _, store = filtered(tmp_path, [LONG, "train"], **options)
    assert store.is_heldout.tolist() == [False, True, True, True] and store.offsets[-1] == 2 * len(LONG) + 2 + 8
    assert store.meta["removed"] == {"min_characters": {"documents": 1, "bytes": 5}}


def test_the_store_has_a_key_of_its_own_only_if_a_filter_is_on(tmp_path):
    write_texts(tmp_path, TEXTS)
    fields = [{}, {"jaccard": 0.5}, {"min_tokens": 1}, {"min_characters": 1}]
    fields += [{"remove_duplicates": "near", "jaccard": jaccard} for jaccard in (0.5, 0.8)]
    names = []
    for changes in fields:
        corpus = corpus_config(tmp_path, filters=dataclasses.replace(OFF, **changes))
        names.append(opened(corpus).folder.name)
    assert names[0] == names[1] and len(set(names)) == 5


def test_nothing_left(tmp_path):
    write_texts(tmp_path / "held", ["held-out text"])
    for heldout_path in ("", str(tmp_path / "held" / "text")):
        with pytest.raises(ConfigError, match=r"data\.filters leaves no document of .*\(removed min_tokens: 1\)"):
            filtered(tmp_path, ["short"], min_tokens=100, heldout_path=heldout_path)


def drifting_texts():
    """Versions of a text in a random order: those with numbers that are close are near-identical."""
    words, texts = [f"w{j}" for j in range(300)], []
    for k in range(150):
        words[2 * k] = f"new{k}"
        texts.append(" ".join(words))
    random.Random(1).shuffle(texts)
    return texts


def test_what_stays_of_large_groups_is_as_by_comparing_each_document_with_all_that_stay_before_it(tmp_path):
    texts = drifting_texts()
    grams = [set(zip(*(text.split()[k:] for k in range(5)), strict=False)) for text in texts]
    expected = []
    for k in range(len(texts)):
        if not any(len(grams[j] & grams[k]) / len(grams[j] | grams[k]) >= 0.8 for j in expected):
            expected.append(k)
    numbers, _ = filtered(tmp_path, texts, remove_duplicates="near")
    assert numbers == expected


def test_near_identical_documents_with_prompts_have_one_response(tmp_path):
    passage = " ".join(f"word{k}" for k in range(200))
    rows = [(passage, "yes"), (passage, "no"), (passage + " more", "yes"), ("", passage), ("", passage + " more")]
    with open(tmp_path / "text.jsonl", "w") as file:
        for prompt, text in rows:
            file.write(json.dumps({"prompt": prompt, "response": text} if prompt else {"text": text}) + "\n")
    filters = dataclasses.replace(OFF, remove_duplicates="near")
    store = opened(corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "text.jsonl"), filters=filters))
    assert [len(store.tokens[a:b]) - 1 for a, b in itertools.pairwise(store.offsets)] == [
        len(prompt) + len(text) for prompt, text in (rows[0], rows[1], rows[3])
    ]
    assert store.meta["removed"]["near_duplicates"]["documents"] == 2


def test_the_prompt_and_the_label_are_part_of_what_is_identical(tmp_path):
    rows = [("ab", "c", ""), ("a", "bc", ""), ("", "abc", ""), ("", "abc", "x"), ("", "abc", "y")]
    with open(tmp_path / "text.jsonl", "w") as file:
        for prompt, text, label in [*rows, *reversed(rows)]:
            record = {"prompt": prompt, "response": text} if prompt else {"text": text}
            file.write(json.dumps(record | ({"label": label} if label else {})) + "\n")
    filters = dataclasses.replace(OFF, remove_duplicates="exact")
    corpus = corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "text.jsonl"), filters=filters)
    store = opened(corpus)
    kept = [(int(store.prompt_lengths[k]), store.labels[store.label_ids[k]]) for k in range(len(store))]
    assert kept == [(2, ""), (1, ""), (0, ""), (0, "x"), (0, "y")]
    assert store.meta["removed"] == {"exact_duplicates": {"documents": 5, "bytes": 15}}
