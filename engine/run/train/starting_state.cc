#include "engine/run/train/starting_state.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/api/job.h"
#include "engine/compile/graph/storage.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/job_files.h"
#include "engine/run/state/filling.h"
#include "engine/run/state/local_state.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the weights of job.adapter_folder, or null if the job has none.
absl::StatusOr<std::unique_ptr<HfWeights>> OpenAdapter(const Job& job) {
  if (job.adapter_folder.empty()) return nullptr;
  const auto& model = std::get<DecoderConfig>(job.model);
  SHALE_ASSIGN_OR_RETURN(AdapterConfig found, ReadHfAdapterConfig(job.adapter_folder));
  found.targets = model.adapter->targets;
  if (found != *model.adapter) {
    const auto text = [](const AdapterConfig& a) {
      return absl::StrCat("rank ", a.rank, ", alpha ", a.alpha, a.rank_stabilized ? ", rank_stabilized" : "");
    };
    return absl::InvalidArgumentError(absl::StrCat("model.adapter.folder: ", job.adapter_folder, " holds adapters of ",
                                                   text(found), ", the job has ", text(*model.adapter),
                                                   "; give those of the folder"));
  }
  SHALE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::OpenAdapter(job.adapter_folder, model));
  SHALE_RETURN_IF_ERROR(CheckHfAdapterModules(job.adapter_folder, model));
  return std::make_unique<HfWeights>(std::move(weights));
}

// Returns the weights of job.hf_folder, or null if the job has none.
absl::StatusOr<std::unique_ptr<HfWeights>> OpenModel(const Job& job) {
  if (job.hf_folder.empty()) return nullptr;
  SHALE_ASSIGN_OR_RETURN(const DecoderConfig config, ReadHfConfig(job.hf_folder));
  auto base = std::get<DecoderConfig>(job.model);
  base.adapter.reset();
  if (const std::string difference = FirstDifference(config, base); !difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model.hf_folder: ", job.hf_folder,
                                                   " holds a model that differs from the job's: ", difference,
                                                   "; leave model.decoder out to take its shape"));
  }
  SHALE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(job.hf_folder, config));
  return std::make_unique<HfWeights>(std::move(weights));
}

template <class... Args>
absl::Status Differs(const Args&... what) {
  return absl::FailedPreconditionError(absl::StrCat("the checkpoint is of another run: ", what...));
}

// Returns the model as text, with a line for each field.
std::vector<std::string> ModelLines(ModelConfig model) {
  // init_std does not matter, because restored weights are not initialized.
  std::visit(
      [](auto& config) {
        if constexpr (requires { config.init_std; }) config.init_std = 0;
      },
      model);
  // With rotary positions there is no table, so the longest sequence is not part of the model.
  if (auto* decoder = std::get_if<DecoderConfig>(&model); decoder && decoder->position == PositionKind::kRotary) {
    decoder->max_positions = 0;
  }
  const Job job = {.model = std::move(model)};
  return absl::StrSplit(ResolvedJobText(job), '\n');
}

// Returns OK if `folder` has no intact checkpoint of a step after `step`. `what` names the refused action.
absl::Status CheckNoneAfter(int64_t step, const std::string& folder, absl::string_view what) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<CheckpointPath> checkpoints, ListCheckpoints(folder));
  for (const CheckpointPath& checkpoint : checkpoints) {
    if (checkpoint.step <= step) break;
    if (IsDamage(CheckpointReader::Open(checkpoint.path).status())) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot ", what, " in a folder that holds ", checkpoint.path,
        ", which is not part of this run's history: choose another run folder (telemetry.run_folder), resume from "
        "the newest checkpoint (--resume=latest), or remove it first"));
  }
  return absl::OkStatus();
}

// Adds advice to the error if it says that the checkpoint is damaged.
absl::Status WithWayOut(const absl::Status& status) {
  if (!IsDamage(status)) return status;
  constexpr absl::string_view kWayOut = "; --resume=latest takes the newest intact checkpoint of the run folder";
  return absl::Status(status.code(), absl::StrCat(status.message(), kWayOut));
}

