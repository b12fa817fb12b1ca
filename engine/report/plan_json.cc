#include "engine/report/plan_json.h"

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/planner/summary.h"
#include "engine/program/lifetimes.h"
#include "engine/program/operands.h"
#include "engine/report/timeline.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(absl::string_view text) { return std::string(text); }

Json OrNull(absl::string_view text) { return text.empty() ? Json() : Json(Text(text)); }
Json LimitOrNull(int64_t bytes) { return bytes == kNoBudget ? Json() : Json(bytes); }
Json IdOrNull(int32_t id) { return id < 0 ? Json() : Json(id); }

// Returns the key of a category: "optimizer_state".
std::string Key(BufferCategory category) { return absl::StrReplaceAll(ToString(category), {{" ", "_"}}); }

Json CategoriesJson(const std::array<int64_t, kBufferCategories>& bytes) {
  Json json = Json::object();
  for (int c = 0; c < kBufferCategories; ++c) {
    if (bytes[c] > 0) json[Key(static_cast<BufferCategory>(c))] = bytes[c];
  }
  return json;
}

Json ModelJson(const Job& job, const ModelGraph& graph) {
  Json units = Json::array();
  for (const UnitGraph& unit : graph.units) units.push_back(unit.name);
  return {{"description", Description(job.model)}, {"parameters", CountParameters(graph)}, {"units", std::move(units)}};
}

Json BatchJson(const Job& job, const JobPlan& plan) {
  return {{"global_batch", job.batch.global_batch},
          {"micro_batch", job.batch.micro_batch},
          {"sequence_length", job.batch.sequence_length},
          {"micro_batches", plan.options.micro_batches},
          {"loss_chunk_tokens", LossChunkTokens(job)}};
}

Json OptionsJson(const Job& job, const JobPlan& plan) {
  const StepOptions& o = plan.options;
  return {{"ranks", o.mesh.ranks()},
          {"shard_ranks", o.mesh.shard},
          {"strategy", Text(ToString(o.strategy))},
          {"accumulation", Text(ToString(o.accumulation))},
          {"accumulation_reason", plan.accumulation_reason},
          {"prefetch", o.prefetch},
          {"reshard_after_forward", o.reshard_after_forward},
          {"packs_once", o.packs_once},
          {"compute", job.precision.compute == ComputePrecision::kBFloat16 ? "BF16" : "FP32"},
          {"master", Text(ToString(o.master))},
          {"gradient_shards", o.gradient_shards == DType::kBFloat16 ? "BF16" : "FP32"},
          {"optimizer", Text(EntryOf(o.optimizer.kind).name)},
          {"clipping", Text(ToString(o.clipping))},
          {"update", Text(ToString(o.update))},
          {"keep_gradients", o.keep_gradients},
          {"asynchronous_checkpoints", o.snapshot},
          {"activation_checkpointing",
           {{"preset", Text(ToString(o.activations.preset))},
            {"every_nth", o.activations.every_nth},
            {"first_layers", o.activations.first_layers},
            {"last_layers", o.activations.last_layers},
            {"segment_blocks", o.activations.segment_blocks},
            {"recompute", o.activations.patterns}}},
          {"offload", o.activations.offload},
          {"offload_state", ToString(o.offload_state)},
          {"update_device", Text(ToString(o.update_device))}};
}

Json MemoryJson(const JobPlan& plan) {
  const MemoryPlan& train = plan.train.memory;
  return {{"arena_bytes", plan.arena_bytes},
          {"persistent_bytes", train.persistent_bytes},
          {"persistent_host_bytes", train.persistent_host_bytes},
          {"peak_bytes", train.peak_bytes},
          {"lower_bound_bytes", train.lower_bound_bytes},
          {"evaluate_peak_bytes", plan.evaluate.memory.peak_bytes},
          {"generate_peak_bytes", plan.generate ? Json(plan.generate->memory.peak_bytes) : Json()},
          {"at_peak", {{"instruction", train.peak_instruction}, {"categories", CategoriesJson(train.bytes_at_peak)}}}};
}

Json HostMemoryJson(const HostMemoryPlan& host) {
  return {{"total_bytes", host.total_bytes()},
          {"staging_bytes", host.staging_bytes},
          {"items_bytes", host.items_bytes},
          {"transfer_bytes", host.transfer_bytes},
          {"offload_bytes", host.offload_bytes}};
}

Json BudgetJson(const Budget& budget) {
  return {{"bytes", LimitOrNull(budget.bytes)},
          {"origin", OrNull(budget.origin)},
          {"host_bytes", LimitOrNull(budget.host_bytes)},
          {"host_origin", OrNull(budget.host_origin)}};
}

Json TimelineJson(const StepProgram& program) {
  Json json = Json::array();
  for (const Moment& moment : TimelineOf(program)) {
    json.push_back({{"moment", moment.name},
                    {"bytes", moment.live.total},
                    {"instruction", IdOrNull(moment.instruction)},
                    {"categories", CategoriesJson(moment.live.by_category)}});
  }
  return json;
}

