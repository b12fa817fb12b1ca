// The start of a session: its job, its ranks, and the state that it begins with.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/io/checksums.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/search/decided_fields.h"
#include "engine/plan/time/prediction.h"
#include "engine/plan/time/profile.h"
#include "engine/run/runtime/trace.h"
#include "engine/run/train/processes.h"
#include "engine/run/train/session.h"
#include "engine/run/train/starting_state.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Returns the resident memory of this process in bytes, or 0 if the system does not report it.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns on how many hosts the ranks lie; 0: not known.
int64_t HostsOf(const TrainerOptions& options, const Job& job) {
  return options.ranks_on_host > 0 ? CeilDivide(job.sharding.ranks, options.ranks_on_host) : 0;
}

// Gives the machine the profile of process 0, if it has one, so that all processes decide alike by seconds. Ranks on
// several hosts decide by bytes alone unless the job asks for a search: the links between hosts may not be measured.
absl::Status TakeProfileOfAll(const TrainerOptions& options, const Job& job, Machine& machine) {
  ControlPlane& control = *options.control;
  machine.hosts = HostsOf(options, job);
  if (control.processes() == 1) {
    if (options.machine != nullptr) machine.profile = std::make_shared<const proto::MachineProfile>(*options.machine);
    return absl::OkStatus();
  }
  if (machine.hosts > 1 && job.runtime.search.empty()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(
      const std::string text,
      control.Broadcast(ControlChannel::kSteps, options.machine == nullptr ? "" : PrintProfile(*options.machine)));
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<proto::MachineProfile> profile = ParseProfile(text, "the profile of process 0");
  if (!profile.ok()) return Agreed(profile.status());
  machine.profile = std::make_shared<const proto::MachineProfile>(*std::move(profile));
  return absl::OkStatus();
}

// Gives the job its model, and opens its data.
absl::StatusOr<std::unique_ptr<JobData>> OpenJobData(const TrainerOptions& options, Job& job) {
  if (options.model) SHALE_RETURN_IF_ERROR(SetModel(*options.model, job));
  SHALE_ASSIGN_OR_RETURN(
      std::unique_ptr<JobData> data,
      JobData::Open(job, options.tokenizer_folder, {.training = options.data, .evaluation = options.evaluation_data},
                    options.text_progress));
  SHALE_RETURN_IF_ERROR(
      CheckSource(data->training().source(), options.control->processes(), !options.checkpoint_folder.empty()));
  return data;
}

// Decides, in process 0, the fields that the job leaves to a search, and sets them in all processes. Returns
// DecidedFields::why.
absl::StatusOr<std::string> DecideForAll(const Machine& machine, const DataFacts& data, ControlPlane& control,
                                         Job& job) {
  absl::StatusOr<DecidedFields> decided = DecidedFields();
  if (control.process() == 0) decided = DecideFields(job, data, machine);
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control, ControlChannel::kSteps, decided.status()));
  const std::string settings = absl::StrJoin(decided->settings, "\n");
  SHALE_ASSIGN_OR_RETURN(const std::string of_all, control.Broadcast(ControlChannel::kSteps, settings));
  SHALE_ASSIGN_OR_RETURN(decided->why, control.Broadcast(ControlChannel::kSteps, decided->why));
  const std::vector<std::string> overrides = absl::StrSplit(of_all, '\n');
  SHALE_ASSIGN_OR_RETURN(const Job changed, WithOverrides(job, overrides));
  job = WithSearchedFieldsOf(changed, job);
  return decided->why;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const Job& job, const TrainerOptions& options) {
  if (options.backend == nullptr) return absl::InvalidArgumentError("TrainerOptions.backend is missing");
  SHALE_ASSIGN_OR_RETURN(Machine machine, MachineOfAll(options.backend->machine(), job.sharding.ranks,
                                                       options.ranks_on_host, *options.control));
  SHALE_RETURN_IF_ERROR(TakeProfileOfAll(options, job, machine));
  absl::StatusOr<std::unique_ptr<Session>> session = Prepare(job, machine, options);
  const auto agree = [&](const absl::Status& status) {
    return AgreeOnStatus(*options.control, ControlChannel::kSteps, status);
  };
  SHALE_RETURN_IF_ERROR(agree(session.status()));
  SHALE_RETURN_IF_ERROR((*session)->CheckSame());
  SHALE_ASSIGN_OR_RETURN(std::vector<int> process_of_rank,
                         ProcessOfEachRank(options.ranks, job.sharding.ranks, *options.control));
  (*session)->TellPlan();
  (*session)->health_.Tell(Progress{StartStage::kAllocating});
  // An error of one process is not agreed on here, because the others may wait for this one in a group that it does not
  // join any more. Its end tells them.
  SHALE_RETURN_IF_ERROR((*session)->Allocate(std::move(process_of_rank), options));
  SHALE_RETURN_IF_ERROR((*session)->Begin(options));
  return session;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Prepare(Job job, const Machine& machine,
                                                          const TrainerOptions& options) {
  absl::StatusOr<std::unique_ptr<JobData>> opened = OpenJobData(options, job);
  std::string searched;
  if (!job.runtime.search.empty()) {
    // All processes search, or none, because they wait for each other.
    SHALE_RETURN_IF_ERROR(AgreeOnStatus(*options.control, ControlChannel::kSteps, opened.status()));
    SHALE_ASSIGN_OR_RETURN(searched, DecideForAll(machine, (*opened)->facts(), *options.control, job));
  }
  SHALE_RETURN_IF_ERROR(opened.status());
  std::unique_ptr<JobData> data = *std::move(opened);
  SHALE_ASSIGN_OR_RETURN(LearningRateSchedule learning_rate,
                         LearningRateSchedule::Create(LearningRateOptionsFor(job, data->total_steps())));
  // The jobs that options.job_with makes lack what was decided.
  const JobWith job_with = searched.empty() ? options.job_with : JobWith();
  SHALE_ASSIGN_OR_RETURN(ResolvedJob resolved, ResolveJob(job, data->facts(), machine, {}, nullptr, job_with));
  resolved.plan.searched = std::move(searched);
  SHALE_RETURN_IF_ERROR(data->FitTo(NeedsOf(resolved.plan.train.graph), job.batch.micro_batch));
  return absl::WrapUnique(new Session(std::move(resolved), std::move(data), learning_rate, options));
}

absl::Status Session::CheckSame() const {
  if (control_.processes() == 1) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(CheckSameEverywhere(control_, ControlChannel::kSteps, "the job", ResolvedJobText(job_)));
  const std::string addresses = absl::StrJoin(plan_.train.memory.addresses, " ");
  SHALE_RETURN_IF_ERROR(CheckSameEverywhere(
      control_, ControlChannel::kSteps, "the program of a step and its memory plan (their CRCs)",
      absl::StrCat(ProgramDigest(plan_.train.step.program, job_.sharding.ranks), " ", Crc32c(addresses))));
  SHALE_RETURN_IF_ERROR(CheckSameEverywhere(control_, ControlChannel::kSteps, "the trace", trace_.Describe()));
  const SavedData& data = data_->saved();
  SHALE_RETURN_IF_ERROR(CheckSameData(data.tokenizer, data.samples_per_epoch));
  const std::string sources = absl::StrJoin(data.sources, ", ", [](std::string* out, const SavedSource& source) {
    absl::StrAppend(out, source.path, " (", absl::Hex(source.digest), ")");
  });
  return CheckSameEverywhere(control_, ControlChannel::kSteps, "the tokens of the data (their digests)", sources);
}

absl::Status Session::CheckSameData(const std::string& name, int64_t samples) const {
  return CheckSameEverywhere(control_, ControlChannel::kSteps, "the data",
                             absl::StrCat(samples, " samples of \"", name, "\""));
}

Session::Session(ResolvedJob resolved, std::unique_ptr<JobData> data, LearningRateSchedule learning_rate,
                 const TrainerOptions& options)
    : resolved_(std::move(resolved)),
      control_(*options.control),
      health_(*options.control, options.events, options.failure_folder),
      flops_(job_, plan_.train.graph, Float8Speed(options.peak_flops, options.peak_flops_fp8)),
      local_ranks_(options.ranks),
      data_(std::move(data)),
      learning_rate_(learning_rate),
      evaluations_(data_->DescribeEvaluations(job_.telemetry.evaluation_sequences), job_.checkpoint.patience),
      monitor_(job_.sharding.ranks, plan_.train.graph.vocabulary, options.peak_flops, *options.control),
      trace_(options, *options.control) {
  trace_.trace_->SetRanks(job_.sharding.ranks);
  if (options.machine == nullptr) return;
  contract_.emplace(job_, plan_, *options.machine,
                    RankPlaces{.hosts = HostsOf(options, job_), .processes = options.control->processes()});
  devices_.step_time = contract_->Describe();
  trace_.trace_->SetPredicted([this](const Instruction& issued) { return contract_->SecondsOf(issued); });
}

absl::Status Session::Allocate(std::vector<int> process_of_rank, const TrainerOptions& options) {
  SHALE_ASSIGN_OR_RETURN(batches_,
                         BatchPrefetcher::Create(data_->training(), plan_.options.micro_batches, local_ranks_));
  devices_.overhead_bytes = ResidentBytes();
  SHALE_ASSIGN_OR_RETURN(programs_,
                         AllocateRanks(resolved_, std::move(process_of_rank), has_evaluation_data(), options));
  LocalRanks& ranks = *programs_.ranks;
  devices_.description = programs_.Describe();
  health_.SetRanks(&ranks);
  check_.emplace(job_.runtime.check_every_steps, plan_, ranks, *programs_.train, control_);
  local_state_ = std::make_unique<LocalState>(plan_.train.graph, plan_.train.step.state, plan_.train.memory, ranks);
  state_ = absl::WrapUnique(new TrainerState(*local_state_, health_, [this](bool frozen) { ForgetState(frozen); }));
  generator_ = absl::WrapUnique(new LiveGenerator(programs_.sequences.get(), health_));
  if (options.checkpoint_folder.empty()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(plan_, ranks, *local_state_, options.checkpoint_folder,
                                                             {.keep_last = job_.checkpoint.keep_last,
                                                              .keep_every = job_.checkpoint.keep_every,
                                                              .keep_best = job_.checkpoint.keep_best,
                                                              .files = options.files},
                                                             control_));
  checkpoints_.emplace(job_.checkpoint, *this);
  return absl::OkStatus();
}

absl::Status Session::Begin(const TrainerOptions& options) {
  SHALE_ASSIGN_OR_RETURN(resumed_, Resume(
                                       options.resume, options.checkpoint_folder, control_,
                                       [&](const Manifest& manifest) {
                                         return CheckSameRun(manifest, job_, data_->saved(), plan_.train.graph);
                                       },
                                       [&](const CheckpointReader& checkpoint) {
                                         health_.Tell(Progress{StartStage::kRestoring});
                                         return local_state_->Restore(checkpoint, /*values_only=*/false);
                                       }));
  for (const std::string& reason : resumed_.passed_over) health_.Tell(Warning{absl::StrCat("skipped: ", reason)});
  const bool resumes = !resumed_.path.empty();
  const SavedData& saved = resumed_.manifest.data;
  SHALE_RETURN_IF_ERROR(Everywhere(
      data_->Start(resumes ? resumed_.manifest.samples - saved.begin : 0, resumes ? &saved.source_state : nullptr)));
  if (!resumes) return BeginAnew();
  if (resumed_.manifest.base) SHALE_RETURN_IF_ERROR(ReadBaseAgain());
  return GoOnAfterCheckpoint();
}

absl::Status Session::BeginAnew() {
  health_.Tell(Progress{StartStage::kLoading});
  uint64_t digest = 0;
  SHALE_RETURN_IF_ERROR(Everywhere(SetInitialWeights(job_, *local_state_, HasBase(job_) ? &digest : nullptr)));
  for (const std::string& remark : JobRemarks(job_)) health_.Tell(Warning{remark});
  return HasBase(job_) ? RecordBase(digest) : absl::OkStatus();
}

absl::Status Session::RecordBase(uint64_t digest_of_process) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                         control_.Gather(ControlChannel::kSteps, absl::StrCat(digest_of_process)));
  std::error_code ignored;
  const std::string folder = std::filesystem::absolute(job_.hf_folder, ignored).string();
  base_ = SavedBase{.folder = folder.empty() ? job_.hf_folder : folder};
  for (const std::string& text : digests) {
    uint64_t digest = 0;
    if (!absl::SimpleAtoi(text, &digest)) return absl::InternalError("a process sent no digest of its base");
    base_->digest += digest;
  }
  return absl::OkStatus();
}

