#!/bin/bash
# Trains a job with Open MPI, here in two processes on each of two hosts:
#
#     tools/cluster/mpirun.sh --host a:2,b:2 -- train --job=job.textproto --resume=auto
#
# What stands before -- goes to mpirun, and what stands behind it is the command. Process 0 is on the first host. If the
# others do not reach that by the name that it gives itself, set MASTER_ADDR; if port 29400 is taken there, MASTER_PORT.
# To end a job with a checkpoint, send SIGUSR1 to mpirun, which passes it on. After SIGTERM, mpirun kills the processes
# within two seconds, so that only a small checkpoint can still be saved.
set -eu

own=()
while (($# > 0)) && [[ $1 != -- ]]; do
  own+=("$1")
  shift
done
if (($# < 2)); then
  echo "usage: $0 [OPTION OF MPIRUN]... -- COMMAND..." >&2
  exit 2
fi
shift

# The secret of the job and where process 0 is. mpirun hands them on; the secret stands on no command line.
SHALE_TOKEN=${SHALE_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
MASTER_PORT=${MASTER_PORT:-29400}
# shellcheck disable=SC2016 # The variable is that of each process.
MASTER_ADDR=${MASTER_ADDR:-$(mpirun ${own[@]+"${own[@]}"} sh -c '[ $OMPI_COMM_WORLD_RANK != 0 ] || hostname')}
export SHALE_TOKEN MASTER_ADDR MASTER_PORT

exec mpirun ${own[@]+"${own[@]}"} -x SHALE_TOKEN -x MASTER_ADDR -x MASTER_PORT "$@"
