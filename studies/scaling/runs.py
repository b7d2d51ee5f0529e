"""Reads the runs of a study of sizes as points of parameters, tokens and loss."""

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from models.parameters import leaf_name
from models.transformer import Params
from run.restore import config_for_reading
from studies.study import Study
from workdir.metrics import read_metrics
from workdir.run_config import flatten, read_config

Count = Literal["total", "non_embedding"]

# The tables of the vocabulary, of positions and of sentence types, and the output table.
_EMBEDDINGS = re.compile(r"(^|/)(token|position|token_type)_embedder/|(^|/)logits_dense/")


# Fields in which the runs of one law may differ: those of the size and of the number of tokens, those that change how
# often a run is evaluated or saved, and those of the machine.
_MAY_DIFFER = {
    "seed": "seed",
    "model": "num_layers|d_model|num_heads|num_kv_heads|head_dim|d_ff|embedding_size|attention|remat|scan_unroll",
    "loss": "chunk_size",
    "train": "steps|epochs|log_every|eval_every|checkpoint_every|checkpoint_minutes|keep_checkpoints|profile_steps|"
    "grad_accum_steps|trackers|tracker_project",
    "data": "path|heldout_path|cache_dir|reader_threads|prefetch_batches",
    "mesh": ".*",
}
_CORPUS = ("heldout", "tokenizer", "fingerprint")
_ABSENT = "absent"


class Point(NamedTuple):
    """A run at its end.

    Attributes:
      run: its folder.
      configuration: its folder without the seed. Runs that differ in their seeds alone share a configuration.
      params: N.
      tokens: D, raw tokens of text.
      loss: of the last evaluation, in nats per scored token.
      flops: model FLOPs of the training, as models/flops.py counts them.
    """

    run: str
    configuration: str
    params: float
    tokens: float
    loss: float
    flops: float


def folders_of(out: str) -> list[str]:
    """Returns the folders that --out names: folders or globs, separated by commas.

    Raises ConfigError for a name without a folder.
    """
    folders = []
    for name in out.split(","):
        found = sorted(filter(os.path.isdir, glob.glob(name))) if glob.has_magic(name) else [name]
        if not found or not os.path.isdir(found[0]):
            raise ConfigError(f"--out={name} is not a folder: name the --out of python -m train.ablate")
        folders += found
    return list(dict.fromkeys(map(os.path.normpath, folders)))


def read_points(study: Study, folders: Sequence[str], count: Count) -> tuple[list[Point], list[str]]:
    """Returns the finished runs of `study` in `folders`, and one line for each other run.

    Reads DIR/runs/<variant>-seed<k>/. A run is finished if its last evaluation is at its last step. That evaluation is
    the run's only point: with a learning rate that falls until the end of a run, the loss in the middle of a long run
    is higher than that of a run which ends there (Hoffmann et al. 2022, section 3.1).

    Raises ConfigError for a folder without runs of the study, and for runs that are not of one law (_must_agree).
    """
    points, left_out, compared = [], [], None
    sizes: dict[str, float] = {}
    for folder in folders:
        names = _runs_of(folder, study)
        for variant in study.variants:
            if not names.get(variant):
                left_out.append(f"{folder} has no run of variant {variant}")
        for run in (run for runs in names.values() for run in runs):
            result = _read(run)
            if isinstance(result, str):
                left_out.append(f"{run}: {result}")
                continue
            config, line = result
            same = _must_agree(config)
            compared = compared or (run, same)
            _check_compares(run, same, *compared)
            key = json.dumps([config["model"], config["objective"], config["data"]], sort_keys=True)
            if key not in sizes:
                sizes[key] = count_params(make_experiment(config_for_reading(config)).params_shapes, count)
            points.append(
                Point(
                    run=run,
                    configuration=run.rpartition("-seed")[0],
                    params=sizes[key],
                    tokens=line["raw_tokens"],
                    loss=line["loss"],
                    flops=line["flops"],
                )
            )
    return points, left_out


def count_params(shapes: Params, count: Count) -> int:
    """Returns the number of parameters.

    count: "total", as Hoffmann et al. (2022) count, or "non_embedding", as Kaplan et al. (2020) count: without the
      tables of tokens, positions and sentence types, and without the output table.
    """
    return sum(
        leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
        if count == "total" or not _EMBEDDINGS.search(leaf_name(path))
    )


def _runs_of(folder: str, study: Study) -> dict[str, list[str]]:
    """Returns variant -> folders of its runs, by seed."""
    found: dict[str, list[tuple[int, str]]] = {}
    inside = os.path.join(folder, "runs")
    for name in os.listdir(inside) if os.path.isdir(inside) else []:
        match = re.fullmatch(r"(\w+)-seed(\d+)", name)
        if match and match[1] in study.variants:
            found.setdefault(match[1], []).append((int(match[2]), os.path.join(inside, name)))
    if not found:
        raise ConfigError(
            f"--out={folder}: {inside} has no runs of this study's variants ({', '.join(study.variants)}): "
            "run python -m train.ablate with the same --study and --out first"
        )
    return {variant: [run for _, run in sorted(found[variant])] for variant in study.variants if variant in found}


def _read(run: str) -> tuple[dict[str, Any], dict[str, Any]] | str:
    """Returns a run's config and last evaluation, or why the run has no point."""
    try:
        config = read_config(run)
        evaluations = read_metrics(run, "eval")
        steps = config["train"]["steps"]
        same_fields = _must_agree(config)
    except ConfigError as error:
        return f"not started, or damaged: {error}"
    except (KeyError, TypeError):
        return "damaged: config.json does not have the fields of a run"
    last = evaluations[-1] if evaluations else {"step": 0}
    if last["step"] < steps:
        return f"unfinished: the last evaluation is at step {last['step']} of {steps}"
    if missing := [name for name in ("loss", "raw_tokens", "flops") if not last.get(name)]:
        return f"the last evaluation has no finite {missing[0]}"
    if missing := [name for name in same_fields if name.startswith("corpus.") and same_fields[name] is None]:
        return f"its config.json has no {missing[0]}, because an earlier version wrote it"
    return config, last


def _must_agree(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that runs must share to be points of one law: all but those of `_MAY_DIFFER`.

    Corpora are compared by their contents, so `data.path` may differ.
    """
    corpus = {f"corpus.{name}": config.get("corpus", {}).get(name) for name in _CORPUS}
    fields = flatten({name: config[name] for name in config if name != "corpus"})
    return corpus | {name: value for name, value in fields.items() if not _may_differ(name)}


def _may_differ(name: str) -> bool:
    section, _, field = name.partition(".")
    return section in _MAY_DIFFER and bool(re.fullmatch(_MAY_DIFFER[section], field or section))


def _check_compares(run: str, same: Mapping[str, Any], first: str, first_same: Mapping[str, Any]) -> None:
    for field in (*same, *(name for name in first_same if name not in same)):
        ours, theirs = first_same.get(field, _ABSENT), same.get(field, _ABSENT)
        if ours != theirs:
            raise ConfigError(
                f"{first} and {run} differ in {field} ({ours} and {theirs}), so they are not points of one law: fit "
                "runs that differ in size and tokens only"
            )
