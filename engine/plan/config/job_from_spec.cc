#include "engine/plan/config/job_from_spec.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/config/members.h"
#include "engine/plan/config/model_spec.h"
#include "engine/plan/config/spec_text.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "kernels/check.h"
#include "proto/job.pb.h"

namespace shale {
namespace {

// Sets the defaults that the rule decides, and with state LEAN that there are no masters.
void SetDefaultsOfOptimizer(const proto::OptimizerSpec& spec, Job& job) {
  OptimizerConfig& config = job.optimizer;
  if (spec.rule() != proto::OptimizerSpec::RULE_UNSPECIFIED) {
    config.kind = static_cast<OptimizerKind>(spec.rule() - kNumberOfFirst<OptimizerKind>);
  }
  SetDefaultsOfRule(config);
  if (spec.state() == proto::OptimizerSpec::LEAN) job.precision.master = MasterWeights::kNone;
}

}  // namespace

Job JobFromSpec(const proto::Job& spec) {
  Job job;
  SetDefaultsOfOptimizer(spec.optimizer(), job);
  MemberReader reader(spec);
  VisitMembers(job, reader);
  // Which moments are lean depends on the rules of groups, too.
  const bool chooses_moments = spec.optimizer().moments() != proto::OptimizerSpec::MOMENTS_UNSPECIFIED;
  if (spec.optimizer().state() == proto::OptimizerSpec::LEAN && !chooses_moments) SetLeanMoments(job.optimizer);
  job.model = ModelFromSpec(spec.model(), spec.batch().sequence_length());
  job.hf_folder = spec.model().hf_folder();
  job.adapter_folder = spec.model().adapter().folder();
  if (job.telemetry.run_folder.empty()) job.telemetry.run_folder = absl::StrCat("runs/", job.name);
  return job;
}

proto::Job SpecOf(const Job& job) {
  proto::Job spec;
  MemberWriter writer(&spec);
  VisitMembers(job, writer);
  std::visit([&](const auto& model) { WriteSpec(model, *spec.mutable_model()); }, job.model);
  if (!job.hf_folder.empty()) spec.mutable_model()->set_hf_folder(job.hf_folder);
  if (!job.adapter_folder.empty()) spec.mutable_model()->mutable_adapter()->set_folder(job.adapter_folder);

  const ActivationCheckpointingConfig& checkpointing = job.activation_checkpointing;
  proto::ActivationCheckpointingSpec& blocks = *spec.mutable_activation_checkpointing();
  if (checkpointing.first_layers != 0 || checkpointing.last_layers != 0) {
    blocks.set_first_layers(checkpointing.first_layers);
    blocks.set_last_layers(checkpointing.last_layers);
  }
  if (checkpointing.segments == Segments::kSqrt) blocks.clear_segment_blocks();
  return spec;
}

void TakeField(absl::string_view path, const Job& other, Job& job) {
  MemberTaker taker(path);
  VisitMembers(job, other, taker);
  SHALE_CHECK(taker.found()) << path;
}

bool HasSetting(const Job& job, const std::string& setting) {
  const proto::Job spec = SpecOf(job);
  proto::Job with = spec;
  SpecErrors errors("");
  ApplyOverrides({&setting, 1}, &with, &errors);
  return google::protobuf::util::MessageDifferencer::Equals(with, spec);
}

std::string ResolvedJobText(const Job& job) {
  proto::Job spec = SpecOf(job);
  ClearWithoutEffect(&spec);
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(spec, &text);
  return kResolvedJobHead + text;
}

}  // namespace shale
