# Sourced by the scripts for SLURM. sbatch copies only the script, so they find this file in the folder of submission.

# with_requeue COMMAND ...: runs COMMAND, an srun, and puts the job into the queue again if its time limit stops the run.
# COMMAND then ends with status 143, as train.ablate does, and train.main with --stopped_status=143.
# Needs in the script:
#   #SBATCH --requeue
#   #SBATCH --signal=B:USR1@120   # this long before the time limit, to the script alone (B:), which otherwise would not
#                                 # know why srun ended
# The steps of the job then receive SIGTERM, so that the run saves a checkpoint and stops. Not srun: at SIGTERM it kills
# its tasks.
# Where jobs are preempted with a grace time, the cluster needs PreemptParameters=send_user_signal, with which a preemption
# sends USR1 too. Without it SLURM sends SIGTERM to the steps alone: the run saves, and the job has ended before SLURM
# would queue it again.
with_requeue() {
  # Since SLURM 22.05 srun does not take the job's --cpus-per-task over.
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  fi
  local status=0 limit="" job="${SLURM_JOB_ID:-}"
  # The SLURM_JOB_ID of one task of an array names the whole array.
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
  fi
  # Before the start of the command: without a trap, the signal would end this script.
  trap 'trap "" USR1; limit=reached; scancel --signal=TERM "$job" || true' USR1
  "$@" &
  local command=$!
  wait "$command" || status=$?
  if [[ -n $limit ]]; then
    status=0
    wait "$command" || status=$? # the first wait ended at the signal, before the command
    # 137: srun has killed the tasks that were still ending when the first one had ended with 143, once all had saved.
    if (( status == 143 || status == 137 )); then
      echo "time limit: the run has stopped with status $status, and the job is to be queued again" >&2
      scontrol requeue "$job" || echo "error: the job is not queued again: submit it, and it continues" >&2
    else
      echo "time limit: the run has ended by itself with status $status, and the job is not queued again" >&2
    fi
  elif (( status == 143 )); then
    echo "the run was stopped by SIGTERM before the time limit, and the job is not queued again: submit it, and it continues" >&2
  fi
  return "$status"
}
