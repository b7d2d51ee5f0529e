"""Seeded bits that do not depend on the machine, the process or the order of calls."""

import hashlib

import numpy as np

STEP = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: np.ndarray) -> np.ndarray:
    """uint64 [...] -> uint64 [...]: splitmix64's finaliser, a bijection; every output bit depends on every input bit.

    Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014), variant Mix13.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def seed_bits(seed: int, purpose: str) -> int:
    """64 bits for one use of the seed. Any Python int will do, and each purpose gets a stream of its own."""
    return int.from_bytes(hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest())


def example_keys(seed: int, examples: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """The randomness of examples: a function of (seed, global example index, piece) and of nothing else.

    Args:
      examples: int64 [E], index of the example among all the examples of the run.
      pieces: int64 [E], which piece of that example's window; 0 where a window is one piece.

    Returns uint64 [E].
    """
    windows = mix64(np.uint64(seed_bits(seed, "example")) + STEP * examples.astype(np.uint64))
    return mix64(windows + STEP * pieces.astype(np.uint64))
