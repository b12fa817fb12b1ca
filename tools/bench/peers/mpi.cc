// The collectives of MPI, between the processes that mpirun starts. The arguments are those of TimeCollectives.
#include <mpi.h>

#include "rounds.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  MPI_Init(nullptr, nullptr);
  Peers peers;
  MPI_Comm_rank(MPI_COMM_WORLD, &peers.process);
  MPI_Comm_size(MPI_COMM_WORLD, &peers.processes);
  peers.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  peers.least = [](double value) {
    double least = 0;
    MPI_Allreduce(&value, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    return least;
  };
  peers.all_gather = [&](float* full, float* part, int64_t count) {
    const int share = static_cast<int>(count / peers.processes);
    MPI_Allgather(part, share, MPI_FLOAT, full, share, MPI_FLOAT, MPI_COMM_WORLD);
  };
  peers.reduce_scatter = [&](float* full, float* part, int64_t count) {
    MPI_Reduce_scatter_block(full, part, static_cast<int>(count / peers.processes), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  peers.all_reduce = [](float* full, float*, int64_t count) {
    MPI_Allreduce(MPI_IN_PLACE, full, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  const int exit_code = TimeCollectives(peers, argv + 1);
  MPI_Finalize();
  return exit_code;
}
