"""The tokens of a store in a bucket, read by range (data.read_by_range): what batches need, and no copy of it.

The windows of a batch are at random places of the store, so whole blocks would be read for one window each, and are not
read or kept. The slices of a batch are requested at the same time (`in_memory`).

An object of a bucket does not change, but it can be replaced: its version is compared after every read. A version is
verified once, by the processes together, with the checksums of meta.json; the object `verified.txt` next to it then
says so.
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cluster.cluster import ALONE
from command.program import print_note
from contract.errors import ConfigError
from data.store.checksums import SMALL_BYTES, TOKENS, AllGather, Piece, damaged, new_hash, pieces, verify_together
from files.paths import read_bytes, read_ranges, reason, size_and_version, write_object

_BLOCK_BYTES = 8 << 20  # of each request of a verification, of which there are _BLOCKS at the same time
_BLOCKS = 8


class RangeTokens:
    """An array of tokens in a bucket, unsigned integers [N]: `tokens[begin:end]` and `tokens[places]` are read from it.

    Attributes:
      address: of the object.
      dtype: of the tokens.
    """

    def __init__(self, folder: str, meta: Mapping[str, Any]):
        """folder: the store's address. meta: the store's. Raises OSError, and ValueError for another size."""
        self.address, self.dtype = f"{folder}/{TOKENS}", np.dtype(meta["dtype"])
        self._size, self._version = size_and_version(self.address)
        self._marker, self._seal = f"{folder}/verified.txt", f"{self._version} {meta['meta_checksum']}"
        if (size := meta["file_sizes"][TOKENS]) != self._size:
            raise ValueError(f"{TOKENS} has {self._size} bytes, not {size}")

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray:
        """The tokens of a slice without a step, or at places, int64 [n]; negative ones count from the end."""
        count = self._size // self.dtype.itemsize
        if isinstance(key, slice):
            begin, end, _ = key.indices(count)
            return self.read([begin], [max(end - begin, 0)])[0]
        places = np.where(key < 0, key + count, key)
        first = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # of each run of adjacent places
        return np.concatenate(self.read(places[first], np.diff(first, append=len(places))))

    def read(self, starts: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The tokens of n slices, requested at the same time. Raises as `fetch` does."""
        begins = np.multiply(starts, self.dtype.itemsize, dtype=np.int64)
        ends = begins + np.multiply(lengths, self.dtype.itemsize, dtype=np.int64)
        return [np.frombuffer(part, self.dtype) for part in self.fetch(begins.tolist(), ends.tolist())]

    def fetch(self, begins: list[int], ends: list[int]) -> list[bytes]:
        """The bytes from each of `begins` to each of `ends`, requested at the same time.

        Raises ConfigError where the object is no longer the one that was opened, and OSError where it cannot be read:
        gcsfs and s3fs have repeated the requests before.
        """
        asked = [k for k, (begin, end) in enumerate(zip(begins, ends, strict=True)) if begin < end]
        parts = self._read_version([begins[k] for k in asked], [ends[k] for k in asked])
        found = [b""] * len(begins)
        for k, part in zip(asked, parts, strict=True):
            found[k] = part
        return found

    def _read_version(self, begins: list[int], ends: list[int]) -> list[bytes]:
        found = None
        try:
            return read_ranges(self.address, begins, ends)
        finally:  # whatever was read, or could not be read, may be of another version
            with contextlib.suppress(FileNotFoundError):
                found = size_and_version(self.address)
            if found != (self._size, self._version):
                raise ConfigError(
                    f"{self.address} was replaced or deleted while it was read: restore it, and start the run again, "
                    "which continues from its newest checkpoint"
                )

    def verify_once(self, meta: Mapping[str, Any], all_gather: AllGather, records: bool) -> None:
        """Compares the tokens with the checksums of meta.json, unless this version of the object has been compared.

        all_gather: of the processes that open the store, which divide the work. records: whether to write to the bucket
        that it was; otherwise, and where that is not permitted, the next start verifies again.

        Raises ValueError for damage, and as `fetch` does.
        """
        is_verified = False
        with contextlib.suppress(OSError, UnicodeDecodeError):
            is_verified = read_bytes(self._marker).decode() == self._seal
        what, check = f"{self._size / 1e9:,.1f} GB of {self.address}", functools.partial(self._verify, pieces(meta))
        if verify_together(what, f"{self.address} {self._seal}", is_verified, check, all_gather) != 0 or not records:
            return
        try:
            write_object(self._marker, self._seal.encode())
        except OSError as error:
            print_note(f"{self._marker} cannot be written ({reason(error)}): the next start verifies the tokens again")

    def _verify(self, found: list[Piece], part: slice) -> None:
        for name, start, size, checksum in [piece for piece in found if piece[0] == TOKENS][part]:
            digest, end = new_hash(), min(start + size, self._size)
            for begin in range(start, end, _BLOCKS * _BLOCK_BYTES):
                begins = list(range(begin, min(begin + _BLOCKS * _BLOCK_BYTES, end), _BLOCK_BYTES))
                for block in self.fetch(begins, [min(each + _BLOCK_BYTES, end) for each in begins]):
                    digest.update(block)
            if digest.hexdigest() != checksum:
                raise ValueError(f"{name} differs from its checksum")


def open_tokens(folder: str, meta: Mapping[str, Any], all_gather: AllGather, records: bool) -> RangeTokens:
    """Returns the tokens of the store `folder` in a bucket, verified.

    all_gather: of the processes that open the store, which divide the verification of a large one. records: as of
    `RangeTokens.verify_once`.

    Raises ConfigError where tokens.bin is missing, is not what was written, or cannot be read.
    """
    is_large = sum(meta["file_sizes"].values()) >= SMALL_BYTES  # where processes with a copy exchange values too
    try:
        tokens = RangeTokens(folder, meta)
        tokens.verify_once(meta, all_gather if is_large else ALONE.all_gather, records)
        print_note(f"token store {folder}: {meta['file_sizes'][TOKENS] / 1e9:,.1f} GB of tokens are read by range")
    except ConfigError:
        raise
    except (FileNotFoundError, ValueError) as error:
        raise damaged(folder, error) from None
    except OSError as error:
        raise ConfigError(f"token store {folder} cannot be read: {reason(error)}") from None
    return tokens


def in_memory(stores: Sequence[Any], starts: np.ndarray, lengths: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns arrays with the tokens of n slices, and where each slice starts in its array, int64 [n].

    stores: the tokens of the store that each slice is of. Those that are RangeTokens are read, all slices of a store at
    the same time, and the array then has the slice alone.
    """
    stores, starts = list(stores), starts.copy()
    for tokens in {store for store in stores if isinstance(store, RangeTokens)}:
        chosen = [k for k, store in enumerate(stores) if store is tokens]
        for k, part in zip(chosen, tokens.read(starts[chosen], lengths[chosen]), strict=True):
            stores[k] = part
        starts[chosen] = 0
    return stores, starts
