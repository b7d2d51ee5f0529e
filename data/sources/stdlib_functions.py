"""Prompts and responses that need no download: the standard library's documented functions.

The prompt is a function's signature and docstring, and the response is its body. Together they are the function's
source, without the indentation that all its lines share:

    prompt    def count(path):                          response        with open(path) as file:
                  \"\"\"Number of lines in a file.\"\"\"                         return sum(1 for _ in file)
"""

import ast
import io
import textwrap
import warnings
from collections.abc import Iterator


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
        if len(function.body) < 2 or not _is_docstring(function.body[0]) or function.body[1].lineno <= docstring_end:
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


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
