"""configs/multitask.py through the command line: metrics of each corpus, exact after a resume; its held-out text."""

import json
import re

import numpy as np
import pytest
from absl import flags

from command.flags import config_fields, define_config, parse_flags
from configs import multitask
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from run.corpus import open_corpora
from tests.small_fields import SMALL_MODEL
from train.loop import train_and_evaluate

TIMED = {"tokens_per_second", "data_wait_fraction", "seconds"}


def experiment_of(corpus, variant, *overrides, steps=4):
    """The experiment of a command line."""
    fields = {
        "data.sources.text.source": "text",
        "data.sources.text.path": corpus / "text",
        "data.sources.pairs.source": "jsonl",
        "data.sources.pairs.path": corpus / "pairs.jsonl",
        "data.cache_dir": corpus / "cache",
        "data.inputs_length": 40,
        "data.targets_length": 40,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 1,
        "train.steps": steps,
        "train.batch_size": 8,
        "train.log_every": 1,
        "train.eval_every": 2,
        "train.eval_windows": 24,
        "train.checkpoint_every": 2,
        **{f"model.{name}": value for name, value in SMALL_MODEL.items()},
        "model.num_layers": 1,
    }
    arguments = [f"--config.{name}={value}" for name, value in fields.items()]
    values = flags.FlagValues()
    define_config(values, argv=["main", f"--config=configs/multitask.py:{variant}", *arguments, *overrides])
    parse_flags(values, "", ["main", f"--config=configs/multitask.py:{variant}", *arguments, *overrides])
    return make_experiment(config_fields(values))


def lines_of(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("variant", multitask.VARIANTS)
def test_a_variant_trains_and_measures_each_corpus(variant, corpus, tmp_path, capsys):
    experiment = experiment_of(corpus, variant, "--config.data.sources.pairs.weight=0.5", steps=2)
    assert {name: source.weight for name, source in experiment.data.sources.items()}["pairs"] == 0.5
    train_and_evaluate(experiment, str(tmp_path))
    [first, train, evaluation] = lines_of(tmp_path)
    corpora = open_corpora(experiment, show_progress=False)
    batches = experiment.batches(corpora.train_documents)
    counts = batches.count_windows(0, 2)
    for name, tasks in experiment.tasks_of_corpora.items():
        of_corpus = [values[list(tasks)].sum() / values.sum() for values in counts]
        shares = [train[f"{metric}_share/{name}"] for metric in ("example", "token", "window")]
        assert shares == pytest.approx(of_corpus)
        assert train[f"raw_tokens/{name}"] == counts.raw_tokens[list(tasks)].sum()
        passes = sum(counts.raw_tokens[k] / batches.epoch_tokens[k] for k in tasks)
        assert train[f"epochs/{name}"] == pytest.approx(passes)
        assert {f"{metric}/{name}" for metric in ("loss", "accuracy")} <= train.keys()
        assert {f"{metric}/{name}" for metric in ("loss", "loss_stderr", "documents", "tokens")} <= evaluation.keys()
    for line in (first, train, evaluation):
        assert line["loss/sft"] == pytest.approx(line["loss/pairs"]), "one denoiser reads that corpus"
        of_denoisers = {name: line[f"loss/{name}"] for name in experiment.denoiser_names if f"loss/{name}" in line}
        others = [loss for name, loss in of_denoisers.items() if name != "sft"]
        assert min(others) - 1e-6 <= line["loss/text"] <= max(others) + 1e-6
    documents = [len(text.heldout_documents) for text in corpora.each]
    assert 0 < evaluation["documents/pairs"] <= documents[0] and 0 < evaluation["documents/text"] <= documents[1]
    shares = experiment.heldout(corpora.heldout_documents).shares
    assert shares.sum() == pytest.approx(1)
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"rates pairs \d+\.\d\d%, text \d+\.\d\d% of the examples, by weight", out)
    assert re.search(r"corpus pairs jsonl: .* corpus text text: ", out)


@pytest.mark.slow
def test_a_resumed_run_writes_the_same_lines(corpus, tmp_path):
    for name, stops in {"whole": (4,), "resumed": (2, 4)}.items():
        for steps in stops:
            train_and_evaluate(experiment_of(corpus, "ul2_sft", steps=steps), str(tmp_path / name))
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "resumed")
    assert {"epochs/text", "window_share/pairs", "raw_tokens/text"} <= lines_of(tmp_path / "whole")[-2].keys()


def test_overrides_of_corpora_that_are_not_there(corpus):
    for override, message in {
        "--config.data.sources.paris.weight=0.3": r"\.paris\.weight=0\.3: did you mean data\.sources\.pairs",
        "--config.data.sources.text.weights=0.3": r"did you mean data\.sources\.text\.weight\?",
        "--config.data.sources.text.weight=x": r"x",
    }.items():
        with pytest.raises(ConfigError, match=message):
            experiment_of(corpus, "t5", override)
    reads_both = experiment_of(corpus, "t5", "--config.objective.denoisers.spans.corpora=('text', 'pairs')",
                               "--config.data.sources.pairs.documents=join",
                               "--config.objective.denoisers.sft.weight=0.0")  # fmt: skip
    assert [task.name for task in reads_both.tasks] == ["spans/pairs", "spans/text"]


def test_the_shipped_corpora_hold_out_the_same_files():
    config = multitask.get_config()
    corpora = open_corpora(make_experiment(config), show_progress=False)
    names = [{documents.name(i) for i in range(len(documents))} for documents in corpora.heldout_documents.by_corpus]
    pairs, text = names
    trained = {corpora.each[1].train_documents.name(i) for i in range(len(corpora.each[1].train_documents))}
    assert len(pairs) > 10 and len(pairs & text) > 10 and not np.any([name in trained for name in pairs])
    assert [corpus.elsewhere for corpus in corpora.each] == [0, 0]
