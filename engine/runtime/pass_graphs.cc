#include "engine/runtime/pass_graphs.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr StreamId kOrigin = StreamId::kCompute;

// One capture: a pass of a section. Made before the capture begins and destroyed after it, for its events.
class PassCapture {
 public:
  static absl::StatusOr<PassCapture> Create(const Section& section, int64_t pass, const BoundProgram& bound,
                                            RankRuntime& runtime) {
    PassCapture capture(section, pass, bound, runtime);
    SHALE_ASSIGN_OR_RETURN(capture.begun_, runtime.device().CreateEvent());
    for (InstructionId id = section.begin; id < section.end; ++id) {
      if (!capture.Issued(id)) continue;
      if (const int s = static_cast<int>(bound[id].stream); capture.ended_[s] == nullptr) {
        SHALE_ASSIGN_OR_RETURN(capture.ended_[s], runtime.device().CreateEvent());
      }
      for (InstructionId wait : bound[id].waits) {
        if (!capture.Before(id, wait) || capture.finished(wait) != nullptr) continue;
        SHALE_ASSIGN_OR_RETURN(capture.finished(wait), runtime.device().CreateEvent());
      }
    }
    return capture;
  }

  bool Issued(InstructionId id) const { return !bound_[id].last_pass_only || pass_ + 1 == section_.repeat; }
  // Whether what `id` waits for comes before it in this pass. Else it belongs to an earlier launch, which has finished.
  bool Before(InstructionId id, InstructionId awaited) const {
    return awaited >= section_.begin && awaited < id && Issued(awaited);
  }

  // Calls enqueue(id) for each instruction, between what orders the streams.
  template <class EnqueueInstruction>
  absl::Status Run(EnqueueInstruction&& enqueue) {
    Stream& origin = runtime_.stream(kOrigin);
    SHALE_RETURN_IF_ERROR(origin.Record(*begun_));
    std::array<bool, kStreams> joined = {};
    joined[static_cast<int>(kOrigin)] = true;
    for (InstructionId id = section_.begin; id < section_.end; ++id) {
      if (!Issued(id)) continue;
      Stream& stream = runtime_.stream(bound_[id].stream);
      if (bool& here = joined[static_cast<int>(bound_[id].stream)]; !here) {
        SHALE_RETURN_IF_ERROR(stream.Wait(*begun_));
        here = true;
      }
      for (InstructionId wait : bound_[id].waits) {
        if (Before(id, wait)) SHALE_RETURN_IF_ERROR(stream.Wait(*finished(wait)));
      }
      SHALE_RETURN_IF_ERROR(enqueue(id));
      if (finished(id) != nullptr) SHALE_RETURN_IF_ERROR(stream.Record(*finished(id)));
    }
    for (int s = 0; s < kStreams; ++s) {
      if (!joined[s] || s == static_cast<int>(kOrigin)) continue;
      SHALE_RETURN_IF_ERROR(runtime_.stream(static_cast<StreamId>(s)).Record(*ended_[s]));
      SHALE_RETURN_IF_ERROR(origin.Wait(*ended_[s]));
    }
    return absl::OkStatus();
  }

 private:
  PassCapture(const Section& section, int64_t pass, const BoundProgram& bound, RankRuntime& runtime)
      : section_(section), pass_(pass), bound_(bound), runtime_(runtime), finished_(section.end - section.begin) {}
  std::unique_ptr<Event>& finished(InstructionId id) { return finished_[id - section_.begin]; }

  const Section& section_;
  const int64_t pass_;
  const BoundProgram& bound_;
  RankRuntime& runtime_;
  std::unique_ptr<Event> begun_;
  std::array<std::unique_ptr<Event>, kStreams> ended_;
  std::vector<std::unique_ptr<Event>> finished_;  // By instruction of the section; null: none of the pass waits for it.
};

}  // namespace