// Returns OK if the tokens of all sources are the same, wherever they lie. Checkpoints from before sources were
// recorded have none, and so has data of a program.
absl::Status CheckSameSources(const std::vector<SavedSource>& theirs, const std::vector<SavedSource>& ours) {
  if (theirs.empty() || ours.empty()) return absl::OkStatus();
  if (theirs.size() != ours.size()) {
    return Differs("its data has ", theirs.size(), " sources (data.path and data.mix), that of this run ", ours.size());
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    const SavedSource &a = theirs[i], &b = ours[i];
    const bool same_tokens = a.digest == b.digest && a.tokens == b.tokens;
    if (same_tokens && a.documents == b.documents) continue;
    const std::string field = i == 0 ? "data.path" : absl::StrCat("data.mix[", i - 1, "]");
    if (same_tokens) {
      return Differs(field, " (", b.path, ") has the same tokens as ", a.path,
                     " had, but its documents begin at other places, and so other samples lie at its positions; give "
                     "the data that the run began with, or begin a new run");
    }
    return Differs(field, " is ", b.path, " with ", b.tokens, " tokens of the digest ", absl::Hex(b.digest),
                   ", and was ", a.path, " with ", a.tokens, " of the digest ", absl::Hex(a.digest),
                   ": other tokens, or another order of them; give the data that the run began with, or begin a new "
                   "run");
  }
  return absl::OkStatus();
}

bool SameFolder(const std::string& a, const std::string& b) {
  struct stat first, second;
  return stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Returns OK if no checkpoint in `folder` is a link. A run that does not see such a checkpoint would write over the
// history that it belongs to.
absl::Status CheckNoneLinked(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> linked, ListLinkedCheckpoints(folder));
  if (linked.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      linked.back(),
      " is a link, and a run resumes only from folders that lie among its checkpoints: move the checkpoint "
      "there in place of the link, or remove the link to do without it"));
}

// Chooses the checkpoint, in process 0, and calls `use` with it. Sets from_elsewhere and passed_over of `resumed`.
absl::Status Find(const ResumeOptions& options, const std::string& folder,
                  absl::FunctionRef<absl::Status(const CheckpointReader&)> use, Resumed& resumed) {
  if (options.from == ResumeFrom::kReplace) return absl::OkStatus();
  if (!folder.empty()) SHALE_RETURN_IF_ERROR(CheckNoneLinked(folder));
  if (options.from == ResumeFrom::kNothing) {
    return folder.empty() ? absl::OkStatus() : CheckNoneAfter(-1, folder, "start from scratch");
  }
  if (options.from == ResumeFrom::kPath) {
    const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(options.path);
    if (!checkpoint.ok()) return WithWayOut(checkpoint.status());
    if (!folder.empty()) {
      resumed.from_elsewhere = !SameFolder(JoinPath(options.path, ".."), folder);
      SHALE_RETURN_IF_ERROR(CheckNoneAfter(resumed.from_elsewhere ? -1 : checkpoint->manifest().step, folder,
                                           absl::StrCat("resume from ", options.path)));
    }
    return WithWayOut(use(*checkpoint));
  }
  SHALE_ASSIGN_OR_RETURN(NewestCheckpoint newest, UseNewestCheckpoint(folder, use));
  resumed.passed_over = std::move(newest.passed_over);
  if (newest.path.empty() && options.from == ResumeFrom::kLatest) {
    return absl::NotFoundError(folder.empty() ? "there is no folder of checkpoints to resume from"
                                              : absl::StrCat("there is no checkpoint in ", folder,
                                                             " to resume from; --resume=auto starts anew then"));
  }
  return absl::OkStatus();
}

constexpr ControlChannel kResumeChannel = ControlChannel::kSteps;
constexpr absl::string_view kElsewhere = "from elsewhere";

// Returns how the weights of a checkpoint can go on in another run.
absl::string_view NewRun(const ModelConfig& model) {
  if (!std::holds_alternative<DecoderConfig>(model)) return "begin a new run";
  return "begin a new run from the weights (export them, and give the folder as model.hf_folder)";
}

