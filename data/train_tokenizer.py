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
import sys
import tempfile
import typing

from absl import flags

from command.flags import naming_flags
from command.program import run_program
from contract.errors import ConfigError
from data.prepare.flags import define_corpus_flags, read_corpus
from data.prepare.text_sample import Limits, TextSample, draw_samples
from data.sources import check_heldout, open_source
from data.sources.config import CorpusConfig
from data.sources.files import expand_home
from data.sources.filters import check_filters
from data.tokenizers.specials import appended_names
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from data.tokenizers.train import Kind, Normalization, TrainingOptions, check_options, train
from data.windows.split import Split, SplitBy
from files.atomic import check_output, write_bytes
from files.paths import check_writable, exists, in_bucket, reason_and_remedy

_HELDOUT = Limits(max_bytes=1 << 20, num_documents=1000)  # of the text that the result is measured on
_MODE_TOKENS = ("[R]", "[S]", "[X]")  # data.mode_tokens of configs/base.py, which this package does not import
_OTHER_FILES = ("special_tokens_map.json", "tokenizer_config.json")  # read with a tokenizer.json in the same folder

# Filters that need a tokenizer or the whole corpus.
_NOT_OF_ONE_TEXT = ("filters.min_tokens", "filters.max_tokens", "filters.remove_duplicates", "filters.jaccard")

_FLAGS = flags.FlagValues()
define_corpus_flags(_FLAGS, without=("tokenizer", "cache_dir", *_NOT_OF_ONE_TEXT))
flags.DEFINE_string("out", "", "The new file: NAME.model or NAME.json.", _FLAGS)
flags.DEFINE_enum("kind", "unigram", typing.get_args(Kind), "The tokenizer's model.", _FLAGS)
for _name, _default, _least, _most, _help in (
    ("vocab_size", 32_000, 1, 2**26, "Number of ids in the file, with special tokens."),
    ("num_sentinels", 100, 0, 2**16, "Sentinels among them: <extra_id_0> and so on."),
    ("max_bytes", 50_000_000, 1, None, "Bytes of text to train on, in random documents."),
    ("num_documents", 2**31, 1, None, "Documents to train on, at most."),
):
    flags.DEFINE_integer(_name, _default, _help, _least, _most, _FLAGS)
flags.DEFINE_list(
    "special_tokens", [], "More special tokens, such as [CLS],[SEP],[MASK], which wordpiece always has.", _FLAGS
)
flags.DEFINE_enum(
    "normalization",
    "identity",
    typing.get_args(Normalization),
    "Unicode's normal form of encoded text; identity: text is encoded as it is, and decoded exactly.",
    _FLAGS,
)
flags.DEFINE_bool("byte_fallback", True, "NAME.model: characters without a piece are tokens of their bytes.", _FLAGS)
flags.DEFINE_float(
    "character_coverage",
    0.9995,
    "NAME.model, wordpiece: share of the text's characters that have a piece, the most frequent ones.",
    0.98,
    1,
    _FLAGS,
)
flags.DEFINE_integer("seed", 0, "Of the choice of the documents.", flag_values=_FLAGS)
flags.DEFINE_float("heldout_fraction", 0.1, "As in config.data of the runs.", flag_values=_FLAGS)
flags.DEFINE_integer("split_seed", 0, "As in config.data of the runs.", flag_values=_FLAGS)
flags.DEFINE_enum("split_by", "auto", typing.get_args(SplitBy), "As in config.data of the runs.", _FLAGS)