absl::Status Session::ReadBaseAgain() {
  constexpr absl::string_view kField = "model.hf_folder";
  const Manifest& manifest = resumed_.manifest;
  uint64_t digest = 0;
  const absl::Status read = HasBase(job_) ? SetBase(job_, *local_state_, digest)
                                          : absl::FailedPreconditionError("the job has no model.hf_folder");
  SHALE_RETURN_IF_ERROR(Everywhere(WithBase(read, manifest, resumed_.path, kField)));
  SHALE_RETURN_IF_ERROR(RecordBase(digest));
  return Everywhere(CheckBaseDigest(manifest, resumed_.path, base_->folder, base_->digest, kField));
}

absl::Status Session::GoOnAfterCheckpoint() {
  const int64_t step = resumed_.manifest.step;
  health_.steps().done = step;
  health_.steps().saved = step;
  tokens_ = resumed_.manifest.tokens;
  position_ = resumed_.manifest.samples;
  if (follows_evaluations()) evaluations_.GoOnAfter(resumed_.manifest.evaluations);
  data_->GoOnAfter(step, position_, resumed_.manifest.data.begin);
  SHALE_ASSIGN_OR_RETURN(learning_rate_,
                         LearningRateSchedule::Create(LearningRateOptionsFor(job_, data_->total_steps())));
  if (!saves()) return absl::OkStatus();
  checkpoints_->SetSaved(step);
  // If the checkpoint lies elsewhere, save at once: a run that is killed before its next save can then resume from a
  // checkpoint in its own folder.
  if (resumed_.from_elsewhere) return Save().status;
  checkpointer_->DisregardAfter(step);
  return absl::OkStatus();
}

void Session::TellPlan() const {
  health_.Tell(PlanReady{.name = job_.name,
                         .parameters = CountParameters(plan_.train.graph),
                         .ranks = job_.sharding.ranks,
                         .accumulation_steps = plan_.options.micro_batches,
                         .total_steps = data_->total_steps(),
                         .arena_bytes = plan_.arena_bytes,
                         .host_arena_bytes = plan_.host_memory.total_bytes()});
}

}  // namespace shale
