// The message of a plan, and its JSON.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/api/plan_text.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/step_report.h"
#include "engine/plan/search/search.h"
#include "engine/plan/time/prediction.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"
#include "proto/plan.pb.h"

namespace shale {
namespace {

constexpr int32_t kVersion = 1;

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Categories = google::protobuf::Map<std::string, int64_t>;
using Json = nlohmann::ordered_json;

std::string Text(absl::string_view text) { return std::string(text); }

// Returns the key of a category: "optimizer_state".
std::string Key(BufferCategory category) { return absl::StrReplaceAll(ToString(category), {{" ", "_"}}); }

void Fill(const std::array<int64_t, kBufferCategories>& from, Categories& to) {
  for (int c = 0; c < kBufferCategories; ++c) {
    if (from[c] > 0) to[Key(static_cast<BufferCategory>(c))] = from[c];
  }
}

void Fill(const JobError& from, proto::JobError& to) {
  to.set_source(from.source);
  if (from.line > 0) to.set_line(from.line);
  if (from.line > 0) to.set_column(from.column);
  if (!from.path.empty()) to.set_path(from.path);
  to.set_message(from.message);
}

void Fill(const Budget& from, proto::PlannedBudget& to) {
  if (from.bytes != kNoBudget) to.set_bytes(from.bytes);
  if (!from.origin.empty()) to.set_origin(from.origin);
  if (from.host_bytes != kNoBudget) to.set_host_bytes(from.host_bytes);
  if (!from.host_origin.empty()) to.set_host_origin(from.host_origin);
}

void Fill(const Override& from, proto::Override& to) {
  to.set_path(from.path);
  to.set_value(from.value);
}

void Fill(const Variant& from, proto::Variant& to) {
  for (const Override& change : from.overrides) Fill(change, *to.add_overrides());
  to.set_arena_bytes(from.cost.arena_bytes);
  to.set_host_bytes(from.cost.host_bytes);
  to.set_recompute_flops(from.cost.flops.recompute);
  to.set_caveat(from.caveat);
  if (from.cost.seconds > 0) to.set_seconds(from.cost.seconds);
}

void Fill(const Refusal& from, proto::Refusal& to) {
  if (from.cost.arena_bytes > 0) to.set_arena_bytes(from.cost.arena_bytes);
  if (from.cost.arena_bytes > 0) to.set_host_bytes(from.cost.host_bytes);
  if (from.cost.covered()) to.set_seconds(from.cost.seconds);
  Fill(from.budget, *to.mutable_budget());
  // Programs get no estimates of seconds that look like predictions.
  const auto fill = [](const Variant& variant, proto::Variant& message) {
    Fill(variant, message);
    if (!variant.cost.covered()) message.clear_seconds();
  };
  for (const Variant& way : from.ways_out) fill(way, *to.add_ways_out());
  to.set_only_together(from.only_together);
  if (from.nearest) fill(*from.nearest, *to.mutable_nearest());
  to.set_search_ended_early(from.search_ended_early);
}

void Fill(const Job& job, const ModelGraph& graph, proto::PlannedModel& to) {
  to.set_description(Description(job.model));
  to.set_parameters(CountParameters(graph));
  to.set_trained_parameters(CountTrainedParameters(graph));
  for (const UnitGraph& unit : graph.units) to.add_units(unit.name);
}

void Fill(const Job& job, const JobPlan& plan, proto::PlannedBatch& to) {
  to.set_global_batch(job.batch.global_batch);
  to.set_micro_batch(job.batch.micro_batch);
  to.set_sequence_length(job.batch.sequence_length);
  to.set_micro_batches(plan.options.micro_batches);
  to.set_loss_chunk_tokens(LossChunkTokens(job));
}

void Fill(const ActivationOptions& from, proto::PlannedCheckpointing& to) {
  to.set_preset(Text(ToString(from.preset)));
  to.set_every_nth(from.every_nth);
  to.set_first_layers(from.first_layers);
  to.set_last_layers(from.last_layers);
  to.set_segment_blocks(from.segment_blocks);
  to.mutable_recompute()->Add(from.patterns.begin(), from.patterns.end());
}

void Fill(const Job& job, const JobPlan& plan, proto::PlannedOptions& to) {
  const StepOptions& o = plan.options;
  to.set_ranks(o.mesh.ranks());
  to.set_shard_ranks(o.mesh.shard);
  to.set_strategy(Text(ToString(o.strategy)));
  to.set_accumulation(Text(ToString(o.accumulation)));
  to.set_accumulation_reason(plan.accumulation_reason);
  to.set_searched(plan.searched);
  to.set_prefetch(o.prefetch);
  to.set_reshard_after_forward(o.reshard_after_forward);
  to.set_prepares_weights_once(o.prepares_weights_once);
  to.set_compute(job.precision.compute == ComputePrecision::kBFloat16  ? "BF16"
                 : job.precision.compute == ComputePrecision::kFloat16 ? "FP16"
                                                                       : "FP32");
  to.set_master(Text(ToString(o.master)));
  if (job.precision.matmuls == MatMulPrecision::kFloat8) to.set_matmuls("FP8");
  if (job.precision.fp8_scaling == Float8Scaling::kBlockwise) to.set_fp8_scaling("BLOCKWISE");
  to.set_gradient_shards(o.gradient_shards == DType::kBFloat16 ? "BF16" : "FP32");
  if (o.reduce == DType::kBFloat16) to.set_reduce("BF16");
  to.set_optimizer(Text(EntryOf(o.optimizer.kind).name));
  to.set_clipping(Text(ToString(o.clipping)));
  to.set_update(Text(ToString(o.update)));
  to.set_keep_gradients(o.keep_gradients);
  to.set_asynchronous_checkpoints(o.snapshot);
  Fill(o.activations, *to.mutable_activation_checkpointing());
  to.mutable_offload()->Add(o.activations.offload.begin(), o.activations.offload.end());
  to.set_offload_state(ToString(o.offload_state));
  to.set_update_device(Text(ToString(o.update_device)));
  to.set_device(job.runtime.device == DeviceType::kCpu ? "CPU" : "CUDA");
  to.set_threads_per_rank(job.runtime.threads_per_rank);
  for (const Optimizer& group : o.optimizer_groups) to.add_optimizer_groups(Text(EntryOf(group.kind).name));
}

void Fill(const JobPlan& plan, proto::PlannedMemory& to) {
  const MemoryPlan& train = plan.train.memory;
  to.set_arena_bytes(plan.arena_bytes);
  to.set_persistent_bytes(train.persistent_bytes);
  to.set_persistent_host_bytes(train.persistent_host_bytes);
  to.set_peak_bytes(train.peak_bytes);
  to.set_lower_bound_bytes(train.lower_bound_bytes);
  to.set_evaluate_peak_bytes(plan.evaluate.memory.peak_bytes);
  if (!plan.generate.empty()) to.set_generate_peak_bytes(plan.generate_peak_bytes());
  to.mutable_at_peak()->set_instruction(train.peak_instruction);
  Fill(train.bytes_at_peak, *to.mutable_at_peak()->mutable_categories());
}

void Fill(const HostMemoryPlan& from, proto::PlannedHostMemory& to) {
  to.set_total_bytes(from.total_bytes());
  to.set_staging_bytes(from.staging_bytes);
  to.set_items_bytes(from.items_bytes);
  to.set_transfer_bytes(from.transfer_bytes);
  to.set_offload_bytes(from.offload_bytes);
}

void Fill(const Moment& from, proto::MemoryMoment& to) {
  to.set_moment(from.name);
  to.set_bytes(from.live.total);
  if (from.instruction >= 0) to.set_instruction(from.instruction);
  Fill(from.live.by_category, *to.mutable_categories());
}

void Fill(const CommunicationSummary& from, proto::PlannedCommunication& to) {
  to.set_gathers(from.gathers);
  to.set_gathered_bytes(from.gathered_bytes);
  to.set_reductions(from.reductions);
  to.set_reduced_bytes(from.reduced_bytes);
  to.set_all_reduces(from.all_reduces);
  to.set_all_reduced_bytes(from.all_reduced_bytes);
  to.set_sent_bytes(from.sent_bytes);
  to.set_sent_between_groups_bytes(from.sent_between_groups_bytes);
}

void Fill(const OffloadSummary& from, proto::PlannedOffload& to) {
  to.set_tensors(from.tensors);
  to.set_offloaded_bytes(from.offloaded_bytes);
  to.set_fetched_bytes(from.fetched_bytes);
  to.set_state_fetched_bytes(from.state_fetched_bytes);
  to.set_state_returned_bytes(from.state_returned_bytes);
  to.set_gradient_bytes(from.gradient_bytes);
}

void Fill(const Job& job, const PlannedProgram& train, proto::PlannedFlops& to) {
  const FlopsSummary flops = SummarizeFlops(train.step.program);
  to.set_forward(flops.forward);
  to.set_recompute(flops.recompute);
  to.set_backward(flops.backward);
  to.set_model_per_token(ModelFlopsPerToken(job, train.graph));
}

void Fill(const Variant& from, const JobPlan& plan, proto::PlannedCandidate& to) {
  to.set_accumulation(Text(ToString(from.accumulation)));
  to.set_chosen(from.accumulation == plan.options.accumulation);
  if (!from.status.ok()) {
    to.set_error(Text(from.status.message()));
    return;
  }
  to.set_fits(from.fits);
  to.set_arena_bytes(from.cost.arena_bytes);
  to.set_host_bytes(from.cost.host_bytes);
  to.set_sent_bytes(from.cost.sent_bytes);
}

void FillBuffers(const StepProgram& program, const MemoryPlan& memory, proto::Plan& to) {
  const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    const bool host = buffer.memory == MemoryKind::kHost, used = lifetimes[b].used();
    proto::PlannedBuffer& added = *to.add_buffers();
    added.set_name(buffer.name);
    added.set_category(Key(buffer.category));
    added.set_memory(host ? "host" : "arena");
    added.set_bytes(buffer.size_bytes());
    added.set_slots(buffer.slots);
    if (used || buffer.persistent) added.set_address(memory.addresses[b] - (host ? kHostMemoryBegin : 0));
    added.set_persistent(buffer.persistent);
    if (used) added.set_first(lifetimes[b].first);
    if (used) added.set_last(lifetimes[b].last);
  }
  for (const Loop& loop : program.loops) {
    proto::PlannedLoop& added = *to.add_loops();
    added.set_begin(loop.begin);
    added.set_end(loop.end);
    added.set_repeat(loop.repeat);
  }
}

absl::string_view AccessName(Access access) {
  switch (access) {
    case Access::kRead: return "read";
    case Access::kWrite: return "write";
    case Access::kReadWrite: return "update";
  }
  return "?";
}

void Fill(const StepProgram& program, const Instruction& from, proto::PlannedInstruction& to) {
  to.set_name(NameOf(from));
  to.set_stream(Text(ToString(from.stream)));
  to.set_phase(Text(ToString(from.phase)));
  if (from.unit >= 0) to.set_unit(program.units[from.unit]);
  if (from.micro_batch >= 0) to.set_micro_batch(from.micro_batch);
  to.set_last_iteration_only(from.last_iteration_only);
  VisitInstruction(from, /*first_iteration=*/false, [&](absl::string_view name, const Tensor& t, Access access) {
    proto::PlannedOperand& operand = *to.add_operands();
    operand.set_name(Text(name));
    operand.set_buffer(t.where.symbol);
    operand.set_access(Text(AccessName(access)));
  });
  to.mutable_waits()->Add(from.waits.begin(), from.waits.end());
}

void Fill(const Job& job, const JobPlan& plan, PlanDetail detail, proto::Plan& to) {
  const StepProgram& program = plan.train.step.program;
  to.set_name(job.name);
  Fill(job, plan.train.graph, *to.mutable_model());
  Fill(job, plan, *to.mutable_batch());
  Fill(job, plan, *to.mutable_options());
  Fill(plan, *to.mutable_memory());
  Fill(plan.host_memory, *to.mutable_host_memory());
  Fill(plan.budget, *to.mutable_budget());
  for (const Moment& moment : TimelineOf(program)) Fill(moment, *to.add_timeline());
  Fill(SummarizeCommunication(program, plan.options.mesh), *to.mutable_communication());
  Fill(SummarizeOffload(program), *to.mutable_offload());
  Fill(job, plan.train, *to.mutable_flops());
  for (const Variant& c : plan.candidates) Fill(c, plan, *to.add_candidates());
  if (detail >= PlanDetail::kBuffers) FillBuffers(program, plan.train.memory, to);
  if (detail < PlanDetail::kInstructions) return;
  for (const Instruction& instruction : program.instructions) Fill(program, instruction, *to.add_instructions());
}

void Fill(const Prediction& from, proto::PlannedSeconds& to) {
  to.set_machine(from.machine);
  to.set_step(from.step_seconds);
  to.set_step_low(from.low_seconds);
  to.set_step_high(from.high_seconds);
  to.set_tokens_per_second(from.tokens_per_second);
  if (from.mfu > 0) to.set_mfu(from.mfu);
  const auto add = [](absl::string_view name, double value, proto::NamedNumber& added) {
    added.set_name(Text(name));
    added.set_value(value);
  };
  for (int i = 0; i < kKnowledges; ++i) add(ToString(static_cast<Knowledge>(i)), from.known[i], *to.add_known());
  for (int i = 0; i < kLimits; ++i) add(ToString(static_cast<Limit>(i)), from.limits[i], *to.add_limits());
  for (int i = 0; i < kStreams; ++i) add(ToString(static_cast<StreamId>(i)), from.busy_seconds[i], *to.add_busy());
  for (const PathPart& part : from.path) {
    proto::PlannedPathPart& added = *to.add_path();
    if (!part.unit.empty()) added.set_unit(part.unit);
    added.set_name(part.name);
    added.set_seconds(part.seconds);
  }
}

void Fill(const SearchResult& from, proto::PlannedSearch& to) {
  Fill(from.best, *to.mutable_best());
  if (from.own.status.ok()) Fill(from.own, *to.mutable_own());
  for (const SearchChoice& choice : from.choices) {
    proto::SearchChoice& added = *to.add_choices();
    added.set_path(choice.path);
    for (const Override& change : choice.taken) Fill(change, *added.add_taken());
    if (choice.runner_up) Fill(*choice.runner_up, *added.mutable_runner_up());
  }
  for (const Variant& way : from.front) Fill(way, *to.add_front());
  for (const Variant& way : from.changing) Fill(way, *to.add_changing());
  to.set_plans(from.plans);
  to.set_ended_early(from.ended_early);
}

proto::Plan::Verdict VerdictOf(Admission::Verdict verdict) {
  switch (verdict) {
    case Admission::Verdict::kFits: return proto::Plan::FITS;
    case Admission::Verdict::kDoesNotFit: return proto::Plan::DOES_NOT_FIT;
    case Admission::Verdict::kInvalid: return proto::Plan::INVALID;
  }
  return proto::Plan::VERDICT_UNSPECIFIED;
}

// Returns the same bytes for equal messages, which have maps.
std::string SerializedPlan(const proto::Plan& plan) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    plan.SerializeToCodedStream(&coded);
  }
  return bytes;
}

