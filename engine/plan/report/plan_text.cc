#include "engine/api/plan_text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/program/graphs.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/step_report.h"
#include "engine/strings/pattern.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Returns ", 6,476,005,376 of them stored in NF4"; empty if all are stored as they are used.
std::string DescribeStorage(const ModelGraph& graph) {
  int64_t count = 0;
  Storage stored = Storage::kAsUsed;
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.storage == Storage::kAsUsed) continue;
    stored = parameter.storage;
    count += parameter.elements();
  }
  return count == 0 ? "" : absl::StrCat(", ", WithCommas(count), " of them stored in ", ToString(stored));
}

std::string DescribeParameters(const ModelGraph& graph) {
  const int64_t all = CountParameters(graph), trained = CountTrainedParameters(graph);
  return absl::StrCat(WithCommas(all), " in ", Plural(static_cast<int64_t>(graph.units.size()), "unit"),
                      trained == all ? ""
                                     : absl::StrCat(", of which ", WithCommas(trained), " (",
                                                    Percent(static_cast<double>(trained), static_cast<double>(all)),
                                                    ") train and the others are frozen", DescribeStorage(graph)));
}

// Returns what to add for matmuls in fp8, or "".
std::string DescribeMatMuls(const Job& job) {
  if (job.precision.matmuls == MatMulPrecision::kAsComputed) return "";
  const bool on_cpu = job.runtime.device == DeviceType::kCpu;
  return absl::StrCat(
      ", fp8 matmuls in blocks with gradients in ",
      job.precision.fp8_gradients == Float8Gradients::kE4M3 ? "e4m3" : "e5m2",
      job.precision.fp8_scaling == Float8Scaling::kBlockwise ? " and blockwise scales" : "",
      on_cpu ? "; a CPU computes them more slowly than without precision.matmuls=FP8, which is for GPUs" : "");
}

std::string DescribePrecision(const Job& job) {
  if (job.precision.compute == ComputePrecision::kFloat32) return "fp32";
  const std::string logits = absl::StrCat(job.precision.fp32_logits ? ", fp32 logits" : "", DescribeMatMuls(job));
  if (job.precision.compute == ComputePrecision::kFloat16) {
    return absl::StrCat("fp16, fp32 masters, dynamic loss scale", logits);
  }
  switch (job.precision.master) {
    case MasterWeights::kFloat32: return absl::StrCat("bf16, fp32 masters", logits);
    case MasterWeights::kSplit: return absl::StrCat("bf16, masters with 16 more bits per weight (SPLIT)", logits);
    case MasterWeights::kNone: return absl::StrCat("bf16, no masters, stochastic rounding", logits);
  }
  return "?";
}

std::string DescribeBatch(const Job& job) {
  const int64_t k = AccumulationSteps(job.batch, job.sharding.ranks);
  std::string text =
      absl::StrCat(Plural(job.batch.global_batch, "sequence"), " of ", Plural(job.batch.sequence_length, "token"),
                   " a step: ", Plural(job.sharding.ranks, "rank"), " x ", Plural(k, "micro-batch"), " x ",
                   Plural(job.batch.micro_batch, "sequence"));
  // The product cannot overflow: engine/plan/config checked it.
  const int64_t masked = job.sharding.ranks * job.batch.micro_batch * k - job.batch.global_batch;
  if (masked > 0) absl::StrAppend(&text, ", of which ", WithCommas(masked), " are masked");
  return text;
}

std::string DescribeSharding(const JobPlan& plan) {
  const StepOptions& o = plan.options;
  std::string text(ToString(o.strategy));
  if (o.mesh.replicate > 1) {
    absl::StrAppend(&text, " in ", WithCommas(o.mesh.replicate), " groups of ", Plural(o.mesh.shard, "rank"),
                    ", which hold copies of the state and sum their gradients once a step");
  }
  if (o.placement().gathers_for_use()) {
    absl::StrAppend(&text, ", ", Plural(o.prefetch, "unit"), " gathered ahead, parameters ",
                    o.reshard_after_forward ? "freed" : "kept", " after forward");
  }
  return text;
}

