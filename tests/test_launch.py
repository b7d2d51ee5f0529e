"""The scripts of launch/, run with stubs of SLURM's commands."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.train.subprocesses import ROOT

# A task that needs a moment to save after SIGTERM, and then ends with $STATUS; at the start it ends if $RUN is empty.
SRUN = """#!/bin/bash
echo "srun $@ with $SRUN_CPUS_PER_TASK cores" >> "$LOG"
if [[ -z $RUN ]]; then exit "$STATUS"; fi
trap 'sleep 0.5; echo saved >> "$LOG"; exit "$STATUS"' TERM
echo $$ > "$LOG.pid"
while true; do sleep 0.05; done
"""
SCANCEL = """#!/bin/bash
echo "scancel $@" >> "$LOG"
kill -TERM "$(cat "$LOG.pid")"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $@" >> "$LOG"
"""


@pytest.fixture
def start(tmp_path):
    """(script, status of the run, whether the run waits for a signal) -> the script's process. They write tmp_path/log.

    Each process has a session of its own, all of which ends with the test.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text("")
    for name, text in {"srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    started = []

    def start(script, status, *, waits):
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CLOZE_VENV": str(tmp_path),
            "SLURM_JOB_ID": "4711",
            "LOG": str(tmp_path / "log"),
            "STATUS": str(status),
            "RUN": "waits" if waits else "",
            "SLURM_CPUS_PER_TASK": "32",
        }
        if script == "study_slurm.sh":
            array = {"JOB_ID": 4711, "TASK_ID": 3, "TASK_MIN": 3, "TASK_MAX": 3, "TASK_COUNT": 1}
            environment |= {f"SLURM_ARRAY_{name}": str(value) for name, value in array.items()}
        command = ["bash", f"launch/{script}", "--config=x.py"]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # the srun of a script that has ended is still in its group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("script", ["slurm.sh", "study_slurm.sh"])
@pytest.mark.parametrize("status", [143, 137, 0, 1])
def test_the_time_limit_saves_and_queues_a_job_again_that_it_stopped(script, status, start, tmp_path):
    """Not a run that ends by itself between the signal and the time limit: after its last step, or an error."""
    process = start(script, status, waits=True)
    end = time.monotonic() + 30
    while not (tmp_path / "log.pid").exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == status
    commands = (tmp_path / "log").read_text().splitlines()[1:]
    job = "4711_3" if script == "study_slurm.sh" else "4711"  # 4711 alone would be all tasks of the array
    requeue = [f"scontrol requeue {job}"] if status in (143, 137) else []
    assert commands == [f"scancel --signal=TERM {job}", "saved", *requeue]


@pytest.mark.parametrize("status", [0, 3])
def test_a_run_that_ends_by_itself_is_not_queued_again(status, start, tmp_path):
    assert start("slurm.sh", status, waits=False).wait(30) == status
    [command] = (tmp_path / "log").read_text().splitlines()
    assert command == "srun --kill-on-bad-exit=1 python -m train.main --stopped_status=143 --config=x.py with 32 cores"


def test_a_run_that_another_signal_stopped_is_not_queued_again_and_the_job_says_so(start, tmp_path, capfd):
    """As at a preemption of a cluster without PreemptParameters=send_user_signal."""
    assert start("slurm.sh", 143, waits=False).wait(30) == 143
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert "stopped by SIGTERM before the time limit, and the job is not queued again" in capfd.readouterr().err


# A host of a TPU VM runs the last argument, --command=... Its pip needs $NETWORK.
GCLOUD = """#!/bin/bash
last="${*: -1}"
bash -c "${last#--command=}"
"""
PYTHON3 = """#!/bin/bash
mkdir -p .venv/bin
printf '#!/bin/bash\\necho "pip $*"; test -n "$NETWORK"' > .venv/bin/pip
printf '#!/bin/bash\\necho "python $*"' > .venv/bin/python
chmod +x .venv/bin/*
"""


def test_a_host_whose_installation_failed_installs_again(tmp_path):
    (tmp_path / "cloze").mkdir()
    for name, text in {"gcloud": GCLOUD, "python3": PYTHON3}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def launch(network):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "NETWORK": network}
        command = ["bash", "launch/tpu_vm.sh", "name", "zone", "--config=x.py"]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    install, train = "pip install -q -e .[tpu]", "python -m train.main --multi_host --config=x.py"
    assert launch("") == (1, [install])
    assert launch("network") == (0, [install, train])
    assert launch("") == (0, [train])


@pytest.mark.parametrize("arguments", [["name"], ["name", "zone"], ["name", "--config=x.py", "--workdir=y"]])
def test_a_tpu_vm_without_a_zone_or_flags_is_refused(arguments, tmp_path):
    """A flag in the place of the zone would be lost, and no flags would be an empty one."""
    (tmp_path / "gcloud").write_text('#!/bin/bash\necho "gcloud $*"')
    (tmp_path / "gcloud").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "launch/tpu_vm.sh", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("error: give NAME ZONE and the flags")


def test_pods_that_a_signal_stopped_are_started_again():
    """A pod that ends with status 0 is complete for Kubernetes."""
    _, job = yaml.safe_load_all((ROOT / "launch" / "gke_tpu.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    [status] = [flag.partition("=")[2] for flag in container["command"] if flag.startswith("--stopped_status=")]
    ignored = [rule.get("onExitCodes", {}).get("values", []) for rule in job["spec"]["podFailurePolicy"]["rules"]]
    assert [int(status)] in ignored


def test_xla_knows_the_flags():
    """An unknown flag ends the process."""
    flags = re.findall(r"--xla_\w+=\w+", (ROOT / "launch" / "slurm.sh").read_text())
    environment = os.environ | {"XLA_FLAGS": " ".join(flags)}
    program = "import jax; print(jax.numpy.zeros(2).sum())"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert flags and (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_the_scripts_have_no_crlf_in_a_clone_on_windows():
    command = ["git", "check-attr", "eol", "launch/slurm.sh", ".ci/run"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert printed == "launch/slurm.sh: eol: lf\n.ci/run: eol: lf\n"