proto::Plan PlanProto(const Admission& admission, PlanDetail detail, const PlanSeconds& seconds) {
  proto::Plan plan;
  plan.set_version(kVersion);
  plan.set_verdict(VerdictOf(admission.verdict));
  plan.set_text(admission.text);
  for (const JobError& error : admission.errors) Fill(error, *plan.add_errors());
  if (admission.refusal) Fill(*admission.refusal, *plan.mutable_refusal());
  for (const std::string& remark : admission.remarks) plan.add_remarks(remark);
  if (admission.resolved) Fill(admission.resolved->job, admission.resolved->plan, detail, plan);
  if (seconds.step != nullptr) Fill(*seconds.step, *plan.mutable_seconds());
  if (seconds.search != nullptr) Fill(*seconds.search, *plan.mutable_search());
  return plan;
}

proto::Plan PlanProto(const Job& job, const JobPlan& plan, PlanDetail detail) {
  proto::Plan message;
  message.set_version(kVersion);
  message.set_verdict(proto::Plan::FITS);
  message.set_text(AdmittedText(plan));
  Fill(job, plan, detail, message);
  return message;
}

Json ToJson(const Message& message);

Json SingleJson(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return values.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64: return values.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return values.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL: return values.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM: return values.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING: return values.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE: return ToJson(values.GetMessage(message, &field));
    default: SHALE_CHECK(false) << field.full_name() << " has a type that plan.proto does not use";
  }
  return {};
}

