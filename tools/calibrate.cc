// calibrate: measures how fast this machine is, for plans of seconds.

#include "engine/run/calibrate/calibrate.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/files/io/file.h"
#include "engine/plan/time/profile.h"
#include "engine/run/calibrate/speeds.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

constexpr char kFooter[] =
    "Without --job, runs a few steps of small decoders of several sizes, in fp32 and bf16, on one rank and on two. "
    "With\n"
    "--job, runs a few steps of that job in fewer layers and micro-batches, once for each accumulation that it may "
    "take;\n"
    "its data is not read. Ranks on CPUs exchange as threads do, and again as processes. Plans of jobs that are like\n"
    "what was measured are better. What is measured is added to the profile of this machine in the user's cache\n"
    "($XDG_CACHE_HOME/shale/machines, or ~/.cache/shale/machines), which plan and train use. Let nothing else run\n"
    "meanwhile.";

struct Flags {
  std::string out;
  std::string job;
  std::vector<std::string> set;
  std::string device = "CPU";
  std::string folder;
  double seconds = 45;
};

void Print(absl::string_view line) {
  std::printf("%s\n", std::string(line).c_str());
  std::fflush(stdout);
}

absl::StatusOr<std::vector<Job>> JobsOf(const Flags& flags) {
  if (flags.job.empty()) {
    if (!flags.set.empty()) return absl::InvalidArgumentError("--set changes a job; give --job=FILE, too");
    if (flags.device != "CPU" && flags.device != "CUDA") {
      return absl::InvalidArgumentError(absl::StrCat("--device: found \"", flags.device, "\"; allowed: CPU, CUDA"));
    }
    return CalibrationJobs(flags.device == "CPU" ? DeviceType::kCpu : DeviceType::kCuda);
  }
  SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(flags.job, flags.set));
  SHALE_ASSIGN_OR_RETURN(const DataFacts data, DataFactsForPlanning(job));
  ApplyDataFacts(data, job);
  return JobsLike(job);
}

absl::Status Run(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(std::vector<Job> jobs, JobsOf(flags));
  // First, so that a folder that cannot be written to is told at once.
  double disk_bytes_per_second = 0;
  if (!flags.folder.empty()) {
    const absl::StatusOr<double> bytes = WriteBytesPerSecond(flags.folder);
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(), absl::StrCat("--folder: ", bytes.status().message(),
                                                              "; name a folder to which this user can write"));
    }
    disk_bytes_per_second = std::round(*bytes);
    Print(absl::StrCat("writes to ", flags.folder, ": ", FormatBytes(std::llround(*bytes)), "/s"));
  }
  for (Job& job : jobs) SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(
      proto::MachineProfile measured,
      Calibrate(jobs, {.create_backend = CreateBackend, .seconds = flags.seconds, .progress = Print}));
  if (disk_bytes_per_second > 0) measured.set_disk_bytes_per_second(disk_bytes_per_second);
  const std::string cache = UserCacheFolder();
  SHALE_ASSIGN_OR_RETURN(const proto::MachineProfile profile, KeepProfile(measured, cache));
  Print(absl::StrFormat("%s: peak %s/s in fp32, %s/s in bf16; copies %s/s; %s measured, %d in the profile",
                        profile.processor(), FormatFlops(profile.peak_flops_f32()),
                        FormatFlops(profile.peak_flops_bf16()),
                        FormatBytes(static_cast<int64_t>(profile.copy_bytes_per_second())),
                        Plural(measured.works_size(), "work"), profile.works_size()));
  if (!flags.out.empty()) SHALE_RETURN_IF_ERROR(WriteFileDurably(flags.out, PrintProfile(profile)));
  const MachineKey key{.device = profile.device(), .processor = profile.processor(), .threads = profile.threads()};
  if (!cache.empty()) Print(absl::StrCat("kept in ", CachedProfilePath(cache, key)));
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line(
      "calibrate",
      "Measures in less than a minute how fast this machine is, so that plan and train can predict the seconds of a "
      "step.");
  line.Text("out", "FILE", "Also writes the profile here, as a textproto (proto/machine.proto).", &flags.out);
  line.Text("job", "FILE", "Measures the shapes of this job, in place of those of small decoders.", &flags.job);
  line.List("set", "PATH=VALUE", "Overrides a field of the job, as in --set=batch.micro_batch=2.", &flags.set);
  line.Text("device", "CPU|CUDA", "What to measure. With --job, runtime.device of the job says it.", &flags.device);
  line.Text("folder", "FOLDER", "Also measures how fast checkpoints are written to this folder.", &flags.folder);
  line.Number("seconds",
              "How many seconds to measure for: no round of steps begins later, and no other job after half of them.",
              1, 3600, &flags.seconds);
  line.Footer(shale::kFooter);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Run(flags);
  if (status.ok()) return shale::kExitOk;
  std::fflush(stdout);
  std::fprintf(stderr, "calibrate: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? shale::kExitUsage : shale::kExitFailed;
}
