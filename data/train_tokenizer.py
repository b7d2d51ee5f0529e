"""python -m data.train_tokenizer --source=text --path='corpus/*.txt' --vocab_size=8000 --kind=unigram --out=my.model

Trains a tokenizer on random documents of a corpus, and writes it to a new file. The end of --out decides the library:

  --kind=unigram, bpe   --out=NAME.model   SentencePiece, with byte fallback: no text is lost
  --kind=bpe            --out=NAME.json    Hugging Face's tokenizers, byte-level BPE as GPT-2's: no text is lost
  --kind=wordpiece      --out=NAME.json    Hugging Face's tokenizers, WordPiece as BERT's, which loses white space

Only text that a run with the same fields trains on is read for training: give --heldout_fraction, --split_seed and
--split_by, or --heldout_path, and --filters.* the values of that run's config.data. Filters that need a tokenizer or
the whole corpus have no flags (min_tokens, max_tokens, remove_duplicates): with these, give this command and the run
the same data.heldout_path, so that what is held out does not depend on them. The tokens of held-out text are counted at
the end.
The same command writes the same file. Runs read it with --config.data.tokenizer=FILE.
"""

import dataclasses
import os
import shlex
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from command.flags import naming_flags
from command.program import run_program
from contract.errors import ConfigError
from contract.rng import argsort, mix64, seed_bits
from data.prepare.flags import define_corpus_flags, read_corpus
from data.sources import Source, open_source
from data.sources.config import CorpusConfig
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters, FilterConfig
from data.sources.source import RawDocument, Skipped
from data.tokenizers.base import appended_names
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from data.tokenizers.train import Kind, TrainingOptions, check_options, train
from data.windows.split import Split, SplitBy, is_heldout, unit_digests, unit_of
from files.atomic import check_output, write_bytes
from files.paths import check_writable, exists, in_bucket

_HELDOUT_BYTES = 1 << 20  # of the text that the result is measured on

# Filters that need a tokenizer or the whole corpus.
_NOT_OF_ONE_TEXT = ("filters.min_tokens", "filters.max_tokens", "filters.remove_duplicates", "filters.jaccard")

_FLAGS = flags.FlagValues()
define_corpus_flags(_FLAGS, without=("tokenizer", "cache_dir", "mode_tokens", *_NOT_OF_ONE_TEXT))
flags.DEFINE_string("out", "", "The new file: NAME.model or NAME.json.", _FLAGS)
flags.DEFINE_enum("kind", "unigram", typing.get_args(Kind), "The tokenizer's model.", _FLAGS)
flags.DEFINE_integer("vocab_size", 32_000, "Number of ids in the file, with special tokens.", 1, 2**26, _FLAGS)
flags.DEFINE_integer("num_sentinels", 100, "Sentinels among them: <extra_id_0> and so on.", 0, 2**16, _FLAGS)
flags.DEFINE_integer("max_bytes", 50_000_000, "Bytes of text to train on, in random documents.", 1, None, _FLAGS)
flags.DEFINE_list(
    "special_tokens", [], "More special tokens, such as [CLS],[SEP],[MASK], which wordpiece always has.", _FLAGS
)
flags.DEFINE_integer("seed", 0, "Seeds the choice of the documents.", flag_values=_FLAGS)
flags.DEFINE_float("heldout_fraction", 0.1, "As in config.data of the runs.", flag_values=_FLAGS)
flags.DEFINE_integer("split_seed", 0, "As in config.data of the runs.", flag_values=_FLAGS)
flags.DEFINE_enum("split_by", "auto", typing.get_args(SplitBy), "As in config.data of the runs.", _FLAGS)


def main(argv: list[str]) -> None:
    """Trains a tokenizer, writes its file and prints what it does to held-out text. Raises ConfigError."""
    corpus = read_corpus(_FLAGS, argv, __doc__ or "")
    out = os.path.expanduser(_FLAGS.out)
    _check_out(out)
    sentinels = tuple(f"<extra_id_{k}>" for k in reversed(range(_FLAGS.num_sentinels)))  # the last is <extra_id_0>
    special_tokens = (*_FLAGS.special_tokens, *sentinels)
    options = TrainingOptions(_FLAGS.kind, out.endswith(".json"), _FLAGS.vocab_size, special_tokens)
    check_options(options)
    with naming_flags(_FLAGS):
        _train(corpus, options, out)


def _train(corpus: CorpusConfig, options: TrainingOptions, out: str) -> None:
    source = open_source(corpus)
    split = Split(_FLAGS.heldout_fraction, _FLAGS.split_seed, _FLAGS.split_by)
    training, heldout = draw_samples(
        source, split, corpus.filters, seed=_FLAGS.seed, max_bytes=(_FLAGS.max_bytes, _HELDOUT_BYTES)
    )
    print(f"training on   {_describe(training)}", flush=True)
    contents = train([text for texts in training for text in texts], options)
    tokenizer = _loaded(contents, corpus, os.path.basename(out))
    write_bytes(out, contents, replace=False)
    print(f"wrote         {out}: {options.vocab_size:,} ids, {len(contents):,} bytes")
    _print_measures(tokenizer, heldout, out)


def _check_out(out: str) -> None:
    """Raises ConfigError unless --out names a new file in a folder that exists."""
    where = f"--out={out}"
    if not out.endswith((".model", ".json")):
        raise ConfigError(f"{where} must end in .model or .json")
    folder = os.path.dirname(out) or "."
    if in_bucket(out):
        check_writable(folder, where)
    else:
        check_output(out)
    if exists(out):
        raise ConfigError(f"{where} exists: name a new file")


