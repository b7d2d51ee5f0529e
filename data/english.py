"""Writes a corpus of English, four classification tasks, and pairs of sentences: python -m data.english --out=DIR ...

    git clone --depth=1 https://github.com/nltk/nltk_data
    git clone --depth=1 https://github.com/alexwarstadt/blimp
    python -m data.english --nltk_data=nltk_data --blimp=blimp --out=english

Writes to the new folder --out:

  english.jsonl                       {"text", "source"}: news, fiction, speeches, conversations, reviews, plays
  mr.train.jsonl, mr.test.jsonl       {"text", "label"}: positive and negative sentences of reviews (Pang & Lee 2005)
  subj.train.jsonl, subj.test.jsonl   subjective and objective sentences (Pang & Lee 2004)
  trec.train.jsonl, trec.test.jsonl   six types of questions (Li & Roth 2002), with the published test part
  proscons.train.jsonl, proscons.test.jsonl   pros and cons of products (Ganapathibhotla & Liu 2008)
  mr.500.jsonl and so on              500 texts of the training part, to fine-tune with few labels
  blimp.jsonl                         {"good", "bad", "group", "paradigm"}: the first 20 pairs of each of BLiMP's 67
                                      paradigms (Warstadt et al. 2020), with --blimp

Texts that occur twice are written once, and a text of a test part is in no training part, case and punctuation ignored.
A fifth of a task without a published test part is its test part, drawn with a fixed seed, and its texts with two labels
are not written: the same clone gives the same files.
"""

import collections
import itertools
import json
import os
import pathlib
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable, Iterator

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError
from files.atomic import atomic_folder, write_text

_FLAGS = flags.FlagValues()
_NLTK_DATA = flags.DEFINE_string("nltk_data", None, "Folder of a clone of nltk_data.", _FLAGS, required=True)
_BLIMP = flags.DEFINE_string("blimp", None, "Folder of a clone of alexwarstadt/blimp; none: no pairs.", _FLAGS)
_OUT = flags.DEFINE_string("out", None, "New folder.", _FLAGS, required=True)

_LEAST_CHARS = 200  # of a document
_LEAST_REVIEW_CHARS = 8
_TEST_SHARE = 0.2
_FEW = 500  # labelled texts
_PAIRS = 20  # of a paradigm
_CHANCE_WORDS = 5  # fewer words are in a corpus by chance
# Corpus -> the names of its files, and how many lines make a document where a file is longer than a text.
_PLAIN = {
    "abc": (r"abc/\w+\.txt", 12),
    "state_union": (r"state_union/[\w-]+\.txt", None),
    "inaugural": (r"inaugural/[\w-]+\.txt", None),
    "webtext": (r"webtext/\w+\.txt", 80),
    "genesis": (r"genesis/english-\w+\.txt", None),
    "movie_reviews": (r"movie_reviews/\w+/\w+\.txt", None),
    "switchboard": (r"switchboard/transcript", 60),
}
# Corpus of tagged words -> the names of its files, and what separates a word from its tag.
_TAGGED = {"brown": (r"brown/c[a-r]\d\d", "/"), "masc_tagged": (r"masc_tagged/(spoken|written)/.*\.txt", "_")}
_PLAYS = ("shakespeare", r"shakespeare/\w+\.xml")

Labelled = list[tuple[str, str]]  # (text, label)