std::string DescribeCheckpointing(const ActivationOptions& r) {
  std::string text(ToString(r.preset));
  if (r.first_layers + r.last_layers > 0) {
    absl::StrAppend(&text, " for the first ", WithCommas(r.first_layers), " and the last ", WithCommas(r.last_layers),
                    " blocks");
  } else if (r.every_nth > 1) {
    absl::StrAppend(&text, " for every block whose index is a multiple of ", r.every_nth);
  }
  if (r.segment_blocks > 1) absl::StrAppend(&text, ", in segments of ", WithCommas(r.segment_blocks), " blocks");
  if (!r.patterns.empty()) absl::StrAppend(&text, "; also recomputed: ", absl::StrJoin(r.patterns, ", "));
  return text;
}

absl::string_view ClippedTo(Clipping clipping) {
  switch (clipping) {
    case Clipping::kGlobal: return "gradients are clipped to a global norm of ";
    case Clipping::kPerUnit: return "the gradients of each unit are clipped to a norm of ";
    case Clipping::kPreviousNorm: return "gradients are clipped, by the global norm of the step before, to a norm of ";
  }
  return "";
}

// Returns "AdamW, SGD for groups[0]".
std::string DescribeRules(const JobPlan& plan) {
  return absl::StrJoin(OptimizersInUse(plan.train.step.state), ", ", [&](std::string* out, const OptimizerInUse& one) {
    const bool leaves = one.others && !plan.options.OptimizerOf(one.group).others.empty();
    absl::StrAppend(out, EntryOf(one.In(plan.options).kind).description,
                    leaves ? " for all but matrices of blocks" : "",
                    one.group < 0 ? "" : absl::StrCat(leaves ? " in" : " for", " groups[", one.group, "]"));
  });
}

// Returns ", those of groups[0] by themselves to 0.5" for each group with a clipping of its own.
std::string DescribeClippedGroups(const StepOptions& options) {
  std::string text;
  for (size_t i = 0; i < options.optimizer_groups.size(); ++i) {
    const std::optional<double>& norm = options.optimizer_groups[i].max_gradient_norm;
    if (!norm) continue;
    absl::StrAppend(&text, ", those of groups[", i, "] ",
                    *norm == 0 ? "are not" : absl::StrCat("by themselves to ", *norm));
  }
  return text;
}

std::string DescribeOptimizer(const Job& job, const JobPlan& plan) {
  const double norm = job.optimizer.max_gradient_norm;
  const bool in_backward = plan.options.update == UpdateTime::kInBackward;
  return absl::StrCat(
      DescribeRules(plan), "; ",
      norm == 0 ? "gradients are not clipped" : absl::StrCat(ClippedTo(plan.options.clipping), norm),
      DescribeClippedGroups(plan.options), "; ",
      in_backward ? "each unit is updated in backward" : "all units are updated after backward",
      plan.options.updates_on_host() ? ", on the host" : "",
      plan.options.gradient_shards == DType::kBFloat16 ? "; gradients are summed in bf16" : "",
      plan.options.reduce == DType::kBFloat16 && plan.options.mesh.shard > 1 ? "; gradients leave a rank in bf16" : "",
      plan.options.keep_gradients ? "; gradients are kept until the next step" : "");
}

std::string DescribeOffload(const Job& job, const StepProgram& program) {
  const std::string names = absl::StrJoin(job.memory.offload, ", ");
  const OffloadSummary offload = SummarizeOffload(program);
  if (offload.tensors == 0) {
    return absl::StrCat("nothing: no tensor named ", names,
                        " is kept for backward long enough for offload to save memory");
  }
  std::vector<std::string> unmatched;
  for (const std::string& name : job.memory.offload) {
    const bool matches = std::any_of(program.buffers.begin(), program.buffers.end(), [&](const Buffer& buffer) {
      return IsOffloadedActivation(buffer) && MatchesPattern(name, buffer.name);
    });
    if (!matches) unmatched.push_back(name);
  }
  return absl::StrCat(Plural(offload.tensors, "tensor"), " of a micro-batch (", names, "); a step moves ",
                      FormatBytes(offload.offloaded_bytes), " of one rank to host memory and ",
                      FormatBytes(offload.fetched_bytes), " back",
                      unmatched.empty() ? "" : absl::StrCat("; nothing for ", absl::StrJoin(unmatched, ", ")));
}

