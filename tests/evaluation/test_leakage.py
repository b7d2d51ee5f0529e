"""A run does not start from a run that trained on its held-out text."""

import json
import re

import pytest

from configs.base import corpus as a_corpus
from contract.errors import ConfigError
from evaluation import leakage
from evaluation.leakage import describe_trained_on
from experiment.experiment import make_experiment
from run.compiled_run import make_run
from run.corpus import open_corpora
from run.restore import load_experiment
from tests.table import small_config
from train.display import Display
from train.summary import print_summary
from workdir.run_config import read_config, write_config
from workdir.workdir import Workdir


def fields(corpus, name="clm", architecture="decoder_only", **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config(name, architecture, **(text | {"data__heldout_fraction": 0.3} | overrides))


def run_of(corpus, **overrides):
    return make_run(make_experiment(fields(corpus, **overrides)), show_progress=False)


def check_start(run):
    return leakage.check_start(run.experiment, run.corpora)


def write_run(workdir, run):
    write_config(workdir, run.experiment.config | {"corpus": {"fingerprint": run.corpora.content_digest}})


@pytest.fixture
def clm(corpus, tmp_path):
    """The workdir of a run with 0.3 of the files held out."""
    write_run(tmp_path / "clm", run_of(corpus))
    return str(tmp_path / "clm")


def test_the_same_split_however_the_text_is_cut_and_whatever_is_trained(corpus, clm):
    other = {"name": "mlm", "architecture": "encoder_only", "seed": 5}
    for overrides in (other, {"data__document_per": "paragraph", "data__heldout_fraction": 0.1}):
        assert check_start(run_of(corpus, train__init_from=clm, **overrides)) == []


@pytest.mark.parametrize(
    "overrides",
    [{"data__heldout_fraction": 0.6}, {"data__document_per": "line", "data__split_seed": 1}],
)
def test_training_text_that_is_held_out_here_is_refused_with_its_number(corpus, clm, overrides):
    run = run_of(corpus, train__init_from=clm, **overrides)
    there = run_of(corpus).corpora.train_documents
    trained = {there.name(i) for i in range(len(there))}
    heldout = [run.corpora.heldout_documents.name(i) for i in range(len(run.corpora.heldout_documents))]
    found = f"{sum(name in trained for name in heldout)} of {len(heldout):,} held-out documents are training text of"
    assert sum(name in trained for name in heldout) > 0
    with pytest.raises(ConfigError, match=rf"train\.init_from={clm}: {found} {clm}: set the fields") as error:
        check_start(run)
    assert "train.init_from_overlap='allow'" in str(error.value) and "\n" not in str(error.value)
    allowed = run_of(corpus, train__init_from=clm, train__init_from_overlap="allow", **overrides)
    assert check_start(allowed) == [f"{found} {clm}"]


def test_the_starts_of_the_start_count_too(corpus, clm, tmp_path):
    write_run(tmp_path / "second", run_of(corpus, train__init_from=clm, data__split_seed=1))
    with pytest.raises(ConfigError, match=f"are training text of {clm}"):
        check_start(run_of(corpus, train__init_from=str(tmp_path / "second"), data__split_seed=1))


def test_text_that_cannot_be_compared_is_noted(corpus, clm, tmp_path):
    config = read_config(clm)
    write_config(clm, config | {"data": config["data"] | {"path": str(tmp_path / "elsewhere")}})
    [note] = check_start(run_of(corpus, train__init_from=clm))
    assert f"cannot be compared with all training text of {clm}: its corpus cannot be read here" in note
    write_config(clm, config | {"corpus": {"fingerprint": "of other text"}})
    [note] = check_start(run_of(corpus, train__init_from=clm))
    assert note.endswith(f"all training text of {clm}: its corpus has changed since")


def test_notes_on_scored_text(corpus, clm):
    trained, clm = load_experiment(clm), Workdir(clm)
    assert describe_trained_on(trained, clm, run_of(corpus)) == []
    [note] = describe_trained_on(trained, clm, run_of(corpus, data__split_seed=1))
    assert note.endswith("held-out documents are training text of the run")


def test_notes_on_scored_text_name_the_starts_of_the_run(corpus, clm, tmp_path):
    write_run(tmp_path / "second", run_of(corpus, train__init_from=clm, data__split_seed=1))
    second = str(tmp_path / "second")
    notes = describe_trained_on(load_experiment(second), Workdir(second), run_of(corpus, data__split_seed=1))
    assert len(notes) == 1 and notes[0].endswith(f"held-out documents are training text of {clm}")


def several(corpus, sources, **overrides):
    """The fields of a run of several corpora, by name: (source, path, document_per, heldout_path)."""
    table = {
        name: a_corpus(source=source, path=str(path), document_per=per, heldout_path=str(heldout))
        for name, (source, path, per, heldout) in sources.items()
    }
    return fields(corpus, data__source="", data__path="", data__sources=table, **overrides)


def texts(documents):
    return [documents.tokens(i).tobytes() for i in range(len(documents))]


def opened(corpus, sources, **overrides):
    return open_corpora(make_experiment(several(corpus, sources, **overrides)), show_progress=False)


def test_corpora_that_share_files_hold_out_the_same_files(corpus):
    """Also where they cut the files in another way, because a file's contents decide its side."""
    names = {"files": ("file", "*"), "lines": ("line", "[a-c]*"), "paragraphs": ("paragraph", "[b-z]*")}
    sources = {name: ("text", corpus / "text" / f"{glob}.txt", per, "") for name, (per, glob) in names.items()}
    corpora = opened(corpus, sources)

    # Some paragraphs of one line are a line of another file too.
    each = [(texts(text.train_documents), texts(text.heldout_documents)) for text in corpora.each]
    equal = [
        sum(any(text in train for other, (train, _) in enumerate(each) if other != k) for text in heldout)
        for k, (_, heldout) in enumerate(each)
    ]
    assert [text.elsewhere for text in corpora.each] == equal and sum(equal) < 5
    files, *others = [{side.name(i) for i in range(len(side))} for side in corpora.heldout_documents.by_corpus]
    assert all(other <= files and other for other in others)


@pytest.fixture
def copies(corpus, tmp_path):
    """JSON lines with paragraphs of the files: each is on a side of its own, and not on that of its file."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((corpus / "text").glob("*.txt"))[:8]]
    paragraphs = {paragraph for text in texts for paragraph in text.split("\n\n") if len(paragraph) > 150}
    (tmp_path / "copies.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in sorted(paragraphs)))
    return tmp_path / "copies.jsonl"


def test_held_out_text_that_another_corpus_trains_on_is_counted_and_dropped(corpus, copies):
    sources = {"copies": ("jsonl", copies, "file", ""), "files": ("text", corpus / "text", "paragraph", "")}

    kept = opened(corpus, sources)
    sides = {text.name: (texts(text.train_documents), texts(text.heldout_documents)) for text in kept.each}
    long = {text for texts_of in sides["copies"] for text in texts_of}
    expected = [
        sum(text in long & set(sides[b][0]) for text in sides[a][1])
        for a, b in (("copies", "files"), ("files", "copies"))
    ]
    assert [text.elsewhere for text in kept.each] == expected and min(expected) > 3
    dropped = opened(corpus, sources, data__near_duplicates="drop")
    held_out = [text.heldout_documents.index.tolist() for text in dropped.each]
    assert held_out == [text.heldout_documents.index.tolist() for text in kept.each], "held-out text stays"
    after = {text.name: set(texts(text.train_documents)) for text in dropped.each}
    assert not after["copies"] & set(sides["files"][1]) and not after["files"] & set(sides["copies"][1])
    assert len(after["copies"]) > 10 and len(after["files"]) > 10


def test_validation_text_is_no_test_text_of_another_corpus(corpus, copies):
    sources = {"copies": ("jsonl", copies, "file", ""), "files": ("text", corpus / "text", "paragraph", "")}
    tested = {text.name: set(texts(text.heldout_documents)) for text in opened(corpus, sources).each}
    found = {text.name: text for text in opened(corpus, sources, data__heldout="validation").each}
    both = {name: set(texts(text.heldout_documents)) for name, text in found.items()}
    assert {name: set(texts(text.test_documents)) for name, text in found.items()} == tested and all(both.values())
    every = set.union(*tested.values())
    assert not every & set.union(*both.values())
    dropped = opened(corpus, sources, data__heldout="validation", data__near_duplicates="drop").each
    for text in dropped:
        assert set(texts(text.heldout_documents)) == both[text.name]
        assert not set(texts(text.train_documents)) & (every | set.union(*both.values()))


def test_short_text_that_another_corpus_trains_on_is_counted_and_dropped(corpus, tmp_path, capsys):
    """Within one run equal texts are not equal by chance: without them a held-out loss could be that of a copy."""
    lines = [f"word{k} and {k}" for k in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines[name == "b" :: 2]))
    sources = {
        "lines": ("text", tmp_path / "*.txt", "line", ""),
        "rows": ("jsonl", tmp_path / "rows.jsonl", "file", ""),
    }

    def leaked(corpora):
        sides = [(set(texts(text.train_documents)), set(texts(text.heldout_documents))) for text in corpora.each]
        return [len(sides[0][1] & sides[1][0]), len(sides[1][1] & sides[0][0])]

    kept = opened(corpus, sources)
    assert [text.elsewhere for text in kept.each] == leaked(kept) and min(leaked(kept)) > 5
    assert leaked(opened(corpus, sources, data__near_duplicates="drop")) == [0, 0]
    run = make_run(make_experiment(several(corpus, sources)), show_progress=False)
    print_summary(run, Display(1, 0), str(tmp_path))
    printed = capsys.readouterr()
    found = re.findall(r"(\d+) of \d+ held-out documents of corpus", " ".join((printed.out + printed.err).split()))
    assert found == list(map(str, leaked(kept)))


def test_one_set_of_files_read_in_two_ways(corpus, tmp_path):
    """Another text of the same rows is other text; the same text, cut in another way, is not."""
    rows = [{"text": f"the text of row {k}", "summary": f"summary {k // 2}", "label": "x"} for k in range(80)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = a_corpus(source="jsonl", path=str(tmp_path / "rows.jsonl"))
    files = a_corpus(source="text", path=str(corpus / "text"))

    def elsewhere(first, second, **overrides):
        table = {"a": first, "b": second}
        config = fields(corpus, data__source="", data__path="", data__sources=table, **overrides)
        found = open_corpora(make_experiment(config), show_progress=False)
        return [part.elsewhere for part in found.each], [len(part.heldout_documents) for part in found.each]

    assert elsewhere(text, text | {"text_key": "summary"})[0] == [0, 0]
    assert elsewhere(text, text | {"documents": "split"})[0] == [0, 0], "both hold out the same documents"
    assert elsewhere(files, files | {"document_per": "line"})[0][0] == 0
    counts, heldout = elsewhere(
        files | {"document_per": "paragraph"}, files | {"document_per": "line"}, data__split_by="document"
    )
    assert counts[0] > heldout[0] / 2, "its lines are training text"


def test_runs_of_several_corpora_and_of_one(corpus, clm, copies, tmp_path):
    pairs = ("jsonl", corpus / "pairs.jsonl", "file", "")
    text = ("text", corpus / "text", "file", "")
    both = make_run(
        make_experiment(several(corpus, {"p": pairs, "t": text}, train__init_from=clm)), show_progress=False
    )
    assert check_start(both) == []
    others = several(corpus, {"p": pairs, "t": text}, train__init_from=clm, data__split_seed=1)
    with pytest.raises(ConfigError, match=f"held-out documents are training text of {clm}"):
        check_start(make_run(make_experiment(others), show_progress=False))
    write_run(tmp_path / "both", both)
    start = str(tmp_path / "both")
    assert check_start(run_of(corpus, train__init_from=start)) == []
    with pytest.raises(ConfigError, match=f"are training text of {start}"):
        check_start(run_of(corpus, train__init_from=start, data__split_seed=1))
    [note] = describe_trained_on(load_experiment(start), Workdir(start), run_of(corpus))
    assert "is not the corpus that the run was trained on" in note