// Returns the object of a map from strings to int64, ordered by key.
Json MapJson(const Message& message, const FieldDescriptor& field) {
  std::map<std::string, int64_t> entries;
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < values.FieldSize(message, &field); ++i) {
    const Message& entry = values.GetRepeatedMessage(message, &field, i);
    const google::protobuf::Descriptor& type = *entry.GetDescriptor();
    entries[entry.GetReflection()->GetString(entry, type.map_key())] =
        entry.GetReflection()->GetInt64(entry, type.map_value());
  }
  Json json = Json::object();
  for (const auto& [key, value] : entries) json[key] = value;
  return json;
}

Json ListJson(const Message& message, const FieldDescriptor& field) {
  Json json = Json::array();
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < values.FieldSize(message, &field); ++i) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: json.push_back(values.GetRepeatedInt32(message, &field, i)); break;
      case FieldDescriptor::CPPTYPE_STRING: json.push_back(values.GetRepeatedString(message, &field, i)); break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        json.push_back(ToJson(values.GetRepeatedMessage(message, &field, i)));
        break;
      default: SHALE_CHECK(false) << field.full_name() << " has a type that plan.proto does not use";
    }
  }
  return json;
}

Json ToJson(const Message& message) {
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    Json& value = json[field.name()];
    if (field.is_map()) {
      value = MapJson(message, field);
    } else if (field.is_repeated()) {
      value = ListJson(message, field);
    } else if (!field.has_presence() || message.GetReflection()->HasField(message, &field)) {
      value = SingleJson(message, field);
    }
  }
  return json;
}

std::string JsonText(const proto::Plan& plan, PlanDetail detail) {
  Json json = ToJson(plan);
  if (detail < PlanDetail::kBuffers) {
    json.erase("buffers");
    json.erase("loops");
  }
  if (detail < PlanDetail::kInstructions) json.erase("instructions");
  // Replaces bytes that are not UTF-8. By default dump() would throw.
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string PlanMessage(const Admission& admission, PlanDetail detail, const PlanSeconds& seconds) {
  return SerializedPlan(PlanProto(admission, detail, seconds));
}

std::string PlanMessage(const Job& job, const JobPlan& plan, PlanDetail detail) {
  return SerializedPlan(PlanProto(job, plan, detail));
}

std::string PlanJson(const Admission& admission, PlanDetail detail, const PlanSeconds& seconds) {
  return JsonText(PlanProto(admission, detail, seconds), detail);
}

std::string PlanJson(const Job& job, const JobPlan& plan, PlanDetail detail) {
  return JsonText(PlanProto(job, plan, detail), detail);
}

}  // namespace shale
