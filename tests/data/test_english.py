"""python -m data.english: what it makes of small zip files in the layout of nltk_data."""

import json
import sys
import zipfile

import pytest

from contract.errors import ConfigError
from data import english

LONG = "word " * 50
CORPORA = {
    "abc": {"abc/rural.txt": "\n".join(f"{k} {LONG}" for k in range(13)), "abc/README": LONG},
    "state_union": {"state_union/1945-Truman.txt": LONG},
    "inaugural": {"inaugural/1789-Washington.txt": f"  {LONG}\r\n\n\n\n{LONG}"},
    "webtext": {"webtext/grail.txt": LONG.replace("word", "knight")},
    "genesis": {"genesis/english-kjv.txt": LONG.replace("word", "light"), "genesis/finnish.txt": "sana " * 60},
    "movie_reviews": {"movie_reviews/neg/cv000_1.txt": LONG, "movie_reviews/pos/cv001_2.txt": "caf\xe9 " * 50},
    "switchboard": {"switchboard/transcript": LONG.replace("word", "um")},
    "brown": {"brown/ca01": "\t".join(["The/at", "1/2/cd"] * 50), "brown/README": LONG},
    "masc_tagged": {"masc_tagged/written/a.txt": "A_DT b_c_NN " * 60, "masc_tagged/categories.txt": LONG},
    "shakespeare": {
        "shakespeare/hamlet.xml": "<PLAY><ACT><SPEECH><SPEAKER>HAMLET</SPEAKER>"
        + "<LINE>To be, or not to be</LINE>" * 20
        + "<LINE><STAGEDIR>Exit</STAGEDIR></LINE></SPEECH></ACT></PLAY>"
    },
    "sentence_polarity": {
        "sentence_polarity/rt-polarity.neg": "\n".join(f"bad {k}" for k in range(10)) + "\nboth\nboth",
        "sentence_polarity/rt-polarity.pos": "\n".join(f"good {k}" for k in range(10)) + "\nboth",
    },
    "subjectivity": {
        "subjectivity/plot.tok.gt9.5000": "\n".join(f"plot {k}" for k in range(5)),
        "subjectivity/quote.tok.gt9.5000": "\n".join(f"quote {k}" for k in range(5)),
    },
    "qc": {"qc/train.txt": "NUM:dist How far ?\nHUM:ind Who ?\nHUM:ind Who ?", "qc/test.txt": "HUM:ind Who ?"},
    "pros_cons": {
        "pros_cons/IntegratedCons.txt": "<Cons>heavy and slow</Cons>\n<Cons>none</Cons>",
        "pros_cons/IntegratedPros.txt": "<Pros>light and fast</Pros>",
    },
}


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone" / "packages" / "corpora"
    folder.mkdir(parents=True)
    for corpus, files in CORPORA.items():
        with zipfile.ZipFile(folder / f"{corpus}.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text.encode("latin-1" if "\xe9" in text else "utf-8"))
    return tmp_path / "clone"


def test_the_documents_of_each_kind_of_file(clone):
    found: dict[str, list[str]] = {}
    for document in english.documents(english.NltkData(clone)):
        found.setdefault(document["source"], []).append(document["text"])
    assert [len(text.splitlines()) for text in found["abc"]] == [12, 1]  # without the README
    assert found["state_union"] == [LONG.strip()]
    assert found["inaugural"] == [f"{LONG} \n\n{LONG}".replace("  ", " ").strip()]
    assert found["movie_reviews"] == [("caf\xe9 " * 50).strip()]  # the other one is the text of state_union
    assert found["brown"] == ["The 1/2 " * 49 + "The 1/2"]
    assert found["masc_tagged"] == [("A b_c " * 60).strip()]
    assert found["shakespeare"] == ["HAMLET:\n" + "To be, or not to be\n" * 19 + "To be, or not to be"]
    assert found["genesis"] == [LONG.replace("word", "light").strip()]


def test_a_text_of_a_test_part_is_in_no_training_part(clone):
    found = english.tasks(english.NltkData(clone))
    train, test = found["mr"]
    assert (len(train), len(test)) == (16, 4) and {text for text, _ in train}.isdisjoint(text for text, _ in test)
    assert found["trec"] == ([("How far ?", "NUM")], [("Who ?", "HUM")])
    assert sorted([*found["proscons"][0], *found["proscons"][1]]) == [
        ("heavy and slow", "con"),
        ("light and fast", "pro"),
    ]
    assert {label for _, label in [*found["subj"][0], *found["subj"][1]]} == {"objective", "subjective"}


def test_texts_with_two_labels_leave_and_case_and_punctuation_do_not_make_a_text_another_one():
    texts = [(f"good {k}", "pro") for k in range(40)] + [(f"GOOD, {k}!", "pro") for k in range(40)]
    train, test = english._split([*texts, ("so so", "pro"), ("So so.", "con")])
    assert len(test) == 16 and not {"so so", "So so."} & {text for text, _ in [*train, *test]}
    numbers = [{text.strip("!").split()[1] for text, _ in part} for part in (train, test)]
    assert numbers[0].isdisjoint(numbers[1])


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["english", *map(str, flags)])
    english.main()


