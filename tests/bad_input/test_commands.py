"""Every command refuses flags and folders that are wrong, in one line that names them."""

import importlib
import sys

import pytest
from absl import flags

from data.prepare import __main__ as prepare
from tests.bad_input.answers import check_rows, row

# Module of a command -> the arguments that it needs, with the folders of the fixture `place`.
COMMANDS = {
    "train.main": ["--config=configs/clm.py", "--workdir={place}/new"],
    "train.evaluate": ["--workdir={place}/run"],
    "generate.__main__": ["--workdir={place}/run", "--prompt=a"],
    "show.__main__": ["--workdir={place}/run"],
    "plan.__main__": ["--config=configs/clm.py", "--topology=cpu:1"],
    "train.plot": ["{place}/run", "--out={place}/new.svg"],
    "studies.__main__": ["--study=configs/studies/scaling.py", "--dry_run"],
    "studies.scaling.__main__": ["--study=configs/studies/scaling.py", "--out={place}/run"],
    "train.export": ["--workdir={place}/run", "--out={place}/new"],
    "train.convert": ["--from={place}/export", "--workdir={place}/new"],
    "data.train_tokenizer": ["--source=text", "--path={place}/text.txt", "--out={place}/new.model"],
    "benchmarks.step": [],
    "benchmarks.seeds": [],
    "benchmarks.loss": [],
    "benchmarks.attention": [],
    "benchmarks.operations": [],
    "benchmarks.compile": [],
    "benchmarks.corruption": [],
    "benchmarks.pipeline": [],
    "benchmarks.huggingface": [],
}
POSITIONAL = {"train.plot", "benchmarks.loss", "benchmarks.compile", "benchmarks.corruption", "benchmarks.pipeline"}
POSITIONAL |= {"benchmarks.huggingface", "benchmarks.attention", "benchmarks.operations"}


def arguments_of(command, place):
    return [argument.format(place=place) for argument in COMMANDS[command]]


def main_of(command):
    if command in ("data.prepare", "data.train_tokenizer"):
        return lambda: importlib.import_module(command).main(sys.argv)
    return importlib.import_module(command).main


def small_corpus(place):
    """Overrides of a config that reads the run's text."""
    corpus = {"source": "text", "path": f"{place}/text.txt", "document_per": "paragraph", "cache_dir": f"{place}/cache"}
    corpus |= {"heldout_fraction": 0.3, "inputs_length": 16}
    return [f"--config.data.{name}={value}" for name, value in corpus.items()]


def flags_of(command):
    """The flags of a command, without --config."""
    values = importlib.import_module(command)._FLAGS
    return {name: values[name] for name in values if name.partition(".")[0] not in ("config", "help")}


def without(arguments, name):
    return [argument for argument in arguments if argument.partition("=")[0] != f"--{name}"]


def rows_of_flags(command, place):
    """Rows for unknown, doubled, missing and unreadable flags."""
    main, needed = main_of(command), arguments_of(command, place)
    yield row("unknown flag", main, *needed, "--no_such_flag=1", names="no_such_flag")
    yield row("a flag without its dashes", main, *needed, "no_such_flag=1", names="no_such_flag")
    for name, flag in flags_of(command).items():
        kind = flag.parser.__class__.__name__ if flag.parser else ""
        given = next((argument for argument in needed if argument.startswith(f"--{name}=")), None)
        twice = [given, given] if given else [f"--{name}"] * 2 if flag.boolean else [f"--{name}=1", f"--{name}=1"]
        if not isinstance(flag, flags.MultiFlag):
            yield row(f"--{name} twice", main, *without(needed, name), *twice, names=f"--{name}")
        if flag.boolean:
            continue
        texts = {
            "IntegerParser": ("x", "1.5", "", "nan", "1" * 5000),
            "FloatParser": ("x", "", "nan", "inf", "-inf"),
            "EnumParser": ("no such value", ""),
        }.get(kind, ())
        for text in texts:
            yield row(f"--{name}={text[:20]}", main, *without(needed, name), f"--{name}={text}", names=f"--{name}")
    for given in (argument.partition("=")[0] for argument in needed if "=" in argument):
        kept = without(needed, given.removeprefix("--"))
        yield row(f"{given} without its value", main, *kept, given, names=given)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(command, place, monkeypatch):
    check_rows(rows_of_flags(command, place), monkeypatch)


