"""benchmarks.first_hour: on a CPU the same path at tiny sizes; what fails is a line, and the rest goes on."""

import contextlib
import fcntl
import importlib
import json
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import first_hour, step
from benchmarks.first_hour import Part
from contract.errors import ConfigError
from tests.train.subprocesses import ROOT

GPU = {"platform": "gpu", "num_devices": 1}


def run_hour(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["first_hour", f"--out={tmp_path / 'hour.json'}", *arguments])
    first_hour.main()
    return json.loads((tmp_path / "hour.json").read_text()), capsys.readouterr().out


@pytest.mark.slow
def test_the_hour_on_a_cpu(monkeypatch, capsys, tmp_path):
    """But for the kills, which are those of tests/test_torture.py."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    run, kills = first_hour.run, ("-m", "benchmarks.torture", "--kills=1", "--platforms=cpu")
    monkeypatch.setattr(first_hour, "run", lambda *given: ([{"equal": 1}], "") if given[0] == kills else run(*given))
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


@pytest.fixture
def programs(monkeypatch):
    """Part -> its program, with a figure `ratio`. They run as the parts of an hour, and "hangs" for a second."""
    run, programs = first_hour.run, {}
    monkeypatch.setattr(first_hour, "parts", lambda _: [Part(k, (k,), {"ratio": "<= 1"}) for k in programs])

    def run_program(arguments, seconds):
        if arguments[0] == "-c":
            return [{**GPU, "device": "NVIDIA X", "jax": "0", "memory_bytes": None}], ""
        return run(("-c", programs[arguments[1]]), 1.0 if arguments[1] == "hangs" else seconds)

    monkeypatch.setattr(first_hour, "run", run_program)
    return programs


def test_a_part_that_fails_is_a_line_and_the_others_go_on(programs, monkeypatch, capsys, tmp_path):
    programs |= {
        "memory": "import sys; sys.exit('RESOURCE_EXHAUSTED: Out of memory.\\n\\nThe rest')",
        "crash": "import os; print('{\"ratio\": 0.5}', flush=True); os.abort()",
        "hangs": "import time; time.sleep(600)",
        "good": 'print(\'{"operation": "a", "ratio": 2, "equal": true}\')',
    }
    report, printed = run_hour([], monkeypatch, capsys, tmp_path)
    memory, crash, hangs, good = report["parts"]
    assert memory["error"] == "status 1: RESOURCE_EXHAUSTED: Out of memory."
    assert crash["error"] == "status -6: it printed no error" and crash["figures"][0]["met"] is True
    assert hangs["error"] == "status -9: killed after 1 seconds: raise --minutes" and hangs["figures"] == []
    assert good["error"] == "" and good["figures"][0]["met"] is False
    assert "| hangs | | | status -9: killed after 1 seconds: raise --minutes | | no |" in printed
    (tmp_path / "folder").mkdir()
    programs["good"] = f"import shutil; shutil.rmtree({str(tmp_path / 'folder')!r}); print('{{\"ratio\": 0.5}}')"
    with pytest.raises(ConfigError, match="cannot be written"):
        run_hour([], monkeypatch, capsys, tmp_path / "folder")
    assert "| good |  | ratio | 0.5 | <= 1 | yes |" in capsys.readouterr().out
    report, _ = run_hour(["--minutes=0"], monkeypatch, capsys, tmp_path)
    assert {part["error"] for part in report["parts"]} == {"no time left: raise --minutes", hangs["error"]}


def test_lines_that_are_not_figures_are_lines_of_the_table(programs, monkeypatch, capsys, tmp_path):
    programs |= {
        "python": "print({'ratio': 0.5})",
        "hangs": "import time; print('{\"ratio\": 0.5}\\n{\"rat', end='', flush=True); time.sleep(600)",
        "silent": "print('done')",
        "words": 'print(\'{"operation": "a", "ratio": "fast | slow"}\')',
        "bytes": 'import os; os.write(1, b\'\\xff\\n{"operation": "a", "ratio": 0.5}\\n\')',
    }
    report, printed = run_hour([], monkeypatch, capsys, tmp_path)
    assert [part["error"] for part in report["parts"]] == [
        "status 0: a line is not JSON: {'ratio': 0.5}",
        "status -9: killed after 1 seconds: raise --minutes",
        "status 0: it printed no JSON line",
        "",
        "",
    ]
    assert "| hangs |  | ratio | 0.5 | <= 1 | yes |" in printed
    assert "| silent | | | status 0: it printed no JSON line | | no |" in printed
    assert '| words | a | ratio | "fast / slow" | <= 1 | no |' in printed
    assert "| bytes | a | ratio | 0.5 | <= 1 | yes |" in printed


def test_a_signal_ends_the_benchmark_too(tmp_path):
    """The benchmark has a session of its own, which no terminal signals."""
    lock = str(tmp_path / "lock")
    benchmark = f"import fcntl, time; file = open({lock!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
    benchmark += "print('locked', file=file, flush=True); time.sleep(60)"
    # A parent that runs in the background of a shell leaves Ctrl-C ignored.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from benchmarks.first_hour import run, run_command\n"
    program += f"run_command(lambda: run(('-c', {benchmark!r}), 50))"
    hour = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "lock").exists() or not (tmp_path / "lock").read_text():
        assert hour.poll() is None
        time.sleep(0.02)
    hour.send_signal(signal.SIGINT)
    assert hour.communicate(timeout=30)[1].startswith("error: stopped by ") and hour.returncode == 128 + signal.SIGINT
    end = time.monotonic() + 10
    with open(lock) as file:  # the lock of a process ends with it
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.02)
    pytest.fail("the benchmark is still running")


@pytest.mark.parametrize(
    ("flag", "peer", "said"),
    [
        ("--peer_step", "no-such-peer --x=1", "there is no program 'no-such-peer'"),
        ("--peer_pipeline", "x 'y", "cannot be split into"),
    ],
)
def test_a_peer_that_is_no_program_is_an_error_at_the_start(flag, peer, said, programs, monkeypatch, capsys, tmp_path):
    with pytest.raises(ConfigError, match=f"^{flag}=.*{said}"):
        run_hour([f"{flag}={peer}"], monkeypatch, capsys, tmp_path)


def test_a_peer_that_several_devices_leave_unused_is_a_note(programs, monkeypatch, capsys, tmp_path):
    run = first_hour.run
    monkeypatch.setattr(first_hour, "run", lambda *arguments: ([run(*arguments)[0][0] | {"num_devices": 8}], ""))
    monkeypatch.setattr(sys, "argv", ["first_hour", f"--out={tmp_path / 'hour.json'}", f"--peer_step={sys.executable}"])
    first_hour.main()
    assert "note: --peer_step is not used: a peer has one device, and JAX has 8 here\n" in capsys.readouterr().err


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
