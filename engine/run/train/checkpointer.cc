#include "engine/run/train/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr ControlChannel kCheckpointChannel = ControlChannel::kCheckpoints;

int64_t TotalBytes(const std::vector<SavedFile>& files) {
  int64_t bytes = 0;
  for (const SavedFile& file : files) bytes += file.size_bytes;
  return bytes;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Files are read and written through staging with direct I/O, which bypasses the page cache and needs aligned memory.
static_assert(kHostPartAlignment % kDirectAlignment == 0);

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(const JobPlan& plan, LocalRanks& ranks,
                                                                   const LocalState& state, const std::string& folder,
                                                                   const CheckpointStore::Options& options,
                                                                   ControlPlane& control) {
  auto checkpointer = absl::WrapUnique(new Checkpointer(plan, ranks, state, *options.files, control));
  SHALE_ASSIGN_OR_RETURN(checkpointer->staging_, StagingOf(ranks[0], kWriteStagingBytes));
  for (RankRuntime* rank : ranks.runtimes()) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, rank->device().CreateStream("save"));
    checkpointer->streams_.push_back(std::move(stream));
  }
  absl::Status opened;
  if (control.process() == 0) {
    absl::StatusOr<std::unique_ptr<CheckpointStore>> store = CheckpointStore::Open(folder, options);
    opened = store.status();
    if (store.ok()) checkpointer->store_ = *std::move(store);
  }
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control, ControlChannel::kCheckpoints, opened));
  if (plan.snapshot) {
    SHALE_ASSIGN_OR_RETURN(checkpointer->snapshot_,
                           LocalProgram::Create(ranks, plan.snapshot->step.program, plan.snapshot->memory, {}));
  }
  return checkpointer;
}

Checkpointer::~Checkpointer() { WaitForWriting(); }

absl::Status Checkpointer::Complete(Manifest& manifest) const {
  // A program may have written to the base in one process only. All of its checkpoint must then be saved.
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> bases,
                         control_.Gather(kCheckpointChannel, manifest.base ? "base" : ""));
  if (std::count(bases.begin(), bases.end(), "") > 0) manifest.base.reset();
  manifest.parameters = SavedParametersOf(plan_.train.graph, plan_.train.step.state);
  for (SavedParameter& parameter : manifest.parameters) parameter.in_base = manifest.base && parameter.frozen;
  manifest.strategy = std::string(ToString(plan_.options.strategy));
  manifest.accumulation = std::string(ToString(plan_.options.accumulation));
  manifest.states = SavedStatesOf(plan_.train.step.state);
  manifest.values = SavedValuesOf(plan_.train.step.state);
  manifest.frozen_values = FrozenValuesOf(plan_.train.step.state);
  return AgreeOnStatus(control_, kCheckpointChannel, state_[0].ReadScalars(manifest));
}

absl::StatusOr<std::vector<SavedFile>> Checkpointer::WriteShards(const std::string& folder, const Manifest& manifest,
                                                                 RankState::Source source) {
  std::vector<SavedFile> files;
  for (int local = 0; local < state_.size(); ++local) {
    Stream& stream = *streams_[local];
    const auto copy = [&](void* to, const std::byte* from, int64_t bytes) {
      return stream.CopyAndWait(to, from, bytes);
    };
    SHALE_ASSIGN_OR_RETURN(SavedFile file, WriteShard(files_, folder, ranks_.number(local), ranks_.mesh().ranks(),
                                                      state_[local].Pieces(source, manifest), copy, staging_));
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<SavedFile>> Checkpointer::WriteAllShards(const std::string& folder, const Manifest& manifest,
                                                                    RankState::Source source) {
  const absl::StatusOr<std::vector<SavedFile>> mine = WriteShards(folder, manifest, source);
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control_, kCheckpointChannel, mine.status()));
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         control_.Gather(kCheckpointChannel, SerializeFiles(*mine)));
  std::vector<SavedFile> files;
  for (const std::string& message : all) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<SavedFile> theirs, ParseFiles(message));
    files.insert(files.end(), theirs.begin(), theirs.end());
  }
  // Up to 100,000 ranks, names sort like ranks, because the numbers in them have five digits.
  std::sort(files.begin(), files.end(), [](const SavedFile& a, const SavedFile& b) { return a.name < b.name; });
  return files;
}

absl::StatusOr<Checkpointer::Saved> Checkpointer::Lead(const Manifest& manifest, RankState::Source source) {
  bool begun = false;
  Saved saved;
  const auto write = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    begun = true;
    SHALE_RETURN_IF_ERROR(control_.Broadcast(kCheckpointChannel, temporary).status());
    absl::StatusOr<std::vector<SavedFile>> files = WriteAllShards(temporary, manifest, source);
    if (files.ok()) saved.bytes = TotalBytes(*files);
    return files;
  };
  absl::StatusOr<std::string> path = store_->Save(manifest, write);
  if (!begun) SHALE_RETURN_IF_ERROR(control_.Broadcast(kCheckpointChannel, "").status());
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control_, kCheckpointChannel, path.status()));
  SHALE_ASSIGN_OR_RETURN(saved.path, control_.Broadcast(kCheckpointChannel, *path));
  return saved;
}

absl::StatusOr<Checkpointer::Saved> Checkpointer::Follow(const Manifest& manifest, RankState::Source source) {
  Saved saved;
  SHALE_ASSIGN_OR_RETURN(const std::string temporary, control_.Broadcast(kCheckpointChannel, ""));
  // An error here needs no handling: it reaches process 0 too, and every process returns the error of process 0.
  if (!temporary.empty()) {
    const absl::StatusOr<std::vector<SavedFile>> files = WriteAllShards(temporary, manifest, source);
    if (files.ok()) saved.bytes = TotalBytes(*files);
  }
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control_, kCheckpointChannel, absl::OkStatus()));
  SHALE_ASSIGN_OR_RETURN(saved.path, control_.Broadcast(kCheckpointChannel, ""));
  return saved;
}

CheckpointReport Checkpointer::Write(const Manifest& manifest, RankState::Source source, double started) {
  CheckpointReport report{.step = manifest.step};
  const absl::StatusOr<Saved> saved = store_ != nullptr ? Lead(manifest, source) : Follow(manifest, source);
  report.status = saved.status();
  if (saved.ok()) {
    report.path = saved->path;
    report.bytes = saved->bytes;
    if (store_ != nullptr) report.thinning = store_->thinning();
  }
  report.seconds = Now() - started;
  return report;
}

CheckpointReport Checkpointer::Save(Manifest manifest) {
  SHALE_CHECK(!pending_.valid()) << "a save is under way";
  const double started = Now();
  if (absl::Status status = Complete(manifest); !status.ok()) {
    return {.step = manifest.step, .status = status, .seconds = Now() - started};
  }
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

bool Checkpointer::EndedEverywhere() const {
  const bool ended = pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (control_.processes() == 1) return ended;
  // Uses the channel of the steps, because the saving thread may be using that of the checkpoints.
  const absl::StatusOr<std::vector<std::string>> all = control_.Gather(ControlChannel::kSteps, ended ? "ended" : "");
  // If the control plane returns an error, the save counts as pending; the next step then fails with that error.
  return all.ok() && std::find(all->begin(), all->end(), "") == all->end();
}

std::optional<CheckpointReport> Checkpointer::Take(Wait wait) {
  if (!pending_.valid()) return std::nullopt;
  if (wait == Wait::kNo && !EndedEverywhere()) return std::nullopt;
  return pending_.get();
}

}  // namespace shale