def main(argv: list[str]) -> None:
    """Trains a tokenizer, writes its file and prints what it does to held-out text. Raises ConfigError."""
    corpus = read_corpus(_FLAGS, argv, __doc__ or "")
    out = expand_home(_FLAGS.out, f"--out={_FLAGS.out}")
    _check_out(out)
    sentinels = tuple(f"<extra_id_{k}>" for k in reversed(range(_FLAGS.num_sentinels)))  # the last is <extra_id_0>
    options = TrainingOptions(
        kind=_FLAGS.kind,
        is_json=out.endswith(".json"),
        vocab_size=_FLAGS.vocab_size,
        special_tokens=(*_FLAGS.special_tokens, *sentinels),
        normalization=_FLAGS.normalization,
        byte_fallback=_FLAGS.byte_fallback,
        character_coverage=_FLAGS.character_coverage,
    )
    check_options(options)
    check_filters(corpus.filters)
    with naming_flags(_FLAGS):
        _train(corpus, options, out)


def _train(corpus: CorpusConfig, options: TrainingOptions, out: str) -> None:
    source = open_source(corpus)
    check_heldout(source, corpus)
    training, heldout = draw_samples(
        source,
        Split(_FLAGS.heldout_fraction, _FLAGS.split_seed, _FLAGS.split_by),
        corpus.filters,
        seed=_FLAGS.seed,
        train=Limits(_FLAGS.max_bytes, _FLAGS.num_documents),
        heldout=_HELDOUT,
        has_heldout_text=any(part.is_heldout for part in source.parts),
    )
    print(f"training on   {_describe(training)}", flush=True)
    contents = train(training.texts, options)
    tokenizer = _loaded(contents, corpus, os.path.basename(out))
    try:
        write_bytes(out, contents, replace=False)
    except OSError as error:
        raise ConfigError(f"--out={out} cannot be written ({reason_and_remedy(error)})") from None
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
    others = [name for name in _OTHER_FILES if out.endswith(".json") and exists(os.path.join(folder, name))]
    if others:
        raise ConfigError(f"{where}: the folder has the {others[0]} of another tokenizer: name another folder")


def _describe(sample: TextSample) -> str:
    part = "all training documents" if sample.is_whole else "a random sample of the training documents"
    return f"{sample.num_documents:,} documents, {sample.num_bytes:,} bytes: {part}"


def _loaded(contents: bytes, corpus: CorpusConfig, name: str) -> Tokenizer:
    """Returns the tokenizer as a run reads it. Raises ConfigError as `make_tokenizer` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        write_bytes(path, contents)
        fields = {"num_sentinels": _FLAGS.num_sentinels, "mode_tokens": _MODE_TOKENS, "append_special_tokens": True}
        return make_tokenizer(dataclasses.replace(corpus, tokenizer=path, **fields))


def _print_measures(tokenizer: Tokenizer, heldout: TextSample, out: str) -> None:
    """Prints what the tokens of held-out text are, and how the file is used."""
    vocab, num_tokens, num_unknown, num_spelled, num_changed = tokenizer.vocab, 0, 0, 0, 0
    for text in heldout.texts:
        ids = tokenizer.encode(text)
        num_tokens += ids.size
        num_unknown += int((ids == vocab.unk).sum())
        num_spelled += min(tokenizer.num_bytes(ids) - tokenizer.dummy_bytes, len(text.encode("utf-8")))
        num_changed += tokenizer.decode(ids) != text
    print(f"held out      {heldout.num_documents:,} documents, {heldout.num_bytes:,} bytes")
    print(f"tokens        {num_tokens / heldout.num_bytes:.4f} per byte of held-out text")
    print(
        f"coverage      {num_unknown / max(num_tokens, 1):.2%} of its tokens are unknown; the tokens spell "
        f"{num_spelled / heldout.num_bytes:.2%} of its bytes"
    )
    exact = "all texts" if not num_changed else f"{len(heldout.texts) - num_changed:,} of {len(heldout.texts):,} texts"
    print(f"round trip    {exact} are the same after encoding and decoding")
    appended = appended_names(vocab).values()
    if appended:
        print(
            f"not in it     {', '.join(appended)}: a run adds these {len(appended)} ids "
            "(data.append_special_tokens, data.mode_tokens)"
        )
    print(f"use           --config.data.tokenizer={out}")


if __name__ == "__main__":
    run_program(lambda: main(sys.argv))
