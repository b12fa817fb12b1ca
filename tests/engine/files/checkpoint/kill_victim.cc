// A training process that is killed at a chosen operation on its files:
//
//   kill_victim JOB CHECKPOINTS RESUME PROGRESS KIND N [PATH=VALUE ...]
//
// RESUME is "none", "auto" or "again". "again" resumes like "auto" and saves that checkpoint once more before the first
// step. PROGRESS gets a line "step loss" after each step, the loss as a C hexadecimal number, and at the end a line
// "end OPERATIONS". KIND is "before" or "midway" (see Fault::Kind), N is the operation. The remaining arguments
// override the job. Exits with 0 at the end of the run, or with 1 after an error, which is printed to stderr.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "kernels/check.h"
#include "tests/engine/files/io/faulty_file_system.h"

namespace shale {
namespace {

absl::Status Run(int argc, char** argv) {
  if (argc < 7) return absl::InvalidArgumentError("too few arguments");
  const std::string folder = argv[2], resume = argv[3], kind = argv[5];
  SHALE_ASSIGN_OR_RETURN(const Job job, LoadJob(argv[1], std::vector<std::string>(argv + 7, argv + argc)));
  FaultyFileSystem files({.kind = kind == "before" ? Fault::Kind::kKillBefore : Fault::Kind::kKillMidway,
                          .first = std::strtoll(argv[6], nullptr, 10)});
  // Each line is handed to the system before training goes on, so that a kill loses none.
  const int progress = open(argv[4], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const auto tell = [&](const std::string& line) {
    return write(progress, line.data(), line.size()) == std::ssize(line)
               ? absl::OkStatus()
               : absl::InternalError("cannot tell of progress");
  };
  const ResumeOptions from{.from = resume == "none" ? ResumeFrom::kNothing : ResumeFrom::kLatestOrStart};
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(
          job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = folder, .resume = from, .files = &files}));
  if (resume == "again") SHALE_RETURN_IF_ERROR(trainer->SaveCheckpoint().status());
  SHALE_RETURN_IF_ERROR(trainer->Run({.on_step = [&](const StepReport& report) {
    return tell(absl::StrFormat("%d %a\n", report.step, report.loss));
  }}));
  return tell(absl::StrCat("end ", files.operations(), "\n"));
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  const absl::Status status = shale::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kill_victim: %s\n", std::string(status.message()).c_str());
  return 1;
}
