"""Sizes to which rows are padded, so that texts of many lengths share a few compiled programs."""


def padded_length(length: int) -> int:
    """Returns the next multiple of a quarter of the power of two at or below `length`, at least of 16."""
    step = max(16, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step


def padded_rows(count: int) -> int:
    """Returns the next power of two, at least 1."""
    return 1 << max(count - 1, 0).bit_length()
