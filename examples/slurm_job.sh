#!/bin/bash
# sbatch examples/slurm_job.sh --env=CartPole-v1: trains on several nodes, and goes on from its last
# checkpoint in a next life of the job when its time was over, a node was lost or it was preempted.
#SBATCH --nodes=3 --exclusive
#SBATCH --time=12:00:00 --signal=B:USR1@120
#SBATCH --requeue --open-mode=append

trap 'over=yes; kill -TERM $launcher' USR1  # two minutes are left: it stops in order, and saves
trap : TERM                                 # which the launcher gets, too: wait for it

distrl train --topology=multi_machine --launcher=slurm \
    --hosts="$(scontrol show hostnames | paste -sd,)" \
    --run_dir="${RUN_DIR:-$HOME/runs/slurm-$SLURM_JOB_ID}" "$@" &
launcher=$!
while kill -0 $launcher 2> /dev/null; do wait $launcher; done  # a signal ends a wait
wait $launcher
code=$?
[ $code = 143 ] && [ "$over" ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
