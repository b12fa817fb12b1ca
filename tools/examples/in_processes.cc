// Trains a job in as many processes as a launcher starts, or in one, and saves checkpoints.
//
//   tools/launch --processes=4 -- in_processes JOB FOLDER
#include <cstdio>
#include <memory>
#include <string>

#include "engine/api/job_processes.h"
#include "engine/shale.h"

namespace {

absl::Status Train(const std::string& job_file, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const shale::Job job, shale::LoadJob(job_file));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<shale::JobProcesses> processes, shale::JobProcesses::Join(job));
  const absl::StatusOr<std::unique_ptr<shale::Trainer>> trainer =
      processes->CreateTrainer(job, {.checkpoint_folder = folder});
  return processes->End(trainer.ok() ? (*trainer)->Run({}) : trainer.status());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "in_processes JOB FOLDER\n"), 2;
  const absl::Status status = Train(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "in_processes: %s\n", std::string(status.message()).c_str());
  return 1;
}
