#!/usr/bin/env bash
# launch/tpu_vm.sh NAME ZONE --config=configs/ul2.py:base --workdir=/mnt/disk/runs/ul2
# Runs the same command on every host of a Cloud TPU VM slice. Each host needs the repository in ~/cloze. If
# there are several hosts, all must mount the file system of the workdir, because all write to it.
# PYTHON=python3.12, before the command, is the interpreter of the hosts' new virtual environments (default: python3).
# The run ends with the connection: start this in tmux or screen. The same command continues the run.
set -euo pipefail
if (( $# < 3 )) || [[ $1 == -* || $2 == -* ]]; then
  echo "error: give NAME ZONE and the flags of train.main: launch/tpu_vm.sh NAME ZONE --config=..." >&2
  exit 1
fi
name=$1 zone=$2
shift 2
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  set -e
  cd ~/cloze
  if ! test -e .venv/installed; then # the last file: a folder alone may be of an installation that failed
    ${PYTHON:-python3} -m venv .venv
    .venv/bin/pip install -q -e '.[tpu]'
    touch .venv/installed
  fi
  .venv/bin/python -m train.main --multi_host $(printf '%q ' "$@")"
