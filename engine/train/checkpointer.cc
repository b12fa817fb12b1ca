#include "engine/train/checkpointer.h"

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/staging.h"
#include "kernels/check.h"

namespace shale {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Files are read and written with direct I/O (past the page cache) from and to staging.
static_assert(kHostPartAlignment % kDirectAlignment == 0);

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(const JobPlan& plan, LocalRanks& ranks,
                                                                   const LocalState& state, const std::string& folder,
                                                                   const CheckpointStore::Options& options) {
  auto checkpointer = absl::WrapUnique(new Checkpointer(plan, state));
  SHALE_ASSIGN_OR_RETURN(checkpointer->staging_, StagingOf(ranks[0], kWriteStagingBytes));
  for (RankRuntime* rank : ranks.runtimes()) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, rank->device().CreateStream("save"));
    checkpointer->streams_.push_back(std::move(stream));
  }
  SHALE_ASSIGN_OR_RETURN(checkpointer->store_, CheckpointStore::Open(folder, options));
  if (plan.snapshot) {
    SHALE_ASSIGN_OR_RETURN(checkpointer->snapshot_,
                           LocalProgram::Create(ranks, plan.snapshot->step.program, plan.snapshot->memory, {}));
  }
  return checkpointer;
}

Checkpointer::~Checkpointer() {
  if (pending_.valid()) pending_.wait();
}

absl::Status Checkpointer::Complete(Manifest& manifest) const {
  for (const Parameter& parameter : plan_.train.graph.parameters) {
    manifest.parameters.push_back({parameter.name, parameter.shape});
  }
  manifest.strategy = std::string(ToString(plan_.options.strategy));
  manifest.accumulation = std::string(ToString(plan_.options.accumulation));
  manifest.states = SavedStatesOf(plan_.train.step.state.states);
  manifest.values = plan_.train.step.state.groups[0].low.present() ? SavedValues::kSplit : SavedValues::kFloat32;
  SHALE_ASSIGN_OR_RETURN(manifest.update_count, state_[0].ReadUpdateCount());
  return absl::OkStatus();
}

CheckpointReport Checkpointer::Write(const Manifest& manifest, RankState::Source source, double started) {
  CheckpointReport report{.step = manifest.step};
  const auto write = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    std::vector<SavedFile> files;
    for (int rank = 0; rank < state_.size(); ++rank) {
      Stream& stream = *streams_[rank];
      const auto copy = [&](void* to, const std::byte* from, int64_t bytes) {
        return stream.CopyAndWait(to, from, bytes);
      };
      SHALE_ASSIGN_OR_RETURN(SavedFile file, WriteShard(store_->files(), temporary, rank, state_.size(),
                                                        state_[rank].Pieces(source), copy, staging_));
      report.bytes += file.size_bytes;
      files.push_back(std::move(file));
    }
    return files;
  };
  absl::StatusOr<std::string> path = store_->Save(manifest, write);
  report.status = path.status();
  if (path.ok()) {
    report.path = *std::move(path);
    report.thinning = store_->thinning();
  }
  report.seconds = Now() - started;
  return report;
}

CheckpointReport Checkpointer::Save(Manifest manifest) {
  SHALE_CHECK(!pending_.valid()) << "a save is under way";
  const double started = Now();
  if (absl::Status status = Complete(manifest); !status.ok()) return {.step = manifest.step, .status = status};
  CheckpointReport report = Write(manifest, RankState::Source::kState, started);
  report.stop_seconds = report.seconds;
  return report;
}

absl::Status Checkpointer::Start(Manifest manifest) {
  SHALE_CHECK(!pending_.valid()) << "a save is under way";
  const auto finished = [this](CheckpointReport report) {
    std::promise<CheckpointReport> promise;
    promise.set_value(std::move(report));
    pending_ = promise.get_future();
  };
  if (snapshot_ == nullptr) {
    finished(Save(std::move(manifest)));
    return absl::OkStatus();
  }
  const double started = Now();
  SHALE_RETURN_IF_ERROR(Complete(manifest));
  SHALE_RETURN_IF_ERROR(snapshot_->Run(std::vector<StepInputs>(state_.size())));
  const double stop_seconds = Now() - started;
  try {
    pending_ = std::async(std::launch::async, [this, manifest, started, stop_seconds] {
      CheckpointReport report;
      try {
        report = Write(manifest, RankState::Source::kSnapshot, started);
      } catch (const std::bad_alloc&) {
        report = {.step = manifest.step,
                  .status = absl::ResourceExhaustedError(
                      absl::StrCat("no checkpoint of step ", manifest.step, ": out of memory"))};
      }
      report.stop_seconds = stop_seconds;
      return report;
    });
  } catch (const std::system_error& e) {
    finished({.step = manifest.step,
              .status = absl::ResourceExhaustedError(absl::StrCat("no checkpoint of step ", manifest.step,
                                                                  ": cannot start a thread that writes it: ", e.what(),
                                                                  "; raise the limit on threads (ulimit -u)")),
              .seconds = Now() - started,
              .stop_seconds = stop_seconds});
  }
  return absl::OkStatus();
}

std::optional<CheckpointReport> Checkpointer::Take(Wait wait) {
  if (!pending_.valid()) return std::nullopt;
  if (wait == Wait::kNo && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return pending_.get();
}

}  // namespace shale
