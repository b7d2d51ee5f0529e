"""What must be equal in all processes of a run, compared before the first step.

A process that reads another corpus, or runs another config or other code, would otherwise train without an error on
rows that belong to no run, or wait forever for a collective that the other processes do not call.
"""

import collections
import contextlib
import hashlib
import itertools
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from contract.errors import ConfigError

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("contract", "files", "models", "objectives", "learners", "data", "experiment", "workdir", "run", "train")
# Processes may need hours to build their token stores. The coordination service notices processes that end.
_TIMEOUT_MILLISECONDS = 24 * 3600 * 1000
_SHOWN = 3  # differing values in a message
_exchanges = itertools.count()

Report = Mapping[str, Any]  # "host": its name; "error": one line, or None; "values": name -> JSON value


@contextlib.contextmanager
def agreement() -> Iterator[dict[str, Any]]:
    """Yields a dict for the block to fill: name -> JSON value that must be equal in all processes of the run.

    At its end every process receives the others' dicts and errors. All processes must enter the same blocks in the same
    order, and a block must not communicate. A run of one process compares nothing.

    Raises ConfigError in every process, with the same line, which names a process and its host, if values differ, or if
    the block has raised an error in some process. A process whose block has raised another error raises it again, and
    if the block has raised the same ConfigError in all processes, they raise it unchanged.
    """
    values: dict[str, Any] = {}
    if not jax.distributed.is_initialized():
        yield values
        return
    try:
        yield values
    except ConfigError as error:
        reports = _reports(str(error), {})
        if all(report["error"] == str(error) for report in reports):
            raise
    except Exception as error:
        _reports(f"{type(error).__name__}: {' '.join(str(error).split())}", {})
        raise
    else:
        reports = _reports(None, values)
    if message := describe_disagreement(reports):
        raise ConfigError(message)


def describe_disagreement(reports: Sequence[Report]) -> str:
    """Returns a line that names the processes that disagree, on what, and with whom; "" if all agree.

    reports: of each process, in order. The values of most processes are the expected ones; of equally many, those of
      the process with the lowest index.
    """
    names = [f"process {index} ({report['host']})" for index, report in enumerate(reports)]
    for name, report in zip(names, reports, strict=True):
        if report["error"] is not None:
            return f"{name}: {report['error']}"
    contents = [json.dumps(report["values"], sort_keys=True) for report in reports]
    [(expected, _)] = collections.Counter(contents).most_common(1)
    differing = [index for index, content in enumerate(contents) if content != expected]
    if not differing:
        return ""
    first, reference = differing[0], contents.index(expected)
    ours, theirs = reports[first]["values"], reports[reference]["values"]
    fields = [
        name for name in {**theirs, **ours} if (name in ours, ours.get(name)) != (name in theirs, theirs.get(name))
    ]
    more = f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
    also = f"; {', '.join(names[index] for index in differing[1:])} differ too" if differing[1:] else ""
    return (
        f"{names[first]} has {_texts(ours, fields)}{more}, and {names[reference]} has {_texts(theirs, fields)}{also}: "
        "give every process of a run the same config, corpus, code and workdir"
    )


def code_digest() -> str:
    """Returns a hash of the source files of this project's packages, names included."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(_ROOT).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _texts(values: Mapping[str, Any], fields: Sequence[str]) -> str:
    shown = fields[:_SHOWN]
    return ", ".join(f"{name}={json.dumps(values[name])}" if name in values else f"no {name}" for name in shown)


def _reports(error: str | None, values: Mapping[str, Any]) -> list[Report]:
    """Returns the reports of all processes, in order."""
    return exchange({"host": socket.gethostname(), "error": error, "values": dict(values)})


def exchange(value: Any) -> list[Any]:
    """Returns the JSON values of all processes, in order. All processes must make the same calls in the same order.

    They are exchanged through the key-value store of JAX's coordination service, and not by a collective: processes
    with different meshes could not run one, and a collective does not wait as long as a token store may take.
    """
    if not jax.distributed.is_initialized():
        return [value]
    client, number = ocp.multihost.get_jax_distributed_client(), next(_exchanges)
    client.key_value_set(f"cloze/agreement/{number}/{jax.process_index()}", json.dumps(value))
    return [
        json.loads(client.blocking_key_value_get(f"cloze/agreement/{number}/{index}", _TIMEOUT_MILLISECONDS))
        for index in range(jax.process_count())
    ]