absl::StatusOr<std::unique_ptr<PassGraphs>> PassGraphs::Create(const StepProgram& program, const BoundProgram& bound,
                                                               const HostItems& host_items, RankRuntime& runtime) {
  if (!runtime.device().CanCapture()) {
    return absl::FailedPreconditionError(
        "runtime.graphs wants a device that can capture work as graphs: a GPU that is not synchronous; set "
        "runtime.graphs=false or runtime.device=CUDA");
  }
  for (const Instruction& instruction : program.instructions) {
    if (!std::holds_alternative<Collective>(instruction.action)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "runtime.graphs wants one rank, found ", NameOf(instruction),
        " between several: ranks that are threads of one process cannot capture their collectives apart; set "
        "runtime.graphs=false"));
  }
  return std::unique_ptr<PassGraphs>(new PassGraphs(program, bound, host_items, runtime));
}

PassGraphs::PassGraphs(const StepProgram& program, const BoundProgram& bound, const HostItems& host_items,
                       RankRuntime& runtime)
    : program_(program), bound_(bound), host_items_(host_items), runtime_(runtime) {
  for (const Section& section : program.sections) {
    Differences& differ = differences_.emplace_back();
    for (InstructionId id = section.begin; id < section.end; ++id) {
      differ.first |= bound[id].first_pass_differs;
      differ.last |= bound[id].last_pass_only;
      differ.slot |= bound.moves(id);
    }
  }
}

absl::Status PassGraphs::Launch(size_t number, int64_t pass) {
  const Section& section = program_.sections[number];
  const Differences& differ = differences_[number];
  const Kind kind = {number, differ.first && pass == 0, differ.last && pass + 1 == section.repeat,
                     differ.slot ? pass : 0};
  auto found = graphs_.find(kind);
  if (found == graphs_.end()) {
    Captured captured{.pass = pass};
    SHALE_RETURN_IF_ERROR(Capture(section, pass, captured));
    found = graphs_.emplace(kind, std::move(captured)).first;
  }
  Captured& captured = found->second;
  if (captured.pass != pass) {
    for (const CopyOfPass& copy : captured.copies) {
      const HostItems::Ends ends = host_items_.EndsOf(std::get<HostCopy>(bound_[copy.instruction].action), pass);
      SHALE_RETURN_IF_ERROR(captured.graph->SetCopy(copy.copy, ends.to, ends.from));
    }
    captured.pass = pass;
  }
  return captured.graph->Launch(runtime_.stream(kOrigin));
}

absl::Status PassGraphs::Capture(const Section& section, int64_t pass, Captured& captured) {
  SHALE_ASSIGN_OR_RETURN(PassCapture capture, PassCapture::Create(section, pass, bound_, runtime_));
  SHALE_RETURN_IF_ERROR(runtime_.stream(kOrigin).BeginCapture());
  const absl::Status status = capture.Run([&](InstructionId id) -> absl::Status {
    Instruction work;
    const Instruction& instruction = bound_.OfPass(id, pass, work);
    const auto* copy = std::get_if<HostCopy>(&instruction.action);
    if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) {
      return LaunchTransfer(*transfer, runtime_.stream(instruction.stream));
    }
    if (copy == nullptr) return LaunchOp(instruction, runtime_);
    const HostItems::Ends ends = host_items_.EndsOf(*copy, pass);
    SHALE_ASSIGN_OR_RETURN(
        const CapturedCopy node,
        runtime_.stream(instruction.stream).CaptureCopy(ends.to, ends.from, copy->device.extent_bytes()));
    captured.copies.push_back({id, node});
    return absl::OkStatus();
  });
  // Also after an error, for the streams to be free again.
  absl::StatusOr<std::unique_ptr<Graph>> graph = runtime_.stream(kOrigin).EndCapture();
  SHALE_RETURN_IF_ERROR(status);
  if (!graph.ok()) return graph.status();
  captured.graph = *std::move(graph);
  return absl::OkStatus();
}

}  // namespace shale
