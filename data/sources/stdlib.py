"""data.source="stdlib" and "stdlib_functions": the text of the running Python's standard library, never executed.

A document's label is the outermost package that contains its file, "" for a module outside packages.

"stdlib_functions" has the documented functions as prompts and responses. The prompt is a function's signature and
docstring, and the response is its body. Together they are the function's source, without the indentation that all its
lines share:

    prompt    def count(path):                          response        with open(path) as file:
                  \"\"\"Number of lines in a file.\"\"\"                         return sum(1 for _ in file)
"""

import ast
import io
import os
import platform
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import File, ReadFile, file_part, read_documents
from data.sources.source import RawDocument, Skipped, Source

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def open_stdlib(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the *.py files as text."""
    return _open(corpus, corpus.document_per, _read_text)


def open_stdlib_functions(corpus: CorpusConfig, path: str, field: str) -> Source:
    """Returns the documented functions of the *.py files as prompts and responses."""
    return _open(corpus, "function", _read_functions)


def _read_text(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    for text, digest in read_documents(file, corpus.document_per):
        yield RawDocument(file.name, text, label=_package(file.name), file_digest=digest)


def _read_functions(file: File, corpus: CorpusConfig, skipped: Skipped) -> Iterator[RawDocument]:
    for module, digest in read_documents(file, "file"):
        for prompt, response in documented_functions(module):
            yield RawDocument(file.name, response, prompt, _package(file.name), digest)


def _open(corpus: CorpusConfig, cut: str, read_file: ReadFile) -> Source:
    root = sysconfig.get_paths()["stdlib"]
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]  # site-packages alone can take seconds
        paths += [os.path.join(parent, name) for name in names if name.endswith(".py")]
    files = sorted(File(Path(path).relative_to(root).as_posix(), path) for path in paths)
    where = f"data.source={corpus.source!r}"
    if not files:
        raise ConfigError(f"{where} finds no .py file under {root}: set data.source='text' and data.path")
    # Sizes without times: the same Python in another folder or container has the same text.
    sizes = {file.name: os.path.getsize(file.path) for file in files}
    identity = {"python": platform.python_version(), "files": sizes}
    return Source(where, identity, cut, tuple(file_part(file, sizes[file.name], read_file, corpus) for file in files))


def _package(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def documented_functions(module: str) -> Iterator[tuple[str, str]]:
    """Yields the prompt and the response of each function of a module that has a docstring and a body after it.

    Functions of the module and methods are in the order of the text. Functions inside functions are excluded, because
    their text is part of the outer function. Prompts do not contain decorators.

    module: the module's source text. Raises SyntaxError where the text is not Python.
    """
    lines = _lines(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes, which are harmless in text that is never run
        tree = ast.parse(module)
    for function in _functions(tree):
        first, docstring_end, last = function.lineno, function.body[0].end_lineno, function.end_lineno
        has_both = len(function.body) > 1 and ast.get_docstring(function, clean=False) is not None
        if not has_both or function.body[1].lineno <= docstring_end:
            continue
        text = _lines(textwrap.dedent("".join(lines[first - 1 : last])))
        prompt_lines = docstring_end - first + 1
        yield "".join(text[:prompt_lines]), "".join(text[prompt_lines:])


def _lines(text: str) -> list[str]:
    """The lines as `ast` counts them; str.splitlines would also end a line at a form feed."""
    return io.StringIO(text, newline=None).readlines()


def _functions(statement: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    # Only the fields that contain statements: expressions, which are most of a tree, contain no function definitions.
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(statement, block, ()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            else:
                yield from _functions(child)