Json CommunicationJson(const CommunicationSummary& c) {
  return {{"gathers", c.gathers},         {"gathered_bytes", c.gathered_bytes},
          {"reductions", c.reductions},   {"reduced_bytes", c.reduced_bytes},
          {"all_reduces", c.all_reduces}, {"all_reduced_bytes", c.all_reduced_bytes},
          {"sent_bytes", c.sent_bytes},   {"sent_between_groups_bytes", c.sent_between_groups_bytes}};
}

Json OffloadJson(const OffloadSummary& offload) {
  return {{"tensors", offload.tensors},
          {"offloaded_bytes", offload.offloaded_bytes},
          {"fetched_bytes", offload.fetched_bytes},
          {"state_fetched_bytes", offload.state_fetched_bytes},
          {"state_returned_bytes", offload.state_returned_bytes}};
}

Json FlopsJson(const Job& job, const PlannedProgram& train) {
  const FlopsSummary flops = SummarizeFlops(train.step.program);
  return {{"forward", flops.forward},
          {"recompute", flops.recompute},
          {"backward", flops.backward},
          {"model_per_token", ModelFlopsPerToken(job, train.graph)}};
}

Json CandidatesJson(const JobPlan& plan) {
  Json json = Json::array();
  for (const AccumulationCandidate& c : plan.candidates) {
    const bool ok = c.status.ok();
    const auto if_ok = [&](auto value) { return ok ? Json(value) : Json(); };
    json.push_back({{"accumulation", Text(ToString(c.accumulation))},
                    {"chosen", c.accumulation == plan.options.accumulation},
                    {"error", OrNull(c.status.message())},
                    {"fits", if_ok(plan.budget.Holds(c.peak_bytes, c.host_bytes))},
                    {"arena_bytes", if_ok(c.peak_bytes)},
                    {"host_bytes", if_ok(c.host_bytes)},
                    {"sent_bytes", if_ok(c.communicated_bytes)}});
  }
  return json;
}

Json BuffersJson(const StepProgram& program, const MemoryPlan& memory) {
  const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  Json json = Json::array();
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    const bool host = buffer.memory == MemoryKind::kHost, used = lifetimes[b].used();
    json.push_back(
        {{"name", buffer.name},
         {"category", Key(buffer.category)},
         {"memory", host ? "host" : "arena"},
         {"bytes", buffer.size_bytes()},
         {"slots", buffer.slots},
         {"address", used || buffer.persistent ? Json(memory.addresses[b] - (host ? kHostMemoryBegin : 0)) : Json()},
         {"persistent", buffer.persistent},
         {"first", used ? Json(lifetimes[b].first) : Json()},
         {"last", used ? Json(lifetimes[b].last) : Json()}});
  }
  return json;
}

Json LoopsJson(const StepProgram& program) {
  Json json = Json::array();
  for (const Loop& loop : program.loops) {
    json.push_back({{"begin", loop.begin}, {"end", loop.end}, {"repeat", loop.repeat}});
  }
  return json;
}

absl::string_view AccessName(Access access) {
  switch (access) {
    case Access::kRead: return "read";
    case Access::kWrite: return "write";
    case Access::kReadWrite: return "update";
  }
  return "?";
}

Json InstructionsJson(const StepProgram& program) {
  Json json = Json::array();
  for (const Instruction& instruction : program.instructions) {
    Json operands = Json::array();
    VisitInstruction(
        instruction, /*first_iteration=*/false, [&](absl::string_view name, const Tensor& t, Access access) {
          operands.push_back({{"name", Text(name)}, {"buffer", t.where.symbol}, {"access", Text(AccessName(access))}});
        });
    json.push_back({{"name", NameOf(instruction)},
                    {"stream", Text(ToString(instruction.stream))},
                    {"phase", Text(ToString(instruction.phase))},
                    {"unit", instruction.unit < 0 ? Json() : Json(program.units[instruction.unit])},
                    {"micro_batch", IdOrNull(instruction.micro_batch)},
                    {"last_iteration_only", instruction.last_iteration_only},
                    {"operands", std::move(operands)},
                    {"waits", instruction.waits}});
  }
  return json;
}

}  // namespace

std::string PlanJson(const Job& job, const JobPlan& plan, bool instructions) {
  const StepProgram& program = plan.train.step.program;
  Json json = {{"version", 1},
               {"name", job.name},
               {"model", ModelJson(job, plan.train.graph)},
               {"batch", BatchJson(job, plan)},
               {"options", OptionsJson(job, plan)},
               {"memory", MemoryJson(plan)},
               {"host_memory", HostMemoryJson(plan.host_memory)},
               {"budget", BudgetJson(plan.budget)},
               {"timeline", TimelineJson(program)},
               {"communication", CommunicationJson(SummarizeCommunication(program, plan.options.mesh))},
               {"offload", OffloadJson(SummarizeOffload(program))},
               {"flops", FlopsJson(job, plan.train)},
               {"candidates", CandidatesJson(plan)},
               {"buffers", BuffersJson(program, plan.train.memory)},
               {"loops", LoopsJson(program)}};
  if (instructions) json["instructions"] = InstructionsJson(program);
  // Replaces bytes that are not UTF-8. By default dump() would throw.
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shale