class NltkData:
    """The corpora of a clone of nltk_data, read from their zip files."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder / "packages" / "corpora"

    def files(self, corpus: str, name: str) -> Iterator[str]:
        """Yields the texts of the files of `corpus` whose path matches the pattern `name`, sorted by path.

        Raises ConfigError if the corpus is missing or has no such file.
        """
        path = self.folder / f"{corpus}.zip"
        try:
            with zipfile.ZipFile(path) as archive:
                found = sorted(file for file in archive.namelist() if re.fullmatch(name, file))
                if not found:
                    raise ConfigError(f"--nltk_data: {path} has no file {name}: use a newer clone of nltk_data")
                for file in found:
                    yield _decoded(archive.read(file))
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"--nltk_data={self.folder.parent.parent}: {path} cannot be read ({error}): name the folder of a clone "
                "of github.com/nltk/nltk_data"
            ) from None

    def lines(self, corpus: str, name: str) -> list[str]:
        """Returns the lines of the files of `corpus` whose path matches `name`, without blank ones."""
        texts = self.files(corpus, name)
        return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def documents(data: NltkData) -> Iterator[dict[str, str]]:
    """Yields the documents of the corpus as {"text", "source"}, each text once."""
    seen: set[str] = set()
    for source, texts in _texts(data):
        for text in texts:
            text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+", " ", text.replace("\r", ""))).strip()
            if len(text) >= _LEAST_CHARS and text not in seen:
                seen.add(text)
                yield {"text": text, "source": source}


def _texts(data: NltkData) -> Iterator[tuple[str, Iterable[str]]]:
    for source, (name, lines) in _PLAIN.items():
        yield source, (piece for text in data.files(source, name) for piece in _pieces(text, lines))
    for source, (name, separator) in _TAGGED.items():
        yield source, (_without_tags(text, separator) for text in data.files(source, name))
    source, name = _PLAYS
    yield source, itertools.chain.from_iterable(map(_acts, data.files(source, name)))


def _pieces(text: str, count: int | None) -> list[str]:
    if count is None:
        return [text]
    lines = [line for line in text.splitlines() if line.strip()]
    return ["\n".join(lines[i : i + count]) for i in range(0, len(lines), count)]


def _without_tags(text: str, separator: str) -> str:
    lines = (" ".join(word.rpartition(separator)[0] for word in line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _acts(play: str) -> Iterator[str]:
    for act in ElementTree.fromstring(play).iter("ACT"):
        yield "\n".join(
            "\n".join([f"{speech.findtext('SPEAKER') or ''}:", *(line.text or "" for line in speech.iter("LINE"))])
            for speech in act.iter("SPEECH")
        )


def tasks(data: NltkData) -> dict[str, tuple[Labelled, Labelled]]:
    """Returns name -> the training and the test part of each task."""
    polarity = [("rt-polarity.neg", "negative"), ("rt-polarity.pos", "positive")]
    subjectivity = [("plot.tok.gt9.5000", "objective"), ("quote.tok.gt9.5000", "subjective")]
    reviews = [("IntegratedCons.txt", "con"), ("IntegratedPros.txt", "pro")]
    sides = [(re.sub(r"</?\w+>", "", line).strip(), side) for line, side in _labelled(data, "pros_cons", reviews)]
    return {
        "mr": _split(_labelled(data, "sentence_polarity", polarity)),
        "subj": _split(_labelled(data, "subjectivity", subjectivity)),
        "trec": _without_test(*(_questions(data.lines("qc", f"qc/{part}.txt")) for part in ("train", "test"))),
        "proscons": _split([(text, side) for text, side in sides if len(text) > _LEAST_REVIEW_CHARS]),
    }


def _labelled(data: NltkData, corpus: str, files: Iterable[tuple[str, str]]) -> Labelled:
    """Returns the lines of files, each with its file's label."""
    return [(line, label) for name, label in files for line in data.lines(corpus, re.escape(f"{corpus}/{name}"))]


def _questions(lines: Iterable[str]) -> Labelled:
    """Returns the questions of lines such as "NUM:dist How far is it ?", with their coarse type."""
    fields = (line.partition(" ") for line in lines)
    return [(question, kind.partition(":")[0]) for kind, _, question in fields]


