#!/usr/bin/env bash
# sbatch launch/slurm.sh --config=configs/ul2.py:base --workdir=/shared/runs/ul2
# One process a node, all its GPUs. JAX reads who is who from SLURM; the workdir and data.cache_dir must be shared.
#SBATCH --job-name=cloze
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120      # two minutes before the end: the run saves and stops
#SBATCH --requeue              # the same command then continues from the newest checkpoint
#SBATCH --open-mode=append

set -euo pipefail
source "${CLOZE_VENV:-.venv}/bin/activate"
# If one process dies the others end too, within a minute (train/distributed.py).
srun --kill-on-bad-exit=1 python -m train.main "$@"
