#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/compile/step/options.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// A preset, and the number of blocks in a segment.
struct Kind {
  CheckpointingPreset preset = CheckpointingPreset::kNone;
  int64_t segment_blocks = 1;
  bool operator==(const Kind&) const = default;
};

// Returns the kinds to compare, without duplicates: first all presets, NONE at the front. If the chosen blocks can form
// segments, adds NONE in segments of 2; NONE and BLOCK in segments of the sizes that SQRT chooses and that the job has;
// and the job's preset in segments of the job's size.
std::vector<Kind> KindsOf(const ActivationOptions& activations, int64_t layers) {
  std::vector<Kind> kinds;
  const auto add = [&](const Kind& kind) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  };
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kAttention,
        CheckpointingPreset::kFeedForward, CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    add({preset});
  }
  const ChosenBlocks chosen = activations.Chosen(layers);
  if (chosen.LongestRun() < 2) return kinds;
  add({CheckpointingPreset::kNone, 2});
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    add({preset, SqrtSegmentBlocks(chosen)});
    add({preset, activations.segment_blocks});
  }
  add({activations.preset, activations.segment_blocks});
  return kinds;
}

// Returns the settings of a preset for the blocks that the job chooses. NONE takes no choice of blocks.
std::vector<Override> PresetSettings(CheckpointingPreset preset, bool in_segments) {
  const std::string kCheckpointing = "activation_checkpointing.";
  std::vector<Override> settings = {{kCheckpointing + "preset", std::string(ToString(preset))}};
  if (preset != CheckpointingPreset::kNone || in_segments) return settings;
  for (const char* field : {"every_nth", "first_layers", "last_layers"}) {
    settings.push_back({kCheckpointing + field, ""});
  }
  return settings;
}

std::vector<Override> KindSettings(const Kind& kind) {
  std::vector<Override> settings = PresetSettings(kind.preset, kind.segment_blocks > 1);
  settings.push_back({"activation_checkpointing.segments", ""});
  settings.push_back(
      {"activation_checkpointing.segment_blocks", kind.segment_blocks > 1 ? absl::StrCat(kind.segment_blocks) : ""});
  return settings;
}

}  // namespace

SectionText ExplainCheckpointing(const Explained& x) {
  const ActivationOptions& activations = x.plan.options.activations;
  std::vector<ComparedRow> rows;
  for (const Kind& kind : KindsOf(activations, Layers(x.job.model))) {
    rows.push_back({.name = {absl::StrCat(ToString(kind.preset), kind.segment_blocks > 1 ? ", segments of " : "",
                                          kind.segment_blocks > 1 ? WithCommas(kind.segment_blocks) : "")},
                    .overrides = KindSettings(kind),
                    .is_own = kind == Kind{activations.preset, activations.segment_blocks}});
  }
  struct {
    int64_t arena_bytes = 0, activation_bytes = 0, gathers = 0;
  } none;  // Of the first row, which keeps all.
  const auto gathers_of = [](const Draft& draft) {
    return SummarizeCommunication(draft.train.step.program, draft.options.mesh).gathers;
  };
  const auto needs = [&](const Draft& draft) {
    const StepProgram& program = draft.train.step.program;
    if (none.arena_bytes == 0) none = {draft.cost.arena_bytes, MeasureActivations(program), gathers_of(draft)};
    return CostText(draft.cost);
  };
  const auto against = [&](const Draft& draft) { return Difference(draft.cost.arena_bytes, none.arena_bytes); };
  const auto factor = [&](const Draft& draft) {
    return absl::StrFormat("%.3f", static_cast<double>(MeasureActivations(draft.train.step.program)) /
                                       static_cast<double>(none.activation_bytes));
  };
  const auto recomputed = [](const Draft& draft) {
    const FlopsSummary& flops = draft.cost.flops;
    return absl::StrCat(FormatFlops(flops.recompute), " (", Percent(flops.recompute, flops.forward + flops.backward),
                        ")");
  };
  const auto more = [&](const Draft& draft) { return WithCommas(gathers_of(draft) - none.gathers); };
  const FlopsSummary& own = x.own.cost.flops;
  return Section(
      "What each preset of activation checkpointing saves and costs",
      absl::StrCat(
          "Tensors that are not kept are recomputed in backward, from tensors that are kept and with the "
          "same bits. Activations are those that wait for backward, and the inputs of units with their gradients, at "
          "the moment when they are most; x NONE is their factor against NONE. Recomputed is what one rank computes "
          "again in a step, relative to forward and backward (",
          FormatFlops(own.forward + own.backward),
          "). Matmuls and attention count; norms and activation functions only move bytes. In segments "
          "(segment_blocks, or segments: SQRT) only the input of a segment's first block waits for backward; before "
          "that, its blocks but the last run forward again, and sharded parameters are gathered for it once more."),
      CompareTable(x, {"preset"}, rows,
                   {{"needs", needs},
                    {"against NONE", against},
                    Activations(),
                    {"x NONE", factor},
                    {"recomputed", recomputed},
                    {"gathers more", more}}));
}