# Command, flag that names something to read.
FOLDERS = [
    ("train.evaluate", "--workdir={}"),
    ("generate.__main__", "--workdir={}"),
    ("show.__main__", "--workdir={}"),
    ("train.export", "--workdir={}"),
    ("train.plot", "{}"),
    ("train.convert", "--from={}"),
    ("studies.scaling.__main__", "--out={}"),
    ("train.main", "--config.train.init_from={}"),
]


@pytest.mark.parametrize(("command", "flag"), FOLDERS)
def test_folders_to_read(command, flag, place, monkeypatch):
    name = flag.partition("=")[0]
    kept = without(arguments_of(command, place), name.removeprefix("--"))
    if command == "train.plot":
        kept = kept[1:]
    if command == "train.main":
        kept += small_corpus(place)
    kinds = ["none", "file", "empty", "others", "cache", "export", "run/checkpoints", "none/none", "file/none"]
    kinds = [kind for kind in kinds if (command, kind) not in {("train.convert", "export")}]
    names = {kind: f"{place}/{kind}" for kind in kinds}
    rows = [row(kind, main_of(command), *kept, flag.format(path), names=path) for kind, path in names.items()]
    if command != "train.main":  # train.init_from='' is a start from new parameters
        rows.append(row("no text", main_of(command), *kept, flag.format(""), names=(name, "RUN", "folder")))
    check_rows(rows, monkeypatch)


# Command, flag that names something to write, and paths that it must refuse.
OUTPUTS = [
    ("train.main", "--workdir={}", ("file", "file/none", "run", "export", "gs://bucket/run", "hdfs://host/run")),
    ("show.__main__", "--html={}", ("none/page.html", "empty", "file/page.html", "gs://bucket/page.html")),
    ("show.__main__", "--svg={}", ("none/page.svg", "empty", "file/page.svg")),
    ("train.plot", "--out={}", ("none/figure.svg", "empty", "figure.jpg", "figure", "s3://bucket/figure.svg")),
    ("studies.scaling.__main__", "--figure={}", ("none/figure.svg", "empty", "figure.jpg")),
    ("train.export", "--out={}", ("file", "others", "export", "run", "file/none", "gs://bucket/export")),
    ("train.convert", "--workdir={}", ("file", "others", "export", "run", "file/none")),
    ("data.train_tokenizer", "--out={}", ("none/t.model", "file/t.model", "t", "t.txt", "", "gs://bucket/t.model")),
    ("data.train_tokenizer", "--out={}", ("hdfs://host/t.model", "export/t.json", "export/tokenizer.json")),
]


@pytest.mark.parametrize(("command", "flag", "paths"), OUTPUTS, ids=[f"{row[0]} {row[1]}" for row in OUTPUTS])
def test_outputs(command, flag, paths, place, monkeypatch):
    name = flag.partition("=")[0]
    kept = without(arguments_of(command, place), name.removeprefix("--"))
    if command == "train.main":
        kept += small_corpus(place)
    rows = []
    for path in paths:
        full = path if "://" in path else f"{place}/{path}"
        rows.append(row(path, main_of(command), *kept, flag.format(full), names=(full, name)))
    check_rows(rows, monkeypatch)