def draw_samples(
    source: Source, split: Split, filters: FilterConfig, *, seed: int, max_bytes: tuple[int, int]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Returns random documents that a run trains on, and that it holds out, in the order of the source.

    A document is a text, or a prompt and a text. The samples depend on the corpus, the filters, the split and the seed
    alone. Reads the corpus twice: once to choose documents, for which it holds 25 bytes of each, and once for the text
    of those that are chosen.

    Args:
      source: the corpus. If it has held-out text of its own (data.heldout_path), that is held out.
      split: as in a run's config.
      filters: as in a run's config, with those off that do not measure text: min_tokens, max_tokens, remove_duplicates.
      seed: any int.
      max_bytes: of each sample. The document that reaches it is whole.

    Raises ConfigError as `split_documents` does, for a source that cannot be read, and for a side without text.
    """
    skipped = Skipped()
    documents = _columns(_kept(source, filters, skipped), source.cut)
    is_held, num_bytes = documents.is_heldout, documents.num_bytes
    if len(is_held) and not any(part.is_heldout for part in source.parts):
        unit = unit_of(documents, split)
        is_held = is_heldout(unit_digests(documents, unit), unit, split)
    key = np.uint64(seed_bits(seed, "tokenizer"))
    order = argsort(lambda numbers: mix64(mix64(numbers.astype(np.uint64) ^ key)), len(is_held))
    chosen = []
    for most, side, purpose in zip(max_bytes, (~is_held, is_held), ("train a tokenizer on", "hold out"), strict=True):
        if not side.any():
            raise ConfigError(
                f"{source.where} contains no document with text to {purpose} that data.filters leaves ({skipped}): "
                "name another corpus, or change the filters"
            )
        in_order = order[side[order]]
        chosen.append(set(in_order[: np.searchsorted(np.cumsum(num_bytes[in_order]), most) + 1].tolist()))
    samples: tuple[list, list] = ([], [])
    for number, document in enumerate(_kept(source, filters, Skipped())):
        for numbers_of_side, sample in zip(chosen, samples, strict=True):
            if number in numbers_of_side:
                sample.append(tuple(filter(None, (document.prompt, document.text))))
    return samples


def _kept(source: Source, filters: FilterConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents that no filter removes."""
    measured = DocumentFilters(filters)
    return (document for document in source.documents(skipped) if not measured.removed_by_text(document))


def _columns(documents: Iterator[RawDocument], cut: str) -> Any:
    """Returns the columns that a TokenStore of `documents` would have and that a split reads, and their sizes."""
    rows, labels = [], []
    for document in documents:
        prompt, text = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        rows.append((len(prompt) + len(text), document.file_digest, text_digest(prompt or text), document.is_heldout))
        labels.append(document.label)
    names = ("num_bytes", "file_digests", "digests", "is_heldout")
    columns = np.array(rows, list(zip(names, (np.int64, np.uint64, np.uint64, bool), strict=True)))
    fields = {name: columns[name] for name in names} | {"labels": labels, "label_ids": np.arange(len(rows))}
    return types.SimpleNamespace(**fields, meta={"cut": cut})


def _size(sample: list[tuple[str, ...]]) -> int:
    """Returns the number of bytes of a sample in UTF-8."""
    return sum(len(text.encode()) for texts in sample for text in texts)


def _describe(sample: list[tuple[str, ...]]) -> str:
    return f"{len(sample):,} documents, {_size(sample):,} bytes"


def _loaded(contents: bytes, corpus: CorpusConfig, name: str) -> Tokenizer:
    """Returns the tokenizer as a run reads it. Raises ConfigError as `make_tokenizer` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        write_bytes(path, contents)
        return make_tokenizer(dataclasses.replace(corpus, tokenizer=path, num_sentinels=_FLAGS.num_sentinels))


def _print_measures(tokenizer: Tokenizer, heldout: list[tuple[str, ...]], out: str) -> None:
    """Prints what the tokens of held-out text are, and how the file is used."""
    vocab, num_bytes, num_tokens, num_unknown, num_spelled, num_same = tokenizer.vocab, _size(heldout), 0, 0, 0, 0
    texts = [text for texts in heldout for text in texts]
    for text in texts:
        ids = tokenizer.encode(text)
        num_tokens += ids.size
        num_unknown += int((ids == vocab.unk).sum())
        num_spelled += min(tokenizer.num_bytes(ids) - tokenizer.dummy_bytes, len(text.encode("utf-8")))
        num_same += tokenizer.decode(ids) == text
    print(f"held out      {_describe(heldout)}")
    print(f"tokens        {num_tokens / num_bytes:.4f} per byte of held-out text")
    print(
        f"coverage      {num_unknown / max(num_tokens, 1):.2%} of its tokens are unknown; the tokens spell "
        f"{num_spelled / num_bytes:.2%} of its bytes"
    )
    share = "all" if num_same == len(texts) else f"{num_same:,} of {len(texts):,}"
    print(f"round trip    {share} texts are the same after encoding and decoding")
    if appended := appended_names(vocab).values():
        print(
            f"not in it     {', '.join(appended)}: a run adds these {len(appended)} ids "
            "(data.append_special_tokens, data.mode_tokens)"
        )
    print(f"use           --config.data.tokenizer={shlex.quote(str(out))}")


if __name__ == "__main__":
    run_program(lambda: main(sys.argv))
