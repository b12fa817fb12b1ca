#include "engine/run/runtime/bound_program.h"

#include <array>
#include <utility>

#include "engine/compile/program/issues.h"
#include "kernels/check.h"

namespace shale {
namespace {

Ops& OpsOf(const Instruction& instruction, RankRuntime& runtime) {
  return instruction.stream == StreamId::kHost ? *runtime.ops().host() : runtime.ops();
}

// The events of one capture. They must be created before the capture begins and outlive it.
class CaptureEvents {
 public:
  static absl::StatusOr<CaptureEvents> Create(const std::vector<GraphStep>& steps, Device& device) {
    CaptureEvents events;
    SHALE_ASSIGN_OR_RETURN(events.begun_, device.CreateEvent());
    for (const GraphStep& step : steps) {
      if (step.kind == GraphStep::Kind::kSignal) {
        SHALE_ASSIGN_OR_RETURN(events.finished_[step.instruction], device.CreateEvent());
      } else if (step.kind == GraphStep::Kind::kJoin) {
        SHALE_ASSIGN_OR_RETURN(events.joined_[static_cast<int>(step.stream)], device.CreateEvent());
      }
    }
    return events;
  }

  Event& begun() { return *begun_; }
  Event& finished(InstructionId id) { return *finished_.at(id); }
  Event& joined(StreamId stream) { return *joined_[static_cast<int>(stream)]; }

 private:
  CaptureEvents() = default;
  std::unique_ptr<Event> begun_;
  std::map<InstructionId, std::unique_ptr<Event>> finished_;
  std::array<std::unique_ptr<Event>, kStreams> joined_;
};

}  // namespace

absl::StatusOr<BoundProgram> BoundProgram::Create(const StepProgram& program, const MemoryPlan& plan,
                                                  RankRuntime& runtime) {
  BoundProgram bound(program);
  SHALE_RETURN_IF_ERROR(bound.Bind(plan, runtime));
  return bound;
}

absl::Status BoundProgram::Bind(const MemoryPlan& plan, RankRuntime& runtime) {
  instructions_ = program_->instructions;
  moves_.assign(size(), false);
  for (size_t id = 0; id < size(); ++id) {
    Instruction& instruction = instructions_[id];
    ChangeOperands(instruction, [&](Tensor& t) {
      t.data = runtime.Address(plan, t.where);
      if (program_->buffers[t.where.symbol].slots > 1) moves_[id] = true;
    });
    Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr) continue;
    SetShard(*op, runtime.shard(), runtime.rank());
    SHALE_RETURN_IF_ERROR(Validate(*op));
    absl::Status prepared;
    VisitForms(instruction, [&](const Op& form) {
      if (prepared.ok()) {
        prepared = OpsOf(instruction, runtime).Prepare(form, instruction.scratch.extent_bytes());
      }
    });
    SHALE_RETURN_IF_ERROR(prepared);
  }
  return absl::OkStatus();
}

const Instruction& BoundProgram::OfIteration(InstructionId id, int64_t iteration, Instruction& work) const {
  const Instruction& bound = instructions_[id];
  if (!moves_[id] && !bound.first_iteration_differs) return bound;
  work = bound;
  TakeForm(work, /*first_iteration=*/iteration == 0);
  ChangeOperands(work, [&](Tensor& t) {
    const Buffer& buffer = program_->buffers[t.where.symbol];
    if (buffer.slots > 1) t.data = static_cast<std::byte*>(t.data) + iteration * buffer.slot_bytes;
  });
  return work;
}

absl::Status LaunchOp(const Instruction& bound, RankRuntime& runtime) {
  const Scratch scratch{static_cast<std::byte*>(bound.scratch.data), bound.scratch.extent_bytes()};
  return OpsOf(bound, runtime).Launch(std::get<Op>(bound.action), scratch, runtime.stream(bound.stream));
}

absl::Status LaunchTransfer(const Transfer& bound, Stream& stream) {
  const int64_t bytes = bound.device.extent_bytes();
  return bound.to_host ? stream.Copy(bound.host.data, bound.device.data, bytes)
                       : stream.Copy(bound.device.data, bound.host.data, bytes);
}

