"""What is read is data: no file that is read is executed, and text of corpora is text in every page."""

import ast
import json
import os
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

from command.flags import execute_file
from contract.errors import ConfigError
from data.store.checksums import file_checksum, read_meta, sealed
from data.store.store import TokenStore
from run.restore import load_experiment
from show.page import open_page
from show.terminal import html_page, svg_page
from studies.markdown import code, text
from tests.data.corpus import store_of
from tests.train.tiny_experiments import tiny_experiment
from workdir.workdir import Workdir

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"} | {"launch", "examples"})
HOSTILE = "<script>alert('1')</script><img src=x onerror=\"alert(2)\">'\"><b onclick=alert(3)>&lt;u&gt; --> ]]>"

# Modules that execute what they read, or start other programs with text as commands.
EXECUTING_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "code",
}
EXECUTING_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "np.fromregex"}
# --config of ml_collections is executed, and so are --study with the files of configs/ that it names, and --code. Entry
# points of installed packages (experiment/outside.py) are imported. Nothing else is.
OWN_CODE = {("command/flags.py", "spec.loader.exec_module"), ("benchmarks/measuring.py", "importlib.import_module")}


def sources():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def executing(tree):
    """Yields what a module's source executes or could execute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in EXECUTING_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in EXECUTING_MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if name in EXECUTING_CALLS or name.endswith((".exec_module", ".import_module")):
                yield name
            if name in ("np.load", "numpy.load") and "allow_pickle" in keywords:
                yield "np.load(allow_pickle)"
            if isinstance(shell := keywords.get("shell"), ast.Constant) and shell.value:
                yield f"{name}(shell=True)"


def test_the_search_finds_what_executes():
    found = (
        "import pickle\nfrom yaml import load\neval(x)\nnp.load(f, allow_pickle=True)\nsubprocess.run(x, shell=True)"
    )
    assert [*executing(ast.parse(found))] == [
        "pickle", "yaml", "eval", "np.load(allow_pickle)", "subprocess.run(shell=True)",
    ]  # fmt: skip


def test_no_source_executes_what_it_reads():
    paths = sources()
    assert len(paths) > 200
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for path in paths
        for what in executing(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == OWN_CODE


class Payload:
    """An object whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickled_array_in_a_store_is_refused_and_not_executed(tmp_path):
    folder, made = store_of(tmp_path, ["ab", "cd"]).folder, tmp_path / "executed"
    pickled = folder / "offsets.npy"
    np.save(pickled, np.array([Payload(made)], object), allow_pickle=True)
    np.load(pickled, allow_pickle=True)
    assert made.is_dir(), "the payload works"
    made.rmdir()
    meta = json.loads((folder / "meta.json").read_text())
    del meta["meta_checksum"]
    meta["file_sizes"]["offsets.npy"] = pickled.stat().st_size
    meta["checksums"]["offsets.npy"] = file_checksum(pickled)
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))
    with pytest.raises(ConfigError, match=r"token store .* is damaged \(ValueError: .*\): delete that folder") as error:
        TokenStore(folder)
    assert "\n" not in str(error.value) and not made.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(dtype="O"),  # whose bytes would be taken for pointers to objects
        lambda meta: meta["file_sizes"].update({"../outside.npy": 1}),
        lambda meta: meta["checksums"].update({"/outside.npy": ""}),
    ],
)
def test_a_store_with_other_types_or_files_elsewhere_is_damaged(tmp_path, change):
    folder = store_of(tmp_path, ["ab", "cd"]).folder
    meta = read_meta(folder)
    change(meta)
    (folder / "meta.json").write_text(json.dumps(sealed(meta)))
    with pytest.raises(ValueError, match=r"meta\.json is not what was written"):
        read_meta(folder)


@pytest.mark.parametrize("registered", ["clm", "other"])
def test_a_file_that_a_run_names_is_not_executed(tmp_path, registered):
    payload, made, run = tmp_path / "an objective;.py", tmp_path / "executed", tmp_path / "run"
    payload.write_text(f"import os; os.mkdir({str(made)!r})")
    config = tiny_experiment("clm", "decoder_only").config
    origin = {"file": str(payload), "sha256": file_checksum(payload)}
    Workdir(run).write_config(config | {"code": {"objectives": {registered: origin}, "learners": {}}})
    with pytest.raises(
        ConfigError, match=rf"'{registered}' is not of this repository: .* add --code='{payload}', which"
    ):
        load_experiment(str(run))
    assert not made.exists()
    execute_file(str(payload), "--code")
    assert made.is_dir(), "the payload works"


class Elements(HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def assert_harmless(page):
    """Returns the text of an HTML page, in which no hostile text has become an element or an attribute."""
    found = Elements(page)
    assert not found.tags & {"script", "iframe", "object", "embed", "link", "form"}
    assert not [name for name in found.attributes if name.startswith("on")]
    return found.text


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    """The page of train.show for a corpus with hostile texts, labels and names of files."""
    folder = tmp_path_factory.mktemp("corpus")
    hostile_name = HOSTILE.replace("/", "|")
    for number in range(40):
        line = json.dumps({"text": f"{HOSTILE} {number} " * 3, "label": f"{HOSTILE}{number % 2}"})
        (folder / f"{hostile_name} {number}.jsonl").write_text(line)
    name = f"{HOSTILE}\x1b]0;the title of a terminal\x07"
    data = {"source": "jsonl", "path": str(folder), "cache_dir": str(folder / "cache"), "mode_tokens": (name,)}
    denoisers = {name: {"weight": 1.0, "mode": name, "name": "clm"}}
    objective = {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": denoisers}
    experiment = tiny_experiment(objective, "decoder_only", data=data | {"inputs_length": 256})
    return open_page(experiment, title=name)


def test_text_of_a_corpus_is_text_in_the_page_of_show(hostile_page):
    text = assert_harmless(html_page(hostile_page))
    assert "\x1b" not in text
    assert text.count(HOSTILE) >= 4, "the title, the denoiser, the mode token, the examples"
    svg = ElementTree.fromstring(svg_page(hostile_page))
    tags = {re.sub(r"{.*}", "", element.tag) for element in svg.iter()}
    assert tags <= {"svg", "title", "style", "defs", "clipPath", "rect", "circle", "g", "text"}


def test_names_are_text_in_a_report():
    outside_code = re.sub(r"`[^`]*`", "", text(f"{HOSTILE} and `{HOSTILE}`"))
    assert "&lt;" in outside_code and "<" not in outside_code
    assert code(f"```{HOSTILE}").startswith("````\n")
