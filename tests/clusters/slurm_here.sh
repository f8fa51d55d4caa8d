#!/bin/sh
# Slurm's commands without Slurm, by their names as links to this file: sbatch puts a script into the
# folder QUEUE, and squeue runs what is in there, to its end, and has then no jobs to show.
case ${0##*/} in
sinfo) echo '1|8|(null)' ;;
scontrol) echo 'MaxArraySize = 1001' ;;
sbatch)
    cp "$1" "$QUEUE/$$"
    echo "Submitted batch job $$"
    ;;
squeue)
    for script in "$QUEUE"/*; do
        [ -f "$script" ] || continue
        export SLURM_JOB_ID="${script##*/}" SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1
        export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$script")
        for task in $(seq 0 "${last:-0}"); do
            [ -z "$last" ] || export SLURM_ARRAY_JOB_ID="$SLURM_JOB_ID" SLURM_ARRAY_TASK_ID="$task"
            sh "$script" > "$QUEUE.log" 2>&1
        done
        rm "$script"
    done
    ;;
srun)
    while [ "${1#-}" != "$1" ]; do
        case $1 in --output | --error) shift ;; esac
        shift
    done
    exec "$@"
    ;;
esac
