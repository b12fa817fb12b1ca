// Measures what planning hostile jobs takes (engine/api/plan.h): seconds, of them those of the processor, and
// memory. Each job has a process of its own.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/time/clock.h"
#include "engine/api/backend.h"
#include "engine/api/plan.h"
#include "engine/strings/printing.h"
#include "tools/bench/hostile_jobs.h"
#include "tools/command_line.h"

namespace shale {
namespace {

const char* VerdictOf(const absl::StatusOr<Admission>& admission) {
  if (!admission.ok()) return absl::IsDeadlineExceeded(admission.status()) ? "no time" : "no memory";
  switch (admission->verdict) {
    case Admission::Verdict::kFits: return "fits";
    case Admission::Verdict::kDoesNotFit:
      return admission->refusal && admission->refusal->search_ended_early ? "does not fit; search ended"
                                                                          : "does not fit";
    case Admission::Verdict::kInvalid: return "invalid";
  }
  return "?";
}

double ProcessorSeconds(const rusage& usage) {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Plans one job in a process of its own, which prints its row.
bool Measure(const HostileJob& job, const AdmissionOptions& options) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const AdmissionMachine machine{.planning = PlanningMachine, .hardware_threads = 8};
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const absl::Time begin = absl::Now();
    const absl::StatusOr<Admission> admission = Admit(job.text, machine, options);
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    getrusage(RUSAGE_SELF, &after);
    std::printf("%-46s %7.3f s %7.3f s %10s  %s\n", job.name.c_str(), seconds,
                ProcessorSeconds(after) - ProcessorSeconds(before),
                FormatBytes((after.ru_maxrss - before.ru_maxrss) * 1024).c_str(), VerdictOf(admission));
    std::fflush(stdout);
    _exit(0);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int Run(int64_t milliseconds, int64_t mebibytes) {
  AdmissionOptions options;
  if (milliseconds > 0) options.time_limit = absl::Milliseconds(milliseconds);
  if (mebibytes > 0) options.memory_bytes = mebibytes << 20;
  std::printf("%-46s %9s %9s %10s  verdict\n", "job", "time", "processor", "memory");
  const int64_t instructions = (options.memory_bytes - kPlanningBytes) / kPlanningBytesPerInstruction;
  for (const HostileJob& job : HostileJobs(instructions)) {
    if (!Measure(job, options)) {
      std::fprintf(stderr, "admission: %s ended its process\n", job.name.c_str());
      return kExitFailed;
    }
  }
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  int64_t milliseconds = 0, mebibytes = 0;
  shale::CommandLine line("admission", "Measures the time and the memory that planning hostile jobs takes.");
  line.Integer("milliseconds", "Time limit of one job; 0: the default.", 0, 1 << 20, &milliseconds);
  line.Integer("mebibytes", "Memory limit, for which the jobs are made; 0: the default.", 0, 1 << 12, &mebibytes);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(milliseconds, mebibytes);
}
