"""What the lengths and edge tokens of a sentence pair reveal of its label (NSP, SOP): nothing."""

import ast
import io
import pathlib
import re
import sysconfig
from pydoc_data import topics

import numpy as np
import pytest

from configs import nsp, sop
from experiment.experiment import make_experiment
from tests.data.corpus import all_documents, store_of
from tests.edge_probe import edges_of, probe

MODULES = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
PACKAGES = ("asyncio", "concurrent", "ctypes", "email", "http", "importlib", "json", "logging", "multiprocessing")


def code() -> list[str]:
    """Modules of the standard library."""
    return [path.read_text(encoding="utf-8") for path in MODULES]


def english() -> list[str]:
    """The texts of Python's help, and the docstrings of each module of some packages, as running text."""
    documents = [" ".join(text.split()) for text in topics.topics.values()]
    for path in [*MODULES, *(path for name in PACKAGES for path in MODULES[0].parent.glob(f"{name}/**/*.py"))]:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        docstrings = [
            ast.get_docstring(node) for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        ]
        text = " ".join(" ".join(docstring.split()) for docstring in docstrings if docstring)
        if len(text) > 500:
            documents.append(text)
    return documents


def shuffled(documents: list[str], between: str, size: int, sentences: tuple[int, int]) -> list[str]:
    """Documents of sentences drawn from all `documents`, so that neither order nor document means anything.

    between: the pattern of the place between two sentences. size: characters of all documents together. sentences: the
    fewest and the most sentences of a document.
    """
    generator = np.random.default_rng(0)
    pool = [sentence for text in documents for sentence in re.split(between, text)[1:-1]]
    found, total = [], 0
    while total < size:
        drawn = generator.integers(0, len(pool), generator.integers(sentences[0], sentences[1] + 1))
        found.append("".join(pool[k] for k in drawn))
        total += len(found[-1])
    return found


def sentence_piece(folder: pathlib.Path, documents: list[str]) -> str:
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([text[:4000] for text in documents]), model_writer=model, vocab_size=800,
        byte_fallback=True, minloglevel=2, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    (folder / "english.model").write_bytes(model.getvalue())
    return str(folder / "english.model")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Name -> (documents, data.tokenizer). The texts are shuffled, so whatever reveals the label is an artefact."""
    modules, docstrings = code(), english()
    pieces = sentence_piece(tmp_path_factory.mktemp("pieces"), docstrings)
    line, stop = r"(?<=\n)", r"(?<=[.!?])(?=\s)"
    return {
        "shuffled code": (shuffled(modules, line, 2_000_000, (100, 300)), "byte"),
        "shuffled English": (shuffled(docstrings, stop, 4_000_000, (1, 12)), pieces),
    }


def pairs_of(config, documents, tokenizer, folder, num_pairs):
    """The edges and labels of `num_pairs` pairs of `documents`."""
    config = config.get_config("tiny")
    config.data.tokenizer = tokenizer
    experiment = make_experiment(config.to_dict())
    batches = experiment.batches(all_documents(store_of(folder, documents, tokenizer=tokenizer)), batch_size=500)
    edges, labels = [], []
    while sum(map(len, labels)) < num_pairs:
        batch = batches[len(labels)]
        edges.append(edges_of(batch))
        labels.append(batch["sentence_labels"][batch["sentence_labels"] >= 0])
    return {name: np.concatenate([of_batch[name] for of_batch in edges]) for name in edges[0]}, np.concatenate(labels)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffled code", "shuffled English"])
@pytest.mark.parametrize("config", [nsp, sop], ids=["nsp", "sop"])
def test_lengths_and_edge_tokens_do_not_reveal_the_label(config, name, texts, tmp_path):
    """Classifiers are fitted on the pairs of one half of the documents and tested on those of the other half."""
    documents, tokenizer = texts[name]
    sides = [pairs_of(config, documents[k::2], tokenizer, tmp_path / str(k), 4000) for k in (0, 1)]
    noise = 0.5 / np.sqrt(len(sides[1][1]))
    best, accuracy = max(probe(*sides).items(), key=lambda item: item[1])
    assert accuracy < 0.5 + 4.5 * noise, best