std::string DescribeStateOffload(const JobPlan& plan) {
  const OffloadSummary offload = SummarizeOffload(plan.train.step.program);
  std::vector<std::string> parts;
  for (int category = 0; category < kBufferCategories; ++category) {
    int64_t bytes = 0;
    for (const Buffer& buffer : plan.train.step.program.buffers) {
      const bool counts = buffer.persistent && buffer.memory == MemoryKind::kHost;
      if (counts && static_cast<int>(buffer.category) == category) bytes += buffer.size_bytes();
    }
    if (bytes == 0) continue;
    parts.push_back(absl::StrCat(FormatBytes(bytes), " of ", ToString(static_cast<BufferCategory>(category))));
  }
  const std::string lies = absl::StrCat(absl::StrJoin(parts, ", "), " in the host memory of a rank (");
  if (plan.options.updates_on_host()) {
    return absl::StrCat(lies, plan.options.offload_state.parameters ? "PARAMETERS, and " : "",
                        "what the update on the host needs); a step moves ", FormatBytes(offload.gradient_bytes),
                        " of gradients there and ", FormatBytes(offload.state_fetched_bytes),
                        " of weights to the arena");
  }
  return absl::StrCat(lies, ToString(plan.options.offload_state), "); a step moves ",
                      FormatBytes(offload.state_fetched_bytes), " of it to the arena and ",
                      FormatBytes(offload.state_returned_bytes), " back");
}

std::string DescribeBudget(const JobPlan& plan) {
  const auto share = [](int64_t bytes, int64_t of, absl::string_view origin) {
    if (of == kNoBudget) return std::string("no limit");
    const std::string from = origin.empty() ? "" : absl::StrCat(" (", origin, ")");
    if (bytes > of) {
      return absl::StrCat(FormatBytes(of), from, ", ", FormatBytes(bytes - of), " too little: the job does not fit");
    }
    return absl::StrCat(FormatBytes(of), ", of which the plan takes ",
                        Percent(static_cast<double>(bytes), static_cast<double>(of)), from);
  };
  const Budget& budget = plan.budget;
  const int64_t offloaded = plan.train.memory.host_bytes;
  return absl::StrCat(share(plan.arena_bytes, budget.bytes, budget.origin),
                      offloaded == 0 ? ""
                                     : absl::StrCat("; for offload to host memory ",
                                                    share(offloaded, budget.host_bytes, budget.host_origin)));
}

std::string DescribeCheckpoints(const Job& job, const JobPlan& plan) {
  const int64_t every = job.checkpoint.every_steps;
  return absl::StrCat(every > 0 ? absl::StrCat("every ", Plural(every, "step"), " and at the end") : "at the end",
                      job.checkpoint.keep_best ? ", and after the best evaluations, " : ", ",
                      FormatBytes(CheckpointBytes(job, plan)), " a rank",
                      !plan.snapshot                       ? ", while training waits"
                      : plan.options.state_on_host().any() ? ", from a copy beside the state while training goes on"
                                                           : ", from a copy in the arena while training goes on");
}

std::string DescribeHostMemory(const Job& job, const JobPlan& plan) {
  const HostMemoryPlan& host = plan.host_memory;
  return absl::StrCat(
      "beside its arena a rank has ", FormatBytes(host.total_bytes()), " (", WithCommas(host.total_bytes()), " bytes",
      job.runtime.device == DeviceType::kCuda ? ", pinned" : "", "): ", FormatBytes(host.staging_bytes),
      " of staging for checkpoints, ", FormatBytes(host.items_bytes), " for inputs and outputs of steps, ",
      FormatBytes(host.transfer_bytes), " for other copies",
      host.offload_bytes == 0 ? "" : absl::StrCat(", ", FormatBytes(host.offload_bytes), " for what is offloaded"),
      job.hf_folder.empty()
          ? ""
          : absl::StrCat("; ", FormatBytes(kHfReadStagingBytes * std::max<int64_t>(1, job.runtime.threads_per_rank)),
                         " more while it reads model.hf_folder"));
}

std::string DescribeCommunication(const CommunicationSummary& c, const Mesh& mesh) {
  if (mesh.ranks() == 1) return "none, on one rank";
  return absl::StrCat("a step: ", Plural(c.gathers, "gather"), " (", FormatBytes(c.gathered_bytes), "), ",
                      Plural(c.reductions, "reduction"), " (", FormatBytes(c.reduced_bytes), "), ",
                      Plural(c.all_reduces, "all-reduce"), " (", FormatBytes(c.all_reduced_bytes), "); one rank sends ",
                      FormatBytes(c.sent_bytes),
                      mesh.replicate > 1 && mesh.shard > 1
                          ? absl::StrCat(", of which ", FormatBytes(c.sent_between_groups_bytes), " between groups")
                          : "");
}

