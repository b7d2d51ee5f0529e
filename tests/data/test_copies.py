"""Copies in the shards of a corpus: what is compared."""

import dataclasses
import json

from data.sources.filters import OFF
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config


def test_the_prompt_and_the_label_are_part_of_what_is_identical(tmp_path):
    rows = [("ab", "c", ""), ("a", "bc", ""), ("", "abc", ""), ("", "abc", "x"), ("", "abc", "y")]
    with open(tmp_path / "text.jsonl", "w") as file:
        for prompt, text, label in [*rows, *reversed(rows)]:
            record = {"prompt": prompt, "response": text} if prompt else {"text": text}
            file.write(json.dumps(record | ({"label": label} if label else {})) + "\n")
    filters = dataclasses.replace(OFF, remove_duplicates="exact")
    corpus = corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "text.jsonl"), filters=filters)
    store = open_or_build(corpus, make_tokenizer(corpus))
    kept = [(int(store.prompt_lengths[k]), store.labels[store.label_ids[k]]) for k in range(len(store))]
    assert kept == [(2, ""), (1, ""), (0, ""), (0, "x"), (0, "y")]
    assert store.meta["removed"] == {"exact_duplicates": {"documents": 5, "bytes": 15}}
