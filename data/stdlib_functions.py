"""Prompts and responses with nothing to download: the standard library's own documented functions.

The prompt is a function's signature and docstring, the response its body; together they are the function's source,
without the indentation that all its lines share:

    prompt    def count(path):                          response        with open(path) as file:
                  \"\"\"Number of lines in a file.\"\"\"                         return sum(1 for _ in file)
"""

import ast
import io
import textwrap
import warnings
from collections.abc import Iterator


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Prompt and response of each function in a module's `source` that has a docstring and something after it, in
    order: functions of the module and methods, but not functions inside others, whose text would come twice.

    Decorators stand before the prompt and are left out. Raises SyntaxError where `source` is not Python.
    """
    lines = _lines(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like: nothing is run
        tree = ast.parse(source)
    for function in _functions(tree):
        first, docstring_end, last = function.lineno, function.body[0].end_lineno, function.end_lineno
        if len(function.body) < 2 or not _is_docstring(function.body[0]) or function.body[1].lineno <= docstring_end:
            continue
        text = _lines(textwrap.dedent("".join(lines[first - 1 : last])))
        prompt_lines = docstring_end - first + 1
        yield "".join(text[:prompt_lines]), "".join(text[prompt_lines:])


def _lines(text: str) -> list[str]:
    """As `ast` counts them; str.splitlines would also end one at a form feed."""
    return io.StringIO(text, newline=None).readlines()


def _functions(statement: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):  # expressions, most of a tree, hold none
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