std::string DescribeGraphs(const StepProgram& program) {
  const absl::StatusOr<std::vector<LoopGraphs>> loops = CompileGraphs(program);
  if (!loops.ok()) return std::string(loops.status().message());
  int64_t graphs = 0, launches = 0;
  for (size_t i = 0; i < loops->size(); ++i) {
    graphs += (*loops)[i].graphs();
    launches += program.loops[i].repeat;
  }
  return absl::StrCat(graphs, graphs == 1 ? " graph, " : " graphs, ", Plural(launches, "launch"), " a step");
}

}  // namespace

std::string PlanText(const Job& job, const JobPlan& plan) {
  const StepProgram& program = plan.train.step.program;
  const FlopsSummary flops = SummarizeFlops(program);
  const double per_token = ModelFlopsPerToken(job, plan.train.graph);
  std::vector<std::pair<std::string, std::string>> facts = {
      {"model", Description(job.model)},
      {"parameters", DescribeParameters(plan.train.graph)},
      {"precision", DescribePrecision(job)},
      {"batch", DescribeBatch(job)},
      {"strategy", DescribeSharding(plan)},
      {"accumulation", absl::StrCat(ToString(plan.options.accumulation), ": ", plan.accumulation_reason)},
      {"activations", DescribeCheckpointing(plan.options.activations)},
      {"optimizer", DescribeOptimizer(job, plan)},
      {"memory",
       absl::StrCat(
           "one arena a rank of ", FormatBytes(plan.arena_bytes), " (", WithCommas(plan.arena_bytes),
           " bytes): training uses ", FormatBytes(plan.train.memory.peak_bytes), " of it, evaluation ",
           FormatBytes(plan.evaluate.memory.peak_bytes),
           plan.generate.empty() ? "" : absl::StrCat(", generation ", FormatBytes(plan.generate_peak_bytes())))},
      {"host memory", DescribeHostMemory(job, plan)},
      {"budget", DescribeBudget(plan)},
      {"checkpoints", DescribeCheckpoints(job, plan)},
      {"communication", DescribeCommunication(SummarizeCommunication(program, plan.options.mesh), plan.options.mesh)},
      {"arithmetic", absl::StrCat("a step of one rank: forward ", FormatFlops(flops.forward), ", recomputed ",
                                  FormatFlops(flops.recompute), ", backward ", FormatFlops(flops.backward),
                                  "; MFU counts ", FormatFlops(per_token), " a token",
                                  job.data.packing == Packing::kPack ? " of a sequence that is one document" : "")},
      {"program", absl::StrCat(Plural(static_cast<int64_t>(program.instructions.size()), "instruction"), ", ",
                               Plural(static_cast<int64_t>(program.buffers.size()), "buffer"))},
  };
  if (!job.memory.offload.empty()) {
    const auto activations =
        std::find_if(facts.begin(), facts.end(), [](const auto& fact) { return fact.first == "activations"; });
    facts.insert(activations + 1, {"offload", DescribeOffload(job, program)});
  }
  if (plan.options.state_on_host().any()) {
    const auto memory =
        std::find_if(facts.begin(), facts.end(), [](const auto& fact) { return fact.first == "memory"; });
    facts.insert(memory + 1, {"state", DescribeStateOffload(plan)});
  }
  if (UsesGraphs(job)) facts.push_back({"graphs", DescribeGraphs(program)});
  return absl::StrCat(
      "Plan of ", job.name, "\n", FactsTable(facts), "\n",
      plan.searched.empty() ? "" : absl::StrCat("Decided by a search (runtime.search)\n", plan.searched, "\n"),
      MemoryReport(program, plan.train.memory));
}

std::string ProgramText(const Job& job, const JobPlan& plan) {
  const StepProgram& program = plan.train.step.program;
  std::string text = DumpProgram(program);
  if (!UsesGraphs(job)) return text;
  const absl::StatusOr<std::vector<LoopGraphs>> graphs = CompileGraphs(program);
  return absl::StrCat(text, "\n", graphs.ok() ? DumpGraphs(program, *graphs) : std::string(graphs.status().message()));
}

}  // namespace shale
