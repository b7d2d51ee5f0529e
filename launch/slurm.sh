#!/usr/bin/env bash
# sbatch launch/slurm.sh --config=configs/ul2.py:base --workdir=/shared/runs/ul2
# One process per node, with all GPUs of the node. JAX reads the number of processes and their addresses from SLURM's
# environment. All nodes must share the file system of the workdir and of data.cache_dir.
#SBATCH --job-name=cloze
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120    # two minutes before the time limit: the run saves a checkpoint, and the job is queued again
#SBATCH --requeue              # after a requeue the same command continues from the newest checkpoint
#SBATCH --open-mode=append

set -euo pipefail
source "${CLOZE_VENV:-.venv}/bin/activate"
source launch/requeue.sh
# XLA's schedule for GPUs, off by default, moves compute between the start and the end of collectives: the sum of a
# layer's gradients then overlaps with the backward pass of the layer below, and the gathering of parameters with the
# layer before. The TPU compiler does so by default.
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS:-}"
# If one process fails, the others exit within a minute (JAX's coordination service).
with_requeue srun --kill-on-bad-exit=1 python -m train.main --stopped_status=143 "$@"
