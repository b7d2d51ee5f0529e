#!/usr/bin/env bash
# launch/tpu_vm.sh NAME ZONE --config=configs/ul2.py:base --workdir=/mnt/disk/runs/ul2
# The same command on every host of a Cloud TPU VM slice, which needs the code in ~/cloze and, for a slice of several
# hosts, a file system that all of them mount: hosts write one workdir together.
set -euo pipefail
name=$1 zone=$2
shift 2
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  set -e
  cd ~/cloze
  test -d .venv || { python3.11 -m venv .venv && .venv/bin/pip install -q -e '.[tpu]'; }
  .venv/bin/python -m train.main --multi_host $(printf '%q ' "$@")"
