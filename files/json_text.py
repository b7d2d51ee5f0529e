"""JSON from files that anything may have written."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ValueError for other text, and for nesting beyond Python's recursion."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