SectionText ExplainOffload(const Explained& x) {
  if (x.job.runtime.device == DeviceType::kCpu) return "";  // A CPU's arena is in host memory already.
  const ActivationOptions& activations = x.plan.options.activations;
  const bool offloads_all = activations.offload == std::vector<std::string>{"*"};
  std::vector<ComparedRow> rows;
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kCheap,
                                     CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    rows.push_back({.name = {std::string(ToString(preset))},
                    .overrides = PresetSettings(preset, activations.segment_blocks > 1),
                    .is_own = preset == activations.preset && offloads_all});
    rows.back().overrides.push_back({"memory.offload", "[*]"});
  }
  const auto moves = [](const Draft& draft) {
    return FormatBytes(SummarizeOffload(draft.train.step.program).offloaded_bytes);
  };
  return Section("What memory.offload=* would save and move",
                 "The tensors that are kept wait for backward in pinned host memory. A step moves the last "
                 "number of bytes there, and moves back those that backward reads, on a stream of its own beside "
                 "the arithmetic; this costs time if the link to the host takes longer than the arithmetic.",
                 CompareTable(x, {"preset"}, rows,
                              {NeedsInArena(), AgainstThisJob(x), InHostMemory(), {"a step moves there", moves}}));
}

SectionText ExplainStateOffload(const Explained& x) {
  if (x.job.runtime.device == DeviceType::kCpu) return "";  // A CPU's arena is in host memory already.
  const StepOptions& own = x.plan.options;
  const bool has_moments = own.has_states(), gathers = own.strategy == Strategy::kFullShard;
  std::vector<ComparedRow> rows;
  const auto add = [&](const std::string& name, const StateOffload& parts, UpdateDevice device) {
    const std::string list = parts.any() ? absl::StrCat("[", ToString(parts), "]") : "[]";
    rows.push_back({.name = {name.empty() ? ToString(parts) : name},
                    .overrides = {{"memory.offload_state", list},
                                  {"optimizer.device", device == UpdateDevice::kHost ? "HOST" : "SAME"}},
                    .is_own = parts == own.offload_state && device == own.update_device});
  };
  StateOffload parts;
  for (const auto& [exists, part] : {std::pair{has_moments, &StateOffload::moments},
                                     {x.job.precision.has_masters(), &StateOffload::masters},
                                     {gathers, &StateOffload::parameters}}) {
    if (!exists) continue;
    parts.*part = true;
    add("", parts, UpdateDevice::kSame);
  }
  if (x.drafter.OpsOf(x.job.sharding.ranks).host() != nullptr) {
    add("update on the HOST", {}, UpdateDevice::kHost);
    if (gathers) add("the same, PARAMETERS", {.parameters = true}, UpdateDevice::kHost);
  }
  if (rows.empty()) return "";
  const auto moves = [](const Draft& draft) {
    const OffloadSummary s = SummarizeOffload(draft.train.step.program);
    return FormatBytes(s.state_fetched_bytes + s.state_returned_bytes + s.gradient_bytes);
  };
  return Section(
      "What memory.offload_state and optimizer.device=HOST would save and move",
      "The named parts of the state lie in pinned host memory. The arena holds the moments and masters of two "
      "units at most: while one is updated, those of the next are copied in and those of the one before are "
      "copied back. PARAMETERS are copied in before each gather too. A step moves the last number of bytes, "
      "both ways together; this costs time if the link to the host takes longer than the arithmetic. With "
      "optimizer.device=HOST the moments and masters never leave host memory: gradients go there, weights come "
      "back, and the CPUs update, which costs the time that they need to read and write the state.",
      CompareTable(x, {"parts"}, rows, {NeedsInArena(), AgainstThisJob(x), InHostMemory(), {"a step moves", moves}}));
}

}  // namespace shale
