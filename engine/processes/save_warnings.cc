#include "engine/processes/save_warnings.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/store.h"
#include "engine/io/file.h"
#include "engine/state/rank_state.h"
#include "engine/text/numbers.h"
#include "kernels/integers.h"

namespace shale {
namespace {

int64_t BytesOfCheckpoint(const JobPlan& plan) {
  const JobState& state = plan.train.step.state;
  Manifest manifest;
  manifest.values = SavedValuesOf(state);
  manifest.frozen_values = FrozenValuesOf(state);
  manifest.states = SavedStatesOf(state.states);
  manifest.parameters = SavedParametersOf(plan.train.graph);
  int64_t bytes = 0;
  for (const PartSpec& part : manifest.parts()) {
    for (const SavedParameter& parameter : manifest.parameters) {
      if (manifest.Has(part.part, parameter)) bytes += part.ElementsOf(parameter.elements()) * part.element_bytes();
    }
  }
  return bytes;
}

}  // namespace

std::string SlowSaveWarning(const JobPlan& plan, const RunFolder& folder, int64_t ranks_on_host,
                            int64_t grace_seconds) {
  constexpr int64_t kMostProbeBytes = int64_t{16} << 20;
  const int64_t ranks = plan.options.mesh.ranks(), all_bytes = BytesOfCheckpoint(plan);
  // Each rank writes an equal part, and hosts write at the same time.
  const int64_t bytes = CeilDivide(all_bytes * ranks_on_host, ranks);
  const std::string probe(std::min(bytes, kMostProbeBytes), 'x');
  const std::string path = RunFolder::ProbePath(folder.path());
  const auto start = std::chrono::steady_clock::now();
  const absl::Status written = WriteFileDurably(path, probe);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  unlink(path.c_str());
  if (!written.ok() || bytes == 0) return "";
  const double seconds = taken.count() * static_cast<double>(bytes) / static_cast<double>(probe.size());
  if (seconds <= static_cast<double>(grace_seconds)) return "";
  return absl::StrCat("warning: a save of ", FormatBytes(all_bytes),
                      bytes < all_bytes ? absl::StrCat(", ", FormatBytes(bytes), " on each host,") : "",
                      " probably takes ", FormatDuration(seconds), ", and after SIGTERM a process has ", grace_seconds,
                      " s to end (--grace_seconds); ask the system that runs the job for more, or save often enough "
                      "(checkpoint.every_steps) to lose little");
}

std::string DiskSpaceWarning(const JobPlan& plan, const CheckpointConfig& config, const RunFolder& folder) {
  struct statvfs disk;
  const absl::StatusOr<std::vector<CheckpointPath>> there = ListCheckpoints(folder.checkpoints_path());
  if (!there.ok() || statvfs(folder.path().c_str(), &disk) != 0) return "";
  // A checkpoint is written before an older one is removed.
  const int64_t bytes = BytesOfCheckpoint(plan), kept = config.keep_last + (config.keep_best ? 1 : 0) + 1;
  const int64_t more = std::max<int64_t>(1, kept - std::ssize(*there));
  constexpr double kMostBytes = 9e18;  // More is no number of bytes.
  const double needed = std::min(kMostBytes, static_cast<double>(bytes) * static_cast<double>(more));
  const double free = std::min(kMostBytes, static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
  if (needed <= free) return "";
  return absl::StrCat("warning: a checkpoint takes ", FormatBytes(bytes), ", and the ", Plural(more, "checkpoint"),
                      " that the run will add ", FormatBytes(static_cast<int64_t>(needed)), ", but ", folder.path(),
                      " has ", FormatBytes(static_cast<int64_t>(free)),
                      " free; free some, choose another disk (telemetry.run_folder), or keep fewer "
                      "(checkpoint.keep_last)");
}

}  // namespace shale
