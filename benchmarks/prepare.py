"""Speed and memory of data.prepare: python -m benchmarks.prepare --path='corpus/*.jsonl' --source=jsonl

Prints one JSON line for each run of `python -m data.prepare` on that corpus, each with an empty cache folder:

  --workers      1, 2 and so on: megabytes of text per second, with the byte tokenizer; start and assembly are included
  tokenizers     byte, a SentencePiece model and a tokenizer.json (byte-level BPE), both of --vocab_size, trained here
  filters        each alone, at the value of its paper, and all together
  --copies=N     the corpus once and N times, where letters are changed so that copies are other texts

"peak_mb" is the largest resident memory of any one process, in MB. The default corpus is the source of the running
Python's library with its folders of tests.
"""

import itertools
import json
import os
import pathlib
import string
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator

from absl import flags

from contract.errors import ConfigError
from data.prepare_flags import parse_flags as corpus_of
from data.raw import Skipped
from data.sources import open_source
from train.command import parse_flags, run_command

_FLAGS = flags.FlagValues()
_SOURCE = flags.DEFINE_string("source", "text", "The corpus, as for data.prepare.", flag_values=_FLAGS)
_PATH = flags.DEFINE_string("path", f"{sysconfig.get_paths()['stdlib']}/**/*.py", "Its files.", flag_values=_FLAGS)
_WORKERS = flags.DEFINE_integer("workers", os.cpu_count(), "Most processes.", lower_bound=1, flag_values=_FLAGS)
_VOCAB = flags.DEFINE_integer("vocab_size", 8000, "Of the trained tokenizers.", lower_bound=300, flag_values=_FLAGS)
_COPIES = flags.DEFINE_integer("copies", 8, "0: do not measure memory.", lower_bound=0, flag_values=_FLAGS)

_FILTERS = {
    "min_characters": 100,
    "min_mean_word_length": 3,
    "max_symbol_fraction": 0.1,
    "min_punctuated_line_fraction": 0.12,
    "max_duplicate_line_fraction": 0.3,
    "max_duplicate_ngram_fraction": 0.15,
    "min_tokens": 20,
    "remove_duplicates=exact": "",
    "remove_duplicates=near": "",
}
# Runs a command, and prints the peak of its memory and that of its processes. In a small process, because the peak of a
# process begins with the memory of the one that starts it.
_PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_TRAINING_BYTES = 2_000_000  # of text, for the tokenizers


def main() -> None:
    """Runs data.prepare with each setting, and prints a line of each."""
    parse_flags(_FLAGS, __doc__)
    corpus = [f"--source={_SOURCE.value}", f"--path={_PATH.value}", "--on_unreadable=skip"]
    most = f"--workers={_WORKERS.value}"
    with tempfile.TemporaryDirectory(prefix="cloze-prepare-") as name:
        folder = pathlib.Path(name)
        for workers in sorted({1, _WORKERS.value}):
            _measure(folder, {"measured": "workers", "workers": workers}, [*corpus, f"--workers={workers}"])
        for kind, path in _tokenizers(folder, corpus).items():
            _measure(folder, {"measured": "tokenizer", "tokenizer": kind}, [*corpus, most, f"--tokenizer={path}"])
        given = [f"--filters.{field}={value}".removesuffix("=") for field, value in _FILTERS.items()]
        for flag in given:
            _measure(folder, {"measured": "filter", "filter": flag.removeprefix("--filters.")}, [*corpus, most, flag])
        every = [flag for flag in given if not flag.endswith("exact")]
        _measure(folder, {"measured": "filter", "filter": "all"}, [*corpus, most, *every])
        for copies in sorted({1, _COPIES.value} - {0}) if _COPIES.value else ():
            path = _copied(folder, corpus, copies)
            for flag in ("--filters.remove_duplicates=none", "--filters.remove_duplicates=near"):
                fields = {"measured": "copies", "copies": copies, "filter": flag.removeprefix("--filters.")}
                _measure(folder, fields, ["--source=jsonl", f"--path={path}", most, flag])


def _measure(folder: pathlib.Path, fields: dict[str, object], arguments: list[str]) -> None:
    """Runs data.prepare with an empty cache folder, and prints a JSON line with `fields` and what was measured."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        command = [sys.executable, "-m", "data.prepare", *arguments, f"--cache_dir={cache}"]
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-S", "-c", _PEAK, *command], capture_output=True, text=True)
        seconds = time.monotonic() - began
        if done.returncode:
            raise ConfigError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
        [meta] = pathlib.Path(cache).glob("*/meta.json")
        store = json.loads(meta.read_text())
    read = store["num_bytes"] + sum(counts["bytes"] for counts in store["removed"].values())
    unit = 1e6 if sys.platform == "darwin" else 1e3  # ru_maxrss is in bytes there, and in KiB elsewhere
    line = {"benchmark": "prepare", **fields, "mb": round(read / 1e6, 1), "documents": store["num_documents"]}
    line |= {"removed": {name: counts["documents"] for name, counts in store["removed"].items()}}
    line |= {"seconds": round(seconds, 2), "mb_per_second": round(read / 1e6 / seconds, 2)}
    print(json.dumps(line | {"peak_mb": round(int(done.stdout.splitlines()[-1]) / unit)}), flush=True)


def _texts(corpus: list[str]) -> Iterator[str]:
    """Yields the documents' texts."""
    for document in open_source(corpus_of(["", *corpus], "").corpus).documents(Skipped()):
        yield document.prompt + document.text


def _tokenizers(folder: pathlib.Path, corpus: list[str]) -> dict[str, str]:
    """Trains tokenizers, and returns kind -> value of --tokenizer."""
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    lines = list(_first_bytes((line for text in _texts(corpus) for line in text.split("\n")), _TRAINING_BYTES))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "unigram"),
        vocab_size=_VOCAB.value,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB.value, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False
    )
    bpe.train_from_iterator(lines, trainer)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return {
        "byte": "byte",
        "sentencepiece": str(folder / "unigram.model"),
        "tokenizer.json": str(folder / "tokenizer.json"),
    }


def _first_bytes(lines: Iterable[str], num_bytes: int) -> Iterator[str]:
    for line in lines:
        yield line
        num_bytes -= len(line) + 1
        if num_bytes < 0:
            return


def _copied(folder: pathlib.Path, corpus: list[str], copies: int) -> pathlib.Path:
    """Writes `copies` of the corpus as JSON lines; in copy k each letter is the k-th one after it in the alphabet."""
    path = folder / f"copies-{copies}.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for k, text in itertools.product(range(copies), list(_texts(corpus))):
            letters = string.ascii_lowercase
            shifted = text.translate(str.maketrans(letters, letters[k:] + letters[:k]))
            file.write(json.dumps({"text": shifted}) + "\n")
    return path


if __name__ == "__main__":
    run_command(main)
