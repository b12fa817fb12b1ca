#include "tools/examples/service/job_runner.h"

#include <memory>
#include <utility>

#include "tools/examples/service/job_folders.h"

namespace service {

JobRunner::JobRunner(std::string job_path, std::string checkpoints, shale::EventSink* events,
                     std::function<void()> on_end)
    : job_path_(std::move(job_path)), checkpoints_(std::move(checkpoints)), events_(events) {
  thread_ = std::thread([this, on_end = std::move(on_end)] {
    status_ = Train();
    on_end();
  });
}

void JobRunner::RequestStop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  if (trainer_ != nullptr) trainer_->RequestStop();
}

absl::Status JobRunner::Train() {
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadText(job_path_));
  SHALE_ASSIGN_OR_RETURN(const shale::Job job, shale::ParseRecordedJob(text, job_path_));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<shale::Backend> backend, shale::CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<shale::Trainer> trainer,
                         shale::Trainer::Create(job, {.backend = backend.get(),
                                                      .checkpoint_folder = checkpoints_,
                                                      .resume = {.from = shale::ResumeFrom::kLatestOrStart},
                                                      .events = events_}));
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return absl::OkStatus();  // Nothing has happened that a checkpoint would have to keep.
    trainer_ = trainer.get();
  }
  const absl::Status status = trainer->Run({});
  const std::lock_guard lock(mutex_);
  trainer_ = nullptr;
  finished_ = trainer->steps_done() == trainer->total_steps();
  return status;
}

}  // namespace service
