"""Numbers of things in text."""


def plural(count: int, noun: str) -> str:
    """Returns "1 span", "2 spans" or "1,000 spans" for the noun "span"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
