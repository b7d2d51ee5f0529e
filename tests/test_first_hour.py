"""benchmarks.first_hour: on a CPU the same path at tiny sizes; what fails is a line, and the rest goes on."""

import importlib
import json
import sys

import pytest

from benchmarks import first_hour, step
from benchmarks.first_hour import Part

GPU = {"platform": "gpu", "num_devices": 1}


def run_hour(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["first_hour", f"--out={tmp_path / 'hour.json'}", *arguments])
    first_hour.main()
    return json.loads((tmp_path / "hour.json").read_text()), capsys.readouterr().out


@pytest.mark.slow
def test_the_hour_on_a_cpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    report, printed = run_hour([], monkeypatch, capsys, tmp_path)
    assert [part["part"] for part in report["parts"]] == [part.name for part in first_hour.parts(GPU)]
    assert [part["error"] for part in report["parts"]] == [""] * len(report["parts"])
    assert (report["platform"], report["num_devices"]) == ("cpu", 1)
    found = {(part["part"], row["of"], row["figure"]): row for part in report["parts"] for row in part["figures"]}
    for architecture in ("decoder_only", "encoder_only", "encoder_decoder"):  # XLA's attention, compared with itself
        assert found["kernels", architecture, "error_ratio"]["value"] == 1.0
    assert found["step: T5 base", "encoder_decoder", "mfu"] == {
        "of": "encoder_decoder", "figure": "mfu", "value": None, "bound": ">= 0.5", "met": None,
    }  # fmt: skip
    assert found["checkpoint", "", "equal"]["met"] and found["resume", "", "equal"]["met"]
    assert "| resume |  | equal | 1 | >= 1 | yes |" in printed


def test_a_part_that_fails_is_a_line_and_the_others_go_on(monkeypatch, capsys, tmp_path):
    run, device = first_hour.run, {**GPU, "device": "NVIDIA X", "jax": "0", "memory_bytes": None}
    programs = {
        "memory": "import sys; sys.exit('RESOURCE_EXHAUSTED: Out of memory.\\n\\nThe rest')",
        "crash": "import os; print('{\"ratio\": 0.5}', flush=True); os.abort()",
        "hangs": "import time; time.sleep(600)",
        "good": 'print(\'{"operation": "a", "ratio": 2, "equal": true}\')',
    }
    monkeypatch.setattr(first_hour, "parts", lambda _: [Part(k, (k,), {"ratio": "<= 1"}) for k in programs])

    def run_program(arguments, seconds):
        if arguments[0] == "-c":
            return [device], ""
        return run(("-c", programs[arguments[1]]), 1.0 if arguments[1] == "hangs" else seconds)

    monkeypatch.setattr(first_hour, "run", run_program)
    report, printed = run_hour([], monkeypatch, capsys, tmp_path)
    memory, crash, hangs, good = report["parts"]
    assert memory["error"] == "status 1: RESOURCE_EXHAUSTED: Out of memory."
    assert crash["error"] == "status -6: it printed no error" and crash["figures"][0]["met"] is True
    assert hangs["error"] == "status -9: killed after 1 seconds: raise --minutes" and hangs["figures"] == []
    assert good["error"] == "" and good["figures"][0]["met"] is False
    assert "| hangs | | | status -9: killed after 1 seconds: raise --minutes | | no |" in printed
    report, _ = run_hour(["--minutes=0"], monkeypatch, capsys, tmp_path)
    assert {part["error"] for part in report["parts"]} == {"no time left: raise --minutes", hangs["error"]}


def test_the_commands_of_an_hour_are_accepted(monkeypatch):
    batches = []
    for part in first_hour.parts(GPU | {"num_devices": 4}):
        module, *arguments = part.command
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        if module in ("benchmarks.step", "benchmarks.checkpoint"):
            experiment = step.parsed_experiment()
            batches.append(experiment.train.batch_size)
            assert experiment.model.dtype == "bfloat16" and experiment.model.vocab_size == 32128
        else:
            module = importlib.import_module(module)
            module.parse_flags(module._FLAGS, "", sys.argv, positional=True)
    assert batches[:3] == [4 * 32, 4 * 64, 4 * 8]


def test_peers_are_given_the_sizes(monkeypatch):
    first_hour.parse_flags(first_hour._FLAGS, "", ["x", "--peer_step=peer --device=cuda", "--peer_pipeline=t5"])
    parts = {part.name: part for part in first_hour.parts(GPU)}
    first_hour._FLAGS.unparse_flags()
    peer = next(argument for argument in parts["step: T5 base"].command if argument.startswith("--peer="))
    sizes = "--layers=12 --heads=12 --d_model=768 --d_ff=2048 --batch=32 --length=512 --target_length=512 --vocab=32128"
    assert peer == f"--peer=peer --device=cuda --arch=encoder_decoder {sizes}"
    assert parts["step: T5 base"].bounds == {"mfu": ">= 0.5", "ratio": ">= 1.5"}
    assert "--peer=t5" in parts["pipeline"].command and parts["pipeline"].bounds["ratio"] == ">= 10"