// Checks that each parameter that trains is updated by the rule that updated it before, which keeps the same states.
absl::Status CheckSameRules(const Manifest& manifest, const OptimizerConfig& saved, const Job& job,
                            const ModelGraph& model) {
  const std::vector<Optimizer> groups = MakeGroupOptimizers(job.optimizer);
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& parameter = model.parameters[i];
    if (parameter.frozen) continue;
    const OptimizerKind before = KindOf(saved, parameter.name), now = KindOf(job.optimizer, parameter.name);
    if (before != now) {
      return Differs("its rule for ", parameter.name, " is ", EntryOf(before).name, ", the job's is ",
                     EntryOf(now).name,
                     " (optimizer.groups); the states of one optimizer mean nothing to another: keep "
                     "the rules, or ",
                     NewRun(job.model));
    }
    const Optimizer of_group =
        parameter.optimizer_group < 0 ? MakeOptimizer(job.optimizer) : groups[parameter.optimizer_group];
    const Optimizer& optimizer = of_group.Of(model.groups[parameter.group].block_matrices);
    const std::vector<SavedState> theirs = manifest.StatesOf(manifest.parameters[i]),
                                  ours = SavedStatesOf(optimizer, parameter);
    if (CanRestoreStates(theirs, ours)) continue;
    return Differs("it has ", theirs.size(), " states of its optimizer, the job's optimizer keeps ", ours.size(),
                   groups.empty() ? "" : absl::StrCat(" for ", parameter.name),
                   "; SGD keeps one with optimizer.momentum above 0, and none without");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SetInitialWeights(const Job& job, LocalState& state, uint64_t* base_digest) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> model, OpenModel(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> adapter, OpenAdapter(job));
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    for (const HfWeights* weights : {model.get(), adapter.get()}) {
      if (weights != nullptr && weights->Has(parameter.name)) return weights->Read(parameter.name, begin, values);
    }
    FillInitialValues(parameter, job.runtime.seed, begin, values);
    return absl::OkStatus();
  };
  return state.Fill(read, {.threads = FillThreads(job), .digest_of_frozen = base_digest});
}

absl::Status SetBase(const Job& job, LocalState& state, uint64_t& digest) {
  SHALE_CHECK(HasBase(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<HfWeights> model, OpenModel(job));
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    return model->Read(parameter.name, begin, values);
  };
  return state.Fill(read, {.frozen_only = true, .threads = FillThreads(job), .digest_of_frozen = &digest});
}

std::string FirstDifference(const ModelConfig& a, const ModelConfig& b) {
  const std::vector<std::string> first = ModelLines(a), second = ModelLines(b);
  const auto line = [](const std::vector<std::string>& lines, size_t i) {
    return i < lines.size() ? std::string(absl::StripAsciiWhitespace(lines[i])) : "nothing";
  };
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (line(first, i) == line(second, i)) continue;
    return absl::StrCat("it has \"", line(first, i), "\", the job's model \"", line(second, i), "\"");
  }
  return "";
}