def test_flags_of_data_prepare(place, monkeypatch):
    def main():
        prepare.main(sys.argv)

    needed = ["--source=text", f"--path={place}/text.txt", f"--cache_dir={place}/cache"]
    wrong = {"source": "none", "document_per": "word", "on_unreadable": "", "tokenizer": "none", "cache_dir": ""}
    wrong |= {"path": f"{place}/none", "heldout_path": f"{place}/none"}
    wrong |= {"workers": 0, "report": f"{place}/file", "beam": "--no_such_argument"}
    wrong |= {"filters.min_tokens": -1, "filters.jaccard": 2.0, "filters.remove_duplicates": "all"}
    rows = [
        row("unknown flag", main, *needed, "--no_such_flag=1", names="no_such_flag"),
        row("a flag without its dashes", main, *needed, "no_such_flag=1", names="no_such_flag"),
        row("a flag twice", main, *needed, "--source=text", names="--source"),
        row("a cache_dir that is a file", main, *needed[:2], f"--cache_dir={place}/file", names=f"{place}/file"),
    ]
    for name, value in wrong.items():
        rows.append(row(f"{name}={value}", main, *without(needed, name), f"--{name}={value}", names=(name, str(value))))
    check_rows(rows, monkeypatch)


def test_flags_of_data_train_tokenizer(place, monkeypatch):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("tokenizers")
    (place / "blank.txt").write_text(" \n")
    (place / "taken.model").write_text("")
    wrong = {
        "path": (f"{place}/none", f"{place}/blank.txt", f"{place}/empty"),
        "source": ("none",),
        "kind": ("wordpiece",),
        "vocab_size": ("0", "1", "300", "-5", "90000", str(2**40)),
        "num_sentinels": ("-1", "70000"),
        "special_tokens": ("a", "[A],[A]", "[A B]", "</s>", "<pad>", "<extra_id_0>", "[]"),
        "normalization": ("nfc",),
        "character_coverage": ("0.5", "1.1"),
        "max_bytes": ("0", "-1"),
        "num_documents": ("0",),
        "heldout_fraction": ("0", "1", "nan"),
        "split_by": ("label",),
        "out": (f"{place}/taken.model",),
        "filters.min_characters": ("-1", "a"),
        "filters.min_tokens": ("1",),
        "filters.max_tokens": ("1",),
        "filters.remove_duplicates": ("exact", "near", "all"),
    }
    main, needed = (
        main_of("data.train_tokenizer"),
        [*arguments_of("data.train_tokenizer", place), "--document_per=line"],
    )
    rows = [
        row(
            f"{name}={value}",
            main,
            *without(needed, name),
            f"--{name}={value}",
            names=(f"--{name}", f"data.{name}", value),
        )
        for name, values in wrong.items()
        for value in values
    ]
    for kind, size in {"bpe": "1000000", "wordpiece": "1000000", "bpe ": "300", "wordpiece ": "110"}.items():
        flags = [f"--out={place}/new.json", f"--kind={kind.strip()}", f"--vocab_size={size}"]
        rows.append(row(f"{kind} {size}", main, *without(needed, "out"), *flags, names=f"--vocab_size={size}"))
    no_bytes = [f"--out={place}/new.json", "--kind=bpe", "--nobyte_fallback"]
    rows.append(row("bytes that are needed", main, *without(needed, "out"), *no_bytes, names="--nobyte_fallback"))
    unigram = [f"--out={place}/new.json", "--kind=unigram"]
    rows.append(row("unigram as .json", main, *without(needed, "out"), *unigram, names="--out=NAME.model"))
    check_rows(rows, monkeypatch)
    assert not list(place.glob("new.*")) and not list(place.glob("*.tmp"))


@pytest.mark.parametrize(("library", "end"), [("sentencepiece", "model"), ("tokenizers", "json")])
def test_data_train_tokenizer_without_its_library(library, end, place, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    extra = {"tokenizers": "huggingface"}.get(library, library)
    arguments = ["--source=text", f"--path={place}/text.txt", f"--out={place}/new.{end}", "--kind=bpe"]
    names = f"needs {library}: pip install -e '.[{extra}]'"
    check_rows([row(library, main_of("data.train_tokenizer"), *arguments, names=names)], monkeypatch)
