"""The commands of docs/comparing.md run as they are written, on small runs and a small corpus."""

import json
import re
import shlex
import sys

import pytest

from evaluation import __main__ as evaluate
from evaluation.probes import PROBES
from tests.table import small_config
from tests.train.small_runs import save_random_run
from tests.train.subprocesses import ROOT

COMMANDS = re.findall(r"^python -m train\.evaluate (.*)$", (ROOT / "docs" / "comparing.md").read_text(), re.MULTILINE)
RUNS = {
    "ul2": ("ul2", "encoder_decoder"),
    "clm": ("clm", "decoder_only"),
    "mlm": ("mlm", "encoder_only"),
    "electra": ("electra", "encoder_only"),
    "sft": ("sft", "decoder_only"),
    "iid_denoising": ("iid_denoising", "encoder_decoder"),
}
# Shorter rows and texts than by default, on the tests' corpus.
SMALL_CONFIG = ["--config.data.inputs_length=40", "--config.data.targets_length=40", "--config.train.eval_windows=16"]
SMALL_PROBE = ["--length=34", "--windows_per_document=1"]


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """A folder with the names that the commands use."""
    folder = tmp_path_factory.mktemp("comparing")
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "corpus").symlink_to(corpus / "text")
    pairs = [{"good": f"It is {k}.", "bad": f"Is it {k}.", "phenomenon": "ab"[k % 2]} for k in range(4)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (folder / "questions.jsonl").write_text('{"prompt": "It is", "response": " so"}\n')
    for part in ("train", "test"):  # 100 and 500 labels
        labelled = [{"text": "ab"[k % 2] * (1 + k % 9), "label": "ab"[k % 2]} for k in range(502)]
        (folder / f"subj.{part}.jsonl").write_text("\n".join(map(json.dumps, labelled)))
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    pairs = {"data__source": "jsonl", "data__path": str(corpus / "pairs.jsonl")}
    for name, pair in RUNS.items():
        (folder / "runs" / name).mkdir(parents=True)
        save_random_run(small_config(*pair, **text | (pairs if name == "sft" else {})), str(folder / "runs" / name))
    return folder


def test_there_are_commands_for_configs_and_for_every_probe():
    assert len(COMMANDS) >= 12
    probes = set(re.findall(r"--probe=(\w+)", "\n".join(COMMANDS)))
    assert probes == set(PROBES)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_one_json_line(command, folder, corpus, monkeypatch, capsys):
    arguments = shlex.split(command)
    if "--config=" in command:
        path = [] if "--config.data.path" in command else [f"--config.data.path={corpus / 'text'}"]
        source = [] if "--config.data.source" in command else ["--config.data.source=text"]
        arguments += [*source, *path, f"--config.data.cache_dir={corpus / 'cache'}", *SMALL_CONFIG]
        arguments += ["--config.objective.min_document_length=16"] if "configs/fim.py" in command else []
    if re.search("--probe=(continuation|infilling|pseudo_log_likelihood)", command):
        arguments += SMALL_PROBE
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    evaluate.main()
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    probe = re.search(r"--probe=(\w+)", command)
    assert found.get("probe") == (probe and probe[1])
    assert ("loss" in found) == (probe is None)