absl::Status CheckSameRun(const Manifest& manifest, const Job& job, const SavedData& data, const ModelGraph& model) {
  const absl::StatusOr<Job> saved = ParseRecordedJob(manifest.job, "the checkpoint's job");
  if (!saved.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint's job cannot be read by this program: ", saved.status().message()));
  }
  if (const std::string difference = FirstDifference(saved->model, job.model); !difference.empty()) {
    return Differs(difference);
  }
  SHALE_RETURN_IF_ERROR(CheckSameParameters(manifest.parameters, model));
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const bool frozen = manifest.parameters[i].frozen;
    if (frozen == model.parameters[i].frozen) continue;
    return Differs("its parameter ", model.parameters[i].name,
                   frozen ? " is frozen, and trains" : " trains, and is frozen",
                   " in the job (optimizer.train_only); keep train_only, or ", NewRun(job.model));
  }
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const bool nf4 = manifest.parameters[i].nf4;
    if (nf4 == RowOf(model.parameters[i].storage).quantized) continue;
    return Differs("its parameter ", model.parameters[i].name, nf4 ? " is" : " is not",
                   " stored in NF4, unlike in the job (optimizer.frozen_weights); keep frozen_weights, or begin a new "
                   "run from the weights (export them, and give the folder as model.hf_folder)");
  }
  if (saved->optimizer.groups.empty() && job.optimizer.groups.empty() && saved->optimizer.kind != job.optimizer.kind) {
    return Differs("its optimizer.rule is ", EntryOf(saved->optimizer.kind).name, ", the job's is ",
                   EntryOf(job.optimizer.kind).name,
                   "; the states of one optimizer mean nothing to another: keep the rule, or ", NewRun(job.model));
  }
  SHALE_RETURN_IF_ERROR(CheckSameRules(manifest, saved->optimizer, job, model));
  const SavedData& theirs = manifest.data;
  if (theirs.tokenizer != data.tokenizer) {
    return Differs("its tokens are of \"", theirs.tokenizer, "\", those of this run of \"", data.tokenizer, "\"");
  }
  if (theirs.sequence_length != data.sequence_length) {
    return Differs("its batch.sequence_length is ", theirs.sequence_length, ", the job's ", data.sequence_length);
  }
  if (theirs.samples_per_epoch != data.samples_per_epoch) {
    return Differs("its data has ", theirs.samples_per_epoch, " samples, that of this run has ", data.samples_per_epoch,
                   "; the position saved in the checkpoint has no meaning in other data");
  }
  SHALE_RETURN_IF_ERROR(CheckSameSources(theirs.sources, data.sources));
  if (theirs.shuffled != data.shuffled) {
    return Differs("its data.order is ", theirs.shuffled ? "SHUFFLED" : "SEQUENTIAL", ", the job's is the other");
  }
  if (theirs.shuffled && theirs.seed != data.seed) {
    return Differs("its data.seed is ", theirs.seed, ", the job's ", data.seed);
  }
  return absl::OkStatus();
}

absl::StatusOr<Resumed> Resume(const ResumeOptions& options, const std::string& folder, ControlPlane& control,
                               absl::FunctionRef<absl::Status(const Manifest&)> check,
                               absl::FunctionRef<absl::Status(const CheckpointReader&)> restore) {
  Resumed resumed;
  const auto use = [&](const CheckpointReader& checkpoint) -> absl::Status {
    if (absl::Status same = check(checkpoint.manifest()); !same.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(checkpoint.folder(), ": ", same.message()));
    }
    SHALE_RETURN_IF_ERROR(restore(checkpoint));
    resumed.path = checkpoint.folder();
    resumed.manifest = checkpoint.manifest();
    return absl::OkStatus();
  };
  if (control.process() == 0) {
    const auto use_together = [&](const CheckpointReader& checkpoint) -> absl::Status {
      SHALE_RETURN_IF_ERROR(control.Broadcast(kResumeChannel, checkpoint.folder()).status());
      return AgreeOnStatus(control, kResumeChannel, use(checkpoint));
    };
    const absl::Status found = Find(options, folder, use_together, resumed);
    if (!found.ok() || resumed.path.empty()) SHALE_RETURN_IF_ERROR(control.Broadcast(kResumeChannel, "").status());
    SHALE_RETURN_IF_ERROR(AgreeOnStatus(control, kResumeChannel, found));
    SHALE_RETURN_IF_ERROR(
        control.Broadcast(kResumeChannel, resumed.from_elsewhere ? std::string(kElsewhere) : "").status());
    return resumed;
  }
  while (true) {
    SHALE_ASSIGN_OR_RETURN(const std::string path, control.Broadcast(kResumeChannel, ""));
    if (path.empty()) break;
    const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(path);
    const absl::Status used = checkpoint.ok() ? use(*checkpoint) : checkpoint.status();
    if (AgreeOnStatus(control, kResumeChannel, used).ok()) break;
    resumed = {};
  }
  SHALE_RETURN_IF_ERROR(AgreeOnStatus(control, kResumeChannel, absl::OkStatus()));
  SHALE_ASSIGN_OR_RETURN(const std::string elsewhere, control.Broadcast(kResumeChannel, ""));
  resumed.from_elsewhere = elsewhere == kElsewhere;
  return resumed;
}

}  // namespace shale
