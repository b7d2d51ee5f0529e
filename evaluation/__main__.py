"""Evaluates a checkpoint of a run on held-out text: python -m train.evaluate --workdir=DIR [--step=N]

Prints one JSON line: loss, perplexity and accuracy, with standard errors over documents; loss, accuracy and the numbers
of documents and scored tokens of each denoiser; bits per byte where defined; the floors (evaluation/floors.py) of bits
per byte, or of the accuracy and macro F1 of classification; heldout_digest, which is equal for runs that hold out the
same text; and, with bits per byte, heldout_windows, which is equal for runs that read it in the same windows.
train.eval_windows windows are scored; with --all, all held-out windows.

With --config=configs/OTHER.py [--config.a.b=value ...] the same model is scored under another config: its objective,
layout, lengths and corpus, wherever the architecture and the vocabulary allow it. The model, the precision and the
split are the run's. The line then names the config and the overrides.

A corpus that has changed since the run was trained, or another tokenizer in its place, is an error. With
--allow_changed_corpus it is a note.

With --probe=NAME a quantity is computed instead that has the same meaning for every run (evaluation/probes):
  continuation           nats and bits per byte of the second half of held-out texts, given the first half
  infilling              exact match and nats per byte of one hidden span, given the text on both sides of it
  pseudo_log_likelihood  nats per byte of each token, or word, given the rest of the text
  minimal_pairs          which sentence of each pair in --path=FILE.jsonl is likelier
  exact_match            the share of prompts whose whole answer is right: of held-out documents, or of --path
  linear                 the accuracy of a logistic regression on frozen states of labelled texts, --path and --test
"""

import json

from absl import flags

from cluster.devices import use_compilation_cache
from command.flags import config_fields, config_name, config_overrides, define_config, parse_flags, run_command
from command.program import print_note
from contract.errors import ConfigError
from evaluation.cross_evaluate import scoring_experiment, scoring_params
from evaluation.floors import printed_floors
from evaluation.leakage import describe_trained_on
from evaluation.probes.command import answer, check_probe, define_probe_flags, probe_of_flags
from run.compiled_run import make_run
from run.corpus import describe_changed_corpus
from run.evaluation import evaluate, heldout_windows, score_all
from run.restore import load_experiment, load_params, reading_mesh
from workdir.workdir import Workdir

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to evaluate. Default: the newest.", flag_values=_FLAGS)
_ALLOW_CHANGED_CORPUS = flags.DEFINE_bool(
    "allow_changed_corpus", False, "Score another text or tokenizer than the run's, and print a note.", _FLAGS
)
define_probe_flags(_FLAGS)


def main() -> None:
    """Evaluates a checkpoint of a run, under the run's config or another one, and prints one JSON line."""
    parse_flags(_FLAGS, __doc__)
    use_compilation_cache()
    probe = probe_of_flags(_FLAGS)
    workdir = Workdir(_WORKDIR.value)
    trained = load_experiment(workdir, on_other_tokenizer=_on_change)
    experiment, own_config = trained, _FLAGS["config"].value is None
    if not own_config:
        other = {"name": config_name(_FLAGS), "overrides": config_overrides(_FLAGS)}
        experiment = scoring_experiment(trained, config_fields(_FLAGS), **other)
    if probe is not None:
        check_probe(probe, experiment)
    mesh = reading_mesh(trained, batch_size=experiment.train.batch_size)
    params, step = load_params(trained, workdir, _STEP.value, mesh=mesh)
    if _FLAGS["all"].value:
        experiment = score_all(experiment)
    run = make_run(experiment, mesh=mesh) if probe is None or probe.reads_corpus else None
    if own_config and run is not None and (changed := describe_changed_corpus(workdir, experiment, run.corpora)):
        _on_change(changed)
    line = {"step": step, "split": "eval"}
    if trained.train.ema_decay:
        line["ema_decay"] = trained.train.ema_decay  # the parameters are averaged
    if not own_config:
        params = scoring_params(trained, experiment, params)
        line |= {"config": other["name"], "overrides": other["overrides"]}
        if run is not None:
            for note in describe_trained_on(trained, workdir, run):
                print_note(note)
    if probe is None:
        line |= evaluate(run, params) | printed_floors(experiment, run.corpora)
        line |= {"heldout_windows": heldout_windows(experiment)} if experiment.byte_metric else {}
    else:
        line |= answer(probe, experiment, params, run.corpora if run is not None else None, mesh)
    if run is not None:
        line["heldout_digest"] = run.corpora.heldout_digest
    print(json.dumps(line))


def _on_change(line: str) -> None:
    """Prints a note of a changed tokenizer or corpus, with --allow_changed_corpus; otherwise raises ConfigError."""
    if not _ALLOW_CHANGED_CORPUS.value:
        raise ConfigError(f"{line}, or add --allow_changed_corpus")
    print_note(line.rpartition(": ")[0])


if __name__ == "__main__":
    run_command(main, memory_remedy="Use more devices, or a --config with a lower train.batch_size")
