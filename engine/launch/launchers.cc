#include "engine/launch/launchers.h"

#include <utility>

namespace shale {
namespace {

// Names and meanings are those of the launchers' own documentation: "Environment Variables" of torchrun, "Environment
// variables set for MPI applications" of Open MPI 5, "OUTPUT ENVIRONMENT VARIABLES" of srun, the constants of Kubeflow
// Trainer's torch plugin, "Indexed Job" of Kubernetes.
std::vector<Launcher> LaunchersOfHosts() {
  return {
      {"Shale's launcher",
       "SHALE_PROCESS",
       "SHALE_PROCESS",
       "SHALE_PROCESSES",
       "SHALE_LOCAL_PROCESS",
       "SHALE_LOCAL_PROCESSES",
       "SHALE_MASTER_ADDR",
       "SHALE_MASTER_PORT",
       {"SHALE_LAUNCH"},
       true},
      {"torchrun",
       "TORCHELASTIC_RUN_ID",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "MASTER_ADDR",
       "MASTER_PORT",
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
       true},
      {"RANK and WORLD_SIZE",
       "RANK",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "MASTER_ADDR",
       "MASTER_PORT",
       {},
       false},
  };
}

std::vector<Launcher> LaunchersOfClusters() {
  return {
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "",
       "",
       {"PMIX_NAMESPACE"},
       true},
      // The marker is not SLURM_PROCID, which a batch script has too, although it is no task of a step.
      {"Slurm",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "",
       "",
       "",
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
       false},
      // Kubeflow starts one process in each pod. PET_NPROC_PER_NODE counts those that torchrun would start there.
      {"Kubeflow",
       "PET_NODE_RANK",
       "PET_NODE_RANK",
       "PET_NNODES",
       "",
       "",
       "PET_MASTER_ADDR",
       "PET_MASTER_PORT",
       {},
       false},
      {"the indexed Job", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", "", "", "", {}, false},
  };
}

}  // namespace

const std::vector<Launcher>& Launchers() {
  static const auto& launchers = *[] {
    auto* all = new std::vector<Launcher>(LaunchersOfHosts());
    for (Launcher& launcher : LaunchersOfClusters()) all->push_back(std::move(launcher));
    return all;
  }();
  return launchers;
}

}  // namespace shale
