// Measures how fast this machine is, and makes a profile of it (proto/machine.proto).
//
// Works are measured where they will run: in traced steps of jobs, beside what a step does at the same time. So caches,
// power limits and the other ranks of the host are as in training.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/backend.h"
#include "engine/plan/config/job.h"
#include "engine/run/calibrate/speeds.h"
#include "proto/machine.pb.h"

namespace shale {

// Returns small decoders that span the sizes at which people train on one machine: widths from 128 to 896, in fp32 and
// in bf16, on one rank and on two. Those come first that tell most.
std::vector<Job> CalibrationJobs(DeviceType device);

// Returns jobs whose steps have all works of `job`: its shapes in fewer layers and micro-batches, with each
// accumulation that the job may take. The job must know its vocabulary (ApplyDataFacts).
std::vector<Job> JobsLike(const Job& job);

// Returns a backend like `backend`, of ranks on CPUs in one process, but whose ranks exchange as if each were in a
// process of its own on this host: by reading memory, or over TCP if processes may not read one another's memory.
// REQUIRES: `backend` is of CPUs.
std::unique_ptr<Backend> WithRanksAsProcesses(std::unique_ptr<Backend> backend);

struct CalibrateOptions {
  // Creates the backend of a job. Required.
  BackendFactory create_backend;
  // The steps of each job. The jobs take turns, a step each, because the speed of many machines changes from one second
  // to the next.
  int rounds = 10;
  // After which no further round begins; after half of them no further job does. There is one of each at least.
  double seconds = 45;
  // Runs after rounds, as often as there are rounds for one job, evenly over all jobs. May be empty.
  std::function<absl::Status()> after_round;
  // The bytes of the jobs that take turns; further jobs follow when these are measured. 0: an eighth of the memory.
  int64_t bytes_together = 0;
  // Gets how fast the machine was in the mean. May be null.
  ProbedSpeed* speed = nullptr;
  // Gets a line for each job, and one when they are measured. May be empty.
  std::function<void(absl::string_view line)> progress;
};

// Returns what was measured in steps of these jobs, which must be for the same kind of device: works, peaks, the speed
// of copies, and what lies between instructions and steps. On CPUs collectives are measured between threads and between
// processes. A job that does not fit this machine is left out, and `progress` says so. Returns the error of the last
// one if all are left out, and otherwise those of the ranks.
absl::StatusOr<proto::MachineProfile> Calibrate(const std::vector<Job>& jobs, const CalibrateOptions& options);

// Adds what was measured to the profile that the user's cache has of this machine. If there is none yet, or a damaged
// one, begins with the profile of a machine with the same processor, if one is compiled in. Returns the result, which
// is in the cache now if `cache_folder` is not empty.
absl::StatusOr<proto::MachineProfile> KeepProfile(const proto::MachineProfile& measured,
                                                  const std::string& cache_folder);

}  // namespace shale