def _split(texts: Labelled) -> tuple[Labelled, Labelled]:
    """Returns a training part and a test part, which have no text in common."""
    labels = collections.defaultdict[str, set[str]](set)
    for text, label in texts:
        labels[_words(text)].add(label)
    unique = sorted({row for row in texts if len(labels[_words(row[0])]) == 1})
    random.Random(0).shuffle(unique)
    count = round(_TEST_SHARE * len(unique))
    return _without_test(unique[count:], unique[:count])


def _without_test(train: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    held_out = {_words(text) for text, _ in test}
    return [row for row in dict.fromkeys(train) if _words(row[0]) not in held_out], list(dict.fromkeys(test))


def found_in(texts: Iterable[str], documents: Iterable[str]) -> set[str]:
    """Returns the texts of five words or more that a document contains, case and punctuation ignored."""
    by_start = collections.defaultdict[tuple[str, ...], list[tuple[list[str], str]]](list)
    for text in texts:
        if len(words := _words(text).split()) >= _CHANCE_WORDS:
            by_start[tuple(words[:_CHANCE_WORDS])].append((words, text))
    found: set[str] = set()
    for document in documents:
        words = _words(document).split()
        for i, start in enumerate(zip(*(words[k:] for k in range(_CHANCE_WORDS)), strict=False)):
            found.update(text for of_text, text in by_start.get(start, ()) if words[i : i + len(of_text)] == of_text)
    return found


def few(train: Labelled) -> Labelled:
    """Returns 500 of the labelled texts, or all if there are fewer, drawn with a fixed seed."""
    return random.Random(0).sample(train, min(_FEW, len(train)))


def pairs(folder: pathlib.Path) -> list[dict[str, str]]:
    """Returns the first 20 pairs of each paradigm of BLiMP, grouped by phenomenon.

    Raises ConfigError if the folder has none, or a file of it is not BLiMP's.
    """
    files = sorted((folder / "data").glob("*.jsonl"))
    if not files:
        raise ConfigError(f"--blimp={folder} has no data/*.jsonl: name the folder of a clone of alexwarstadt/blimp")
    found = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()[:_PAIRS]
            for row in map(json.loads, lines):
                sentences = {"good": row["sentence_good"], "bad": row["sentence_bad"]}
                found.append(sentences | {"group": row["linguistics_term"], "paradigm": row["UID"]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"--blimp={folder}: {file} is no file of BLiMP ({error!r}): use a new clone") from None
    return found


def _words(text: str) -> str:
    """Returns a text without case and punctuation; the text itself if nothing else is in it."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def main() -> None:
    """Writes the files, and prints a line for each."""
    parse_flags(_FLAGS, __doc__)
    data = NltkData(pathlib.Path(os.path.expanduser(_NLTK_DATA.value)))
    with atomic_folder(_OUT.value, "--out") as out:
        _write(out, data)


def _write(out: pathlib.Path, data: NltkData) -> None:
    contents: dict[str, list[dict[str, str]]] = {}
    if _BLIMP.value is not None:  # first: it is the quickest to be wrong
        contents["blimp"] = pairs(pathlib.Path(os.path.expanduser(_BLIMP.value)))
    contents["english"] = list(documents(data))
    for name, (train, test) in tasks(data).items():
        for part, texts in {"train": train, "test": test, str(_FEW): few(train)}.items():
            contents[f"{name}.{part}"] = [{"text": text, "label": label} for text, label in texts]
    for name, rows in contents.items():
        write_text(out / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        kind = "pairs" if name == "blimp" else "texts"
        size = sum(len((row.get("text") or row["good"] + row["bad"]).encode()) for row in rows)
        print(f"{name}.jsonl: {len(rows):,} {kind}, {size:,} bytes", file=sys.stderr)
    tests = {name: [row["text"] for row in rows] for name, rows in contents.items() if name.endswith(".test")}
    found = found_in(itertools.chain(*tests.values()), (row["text"] for row in contents["english"]))
    for name, texts in tests.items():
        print(f"{name}.jsonl: {len(found.intersection(texts)):,} texts are in english.jsonl", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
