// Creates the backend that a job runs on, which `runtime` of its spec describes.
//
// A program decides which kinds of device it can use when it is linked: it depends on one of the targets cpu, gpu and
// all of engine/run/backends, each of which defines CreateBackend. //engine:shale has all. The engine takes a backend,
// or this function, as an argument and links no device itself.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/api/job.h"
#include "engine/run/runtime/backend.h"

namespace shale {

class Store;  // sharding/comm/store.h

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const Job&)>;

// Creates the backend of a job. Returns FailedPrecondition if the program was built without this kind of device. Does
// not look for devices yet, because a backend can also plan for devices of another machine. May set environment
// variables for CUDA's libraries, so call it before there are threads.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job);

// What the backend of one process must know of the other processes of its job.
struct BackendPlace {
  // The store through which the processes tell each other which groups of ranks they share. Null: there is one process.
  Store* store = nullptr;
  HostShare share;
};

// Creates the backend of a job in one of its processes. On GPUs it joins the ranks of all processes by NCCL; on CPUs,
// TrainerOptions::create_spanning_group does (engine/cluster/processes). The store must outlive the backend.
// Returns what CreateBackend does, and InvalidArgument if the job's collectives join the ranks of one process only.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace& place);

// Sets the environment variables that CreateBackend sets. A program that starts threads before it creates its backend
// calls this before them. Does nothing if the program was built without the job's kind of device.
void PrepareEnvironment(const Job& job);

// Returns what planning must know of a machine with devices of the job's kind, whose CPUs run `hardware_threads`
// threads at once. That machine need not be this one, but its processors must have the instructions of this one. Opens
// no device, no library and no file, and sets no environment variable. Does not read the table that
// runtime.tuning_table names, because no size depends on it. The result has no default budget. Any thread may call
// this. A program that was built without CUDA plans for GPUs, too, as if there were cuDNN and the GPU lacked nothing.
// Returns FailedPrecondition if the job's device is the CPU and the program was built without CPU kernels, and
// InvalidArgument if the job has more ranks than its collectives support.
absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads);
// Does the same for the GPUs of `profile`: if it says which compute capability they have, plans refuse what they lack.
absl::StatusOr<Machine> PlanningMachineOfProfile(const Job& job, int64_t hardware_threads,
                                                 const proto::MachineProfile& profile);

// Decides runtime.cpu_matmuls if the job leaves it open and its device is the CPU. Takes what an earlier call on such
// a processor wrote to the user's cache folder ($XDG_CACHE_HOME/shale, or ~/.cache/shale). If there is nothing, or the
// file is damaged, measures for about 0.2 seconds (kernels/cpu/measure_matmuls.h) and writes the result there. If it
// cannot be written, takes DefaultCpuMatMuls() (kernels/cpu/cpu_ops.h), because a choice that each run measures anew
// could change the bits from run to run. Returns a line for people, which is empty if the job computes no matmuls on
// the CPU.
absl::StatusOr<std::string> DecideCpuMatMuls(Job& job);

}  // namespace shale
