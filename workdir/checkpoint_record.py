"""The metrics file of a checkpoint: its eval loss and counters, and the type and checksum of each array."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from models.parameters import array_types
from workdir.checkpoint_errors import Damage
from workdir.checksums import checksums

_FIRST_FIELDS = {"eval_loss", "counters"}  # the only fields of checkpoints without checksums, of earlier versions


def make_record(state: Any, eval_loss: float | None, counters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the contents of the metrics file for a checkpoint of `state`, a tree of arrays.

    All processes must call this function.
    """
    types = array_types(state)
    arrays = {name: {"type": types[name], "checksum": checksum} for name, checksum in checksums(state).items()}
    # As it will be read: JSON makes keys strings, which have another order than numbers.
    record = json.loads(json.dumps({"eval_loss": eval_loss, "counters": counters, "arrays": arrays}))
    return record | {"digest": _digest(record)}


def verified(record: Any) -> dict[str, Any] | None:
    """Returns `record`, the contents of a metrics file, or None if it is not what `make_record` has returned.

    A record without checksums, which an earlier version wrote, is returned unchanged.
    """
    if not isinstance(record, dict) or "eval_loss" not in record:
        return None
    if record.keys() <= _FIRST_FIELDS:
        return record
    fields = {name: value for name, value in record.items() if name != "digest"}
    return record if record.get("digest") == _digest(fields) else None


def types_in(record: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns the arrays of a checkpoint, as models.parameters.array_types has them; None if its record has no arrays."""
    arrays = record.get("arrays")
    return None if arrays is None else {name: array["type"] for name, array in arrays.items()}


def check_arrays(record: Mapping[str, Any], arrays: Mapping[str, str]) -> None:
    """Raises Damage if the checksums `arrays`, of workdir.checksums, differ from those in the record, if it has any."""
    saved = record.get("arrays")
    differing = [name for name, checksum in arrays.items() if saved and saved[name]["checksum"] != checksum]
    if differing:
        more = f", and so do {len(differing) - 1} more arrays" if len(differing) > 1 else ""
        raise Damage(f"{differing[0]} differs from its checksum{more}")


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()