def test_the_command_writes_the_same_files_again_and_replaces_none(clone, tmp_path, monkeypatch, capsys):
    english._FLAGS.unparse_flags()
    for out in ("a", "b"):
        run(monkeypatch, f"--nltk_data={clone}", f"--out={tmp_path / out}")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(
        ["english.jsonl"]
        + [f"{n}.{p}.jsonl" for n in ("mr", "subj", "trec", "proscons") for p in ("train", "test", "500")]
    )
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a" / "trec.test.jsonl").read_text()) == {"text": "Who ?", "label": "HUM"}
    printed = capsys.readouterr().err
    assert "trec.test.jsonl: 1 texts, 5 bytes" in printed and "trec.test.jsonl: 0 texts are in english.jsonl" in printed
    with pytest.raises(ConfigError, match="exists and is not empty"):
        run(monkeypatch, f"--nltk_data={clone}", f"--out={tmp_path / 'a'}")


def test_few_texts_are_of_the_training_part():
    train = [(f"text {k}", str(k % 2)) for k in range(900)]
    assert len(english.few(train)) == 500 and {*english.few(train)} <= {*train}
    assert english.few(train) == english.few(train)
    assert sorted(english.few(train[:3])) == train[:3]


def test_the_first_pairs_of_each_paradigm(clone, tmp_path, monkeypatch):
    row = {"linguistics_term": "island_effects", "UID": "adjunct_island", "sentence_bad": "bad"}
    folder = tmp_path / "blimp" / "data"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        lines = [json.dumps(row | {"sentence_good": f"{name} {k}"}) for k in range(30)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    english._FLAGS.unparse_flags()
    run(monkeypatch, f"--nltk_data={clone}", f"--blimp={tmp_path / 'blimp'}", f"--out={tmp_path / 'out'}")
    found = [json.loads(line) for line in (tmp_path / "out" / "blimp.jsonl").read_text().splitlines()]
    assert [pair["good"] for pair in found] == [f"{name} {k}" for name in ("a", "b") for k in range(20)]
    assert found[0] == {"good": "a 0", "bad": "bad", "group": "island_effects", "paradigm": "adjunct_island"}
    with pytest.raises(ConfigError, match="has no data"):
        english.pairs(tmp_path)
    (folder / "a.jsonl").write_text('{"sentence_good": "a"}')
    with pytest.raises(ConfigError, match=r"a\.jsonl is no file of BLiMP"):
        english.pairs(tmp_path / "blimp")


def test_a_test_text_in_the_corpus_is_found_whatever_case_and_punctuation_and_short_ones_are_not():
    texts = ["Nothing about this movie works .", "about this movie works well", "this movie works"]
    documents = ["no , nothing about this \n movie works", "about this movie works; nothing"]
    assert english.found_in(texts, documents) == {texts[0]}