absl::StatusOr<std::unique_ptr<IterationGraphs>> IterationGraphs::Create(const StepProgram& program,
                                                                         const BoundProgram& bound,
                                                                         const StepItems& host_items,
                                                                         RankRuntime& runtime) {
  if (!runtime.device().CanCapture()) {
    return absl::FailedPreconditionError(
        "runtime.graphs wants a device that can capture work as graphs: a GPU that is not synchronous; set "
        "runtime.graphs=false or runtime.device=CUDA");
  }
  SHALE_ASSIGN_OR_RETURN(std::vector<LoopGraphs> loops, CompileGraphs(program));
  std::unique_ptr<IterationGraphs> graphs(new IterationGraphs(std::move(loops), bound, host_items, runtime));
  for (size_t loop = 0; loop < graphs->loops_.size(); ++loop) {
    for (int64_t iteration = 0; iteration < program.loops[loop].repeat; ++iteration) {
      SHALE_RETURN_IF_ERROR(graphs->CaptureOnce(loop, iteration));
    }
  }
  return graphs;
}

IterationGraphs::IterationGraphs(std::vector<LoopGraphs> loops, const BoundProgram& bound, const StepItems& host_items,
                                 RankRuntime& runtime)
    : loops_(std::move(loops)), bound_(bound), host_items_(host_items), runtime_(runtime) {}

absl::Status IterationGraphs::CaptureOnce(size_t loop, int64_t iteration) {
  const std::pair<size_t, int64_t> variant = {loop, loops_[loop].VariantOf(iteration)};
  if (graphs_.count(variant) > 0) return absl::OkStatus();
  Captured captured{.iteration = iteration};
  SHALE_RETURN_IF_ERROR(Capture(loops_[loop].StepsOf(iteration), iteration, captured));
  graphs_.emplace(variant, std::move(captured));
  return absl::OkStatus();
}

absl::Status IterationGraphs::Launch(size_t loop, int64_t iteration) {
  Captured& captured = graphs_.at({loop, loops_[loop].VariantOf(iteration)});
  if (captured.iteration != iteration) {
    for (const auto& [id, copy] : captured.copies) {
      const StepItems::Ends ends = host_items_.EndsOf(std::get<StepItemCopy>(bound_[id].action), iteration);
      SHALE_RETURN_IF_ERROR(captured.graph->SetCopy(copy, ends.to, ends.from));
    }
    captured.iteration = iteration;
  }
  return captured.graph->Launch(runtime_.stream(kGraphOrigin));
}

absl::Status IterationGraphs::Enqueue(InstructionId id, int64_t iteration, Captured& captured) {
  Instruction work;
  const Instruction& instruction = bound_.OfIteration(id, iteration, work);
  Stream& stream = runtime_.stream(instruction.stream);
  if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) return LaunchTransfer(*transfer, stream);
  const auto* copy = std::get_if<StepItemCopy>(&instruction.action);
  if (copy == nullptr) return LaunchOp(instruction, runtime_);
  const StepItems::Ends ends = host_items_.EndsOf(*copy, iteration);
  SHALE_ASSIGN_OR_RETURN(const CapturedCopy node, stream.CaptureCopy(ends.to, ends.from, copy->device.extent_bytes()));
  captured.copies.emplace_back(id, node);
  return absl::OkStatus();
}

absl::Status IterationGraphs::Capture(const std::vector<GraphStep>& steps, int64_t iteration, Captured& captured) {
  SHALE_ASSIGN_OR_RETURN(CaptureEvents events, CaptureEvents::Create(steps, runtime_.device()));
  Stream& origin = runtime_.stream(kGraphOrigin);
  SHALE_RETURN_IF_ERROR(origin.BeginCapture());
  const auto run = [&](const GraphStep& step) -> absl::Status {
    Stream& stream = runtime_.stream(step.stream);
    switch (step.kind) {
      case GraphStep::Kind::kFork: return stream.Wait(events.begun());
      case GraphStep::Kind::kWait: return stream.Wait(events.finished(step.instruction));
      case GraphStep::Kind::kIssue: return Enqueue(step.instruction, iteration, captured);
      case GraphStep::Kind::kSignal: return stream.Record(events.finished(step.instruction));
      case GraphStep::Kind::kJoin: {
        SHALE_RETURN_IF_ERROR(stream.Record(events.joined(step.stream)));
        return origin.Wait(events.joined(step.stream));
      }
    }
    return absl::InternalError("an unknown step of a graph");
  };
  absl::Status status = origin.Record(events.begun());
  for (const GraphStep& step : steps) {
    if (status.ok()) status = run(step);
  }
  // The capture is ended even after an error, so that the streams are usable again.
  absl::StatusOr<std::unique_ptr<Graph>> graph = origin.EndCapture();
  SHALE_RETURN_IF_ERROR(status);
  if (!graph.ok()) return graph.status();
  captured.graph = *std::move(graph);
  return absl::OkStatus();
}

}  // namespace shale
