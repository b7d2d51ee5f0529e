#!/usr/bin/env bash
# sbatch --array=0-7 launch/study_slurm.sh --study=configs/studies/masking_rate.py --out=/shared/studies/masking_rate
# One GPU for each task of the array; a task does its part of the study's runs. All tasks must share the file system of
# --out. The report of all parts: python -m train.ablate --report with the same --study and --out.
# The number of parts is that of the array's tasks: to repeat a failed task, submit the whole array again.
#SBATCH --job-name=cloze-study
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120    # two minutes before the time limit: the run saves a checkpoint, and the job is queued again
#SBATCH --requeue              # after a requeue the same command continues, and repeats nothing
#SBATCH --open-mode=append

set -euo pipefail
source "${CLOZE_VENV:-.venv}/bin/activate"
task="${SLURM_ARRAY_TASK_ID:?submit this script with sbatch --array=0-N}"
first="$SLURM_ARRAY_TASK_MIN" count="$SLURM_ARRAY_TASK_COUNT"
if (( SLURM_ARRAY_TASK_MAX - first != count - 1 )); then
  echo "error: --array must be consecutive numbers, such as 0-7" >&2
  exit 1
fi
source launch/requeue.sh
with_requeue srun python -m train.ablate --worker="$((task - first))/$count" "$@"
