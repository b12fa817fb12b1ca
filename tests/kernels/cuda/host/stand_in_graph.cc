// StandInRuntime: captures and graphs.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda/host/stand_in_stream.h"

namespace shale::cuda_on_host {
namespace {

using Kind = StandInStep::Kind;

void CountUses(const StandInWork& work, int change) {
  for (Allocation* used : work.uses) used->graphs.fetch_add(change, std::memory_order_relaxed);
}

bool SameMemory(const Allocation* a, const Allocation* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->kind == b->kind && a->ordinal == b->ordinal;
}

}  // namespace

void StandInCapture::Join(StandInStream& stream) {
  if (stream.capture == this) return;
  stream.capture = this;
  streams.push_back(&stream);
  last_work.push_back(0);
  seen.emplace_back();
  for (std::vector<int>& of_stream : seen) of_stream.resize(streams.size());
}

int StandInCapture::Add(StandInStream& stream, StandInStep step) {
  const int number = static_cast<int>(steps.size());
  step.stream = static_cast<int>(std::find(streams.begin(), streams.end(), &stream) - streams.begin());
  std::vector<int>& before = seen[step.stream];
  if (step.kind == Kind::kWork) last_work[step.stream] = number + 1;
  if (step.kind == Kind::kWait) {
    const std::vector<int>& awaited = steps[step.record].seen;
    for (size_t s = 0; s < awaited.size(); ++s) before[s] = std::max(before[s], awaited[s]);
  }
  before[step.stream] = number + 1;
  if (step.kind == Kind::kRecord) step.seen = before;
  steps.push_back(std::move(step));
  return number;
}

int StandInCapture::Unjoined() const {
  for (size_t s = 1; s < streams.size(); ++s) {
    if (seen[0][s] < last_work[s]) return static_cast<int>(s);
  }
  return -1;
}

StandInCapture* StandInRuntime::CaptureOf(uint64_t number) {
  std::lock_guard lock(mutex_);
  for (const auto& capture : captures_) {
    if (capture->number == number) return capture.get();
  }
  return nullptr;
}

absl::Status StandInRuntime::CheckNoCapture(const char* call) {
  // capturing_ is read without the mutex, because the mutex would order threads that nothing else orders.
  if (capturing_.load(std::memory_order_relaxed) == 0) return absl::OkStatus();
  StandInCapture* own = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (const auto& capture : captures_) {
      if (capture->thread == std::this_thread::get_id()) own = capture.get();
    }
  }
  if (own == nullptr) return absl::OkStatus();
  own->broken = true;
  return Misuse(call, "while the thread captures a stream (cudaErrorStreamCaptureUnsupported)");
}

absl::Status StandInRuntime::BeginCapture(cuda::StreamHandle handle) {
  constexpr const char* kCall = "cudaStreamBeginCapture";
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, handle));
  if (AsStream(handle).capture != nullptr) return Misuse(kCall, "a stream that is being captured");
  auto capture = std::make_unique<StandInCapture>();
  capture->thread = std::this_thread::get_id();
  capture->Join(AsStream(handle));
  std::lock_guard lock(mutex_);
  capture->number = ++captures_begun_;
  captures_.push_back(std::move(capture));
  capturing_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<bool> StandInRuntime::IsCapturing(cuda::StreamHandle handle) {
  SHALE_RETURN_IF_ERROR(CheckStream("cudaStreamIsCapturing", handle));
  return AsStream(handle).capture != nullptr;
}

absl::StatusOr<cuda::GraphHandle> StandInRuntime::EndCapture(cuda::StreamHandle handle) {
  constexpr const char* kCall = "cudaStreamEndCapture";
  const absl::Status status = CheckStream(kCall, handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  StandInCapture* of_stream = AsStream(handle).capture;
  if (of_stream == nullptr || of_stream->streams[0] != &AsStream(handle)) {
    return Misuse(kCall, "a stream that began no capture");
  }
  if (of_stream->thread != std::this_thread::get_id()) return Misuse(kCall, "the capture of another thread");
  const std::unique_ptr<StandInCapture> capture = Take(*of_stream);
  for (StandInStream* stream : capture->streams) stream->capture = nullptr;
  SHALE_RETURN_IF_ERROR(status);
  if (capture->broken) {
    return absl::InvalidArgumentError(
        absl::StrCat(kCall, ": an earlier call broke the capture ", "(cudaErrorStreamCaptureInvalidated)"));
  }
  if (const int unjoined = capture->Unjoined(); unjoined >= 0) {
    return Misuse(kCall, absl::StrCat("work of stream ", unjoined, " of ", capture->streams.size(),
                                      " was not waited for (cudaErrorStreamCaptureUnjoined)"));
  }
  SHALE_RETURN_IF_ERROR(CheckTaking("cudaGraphInstantiate", "a graph"));
  std::lock_guard lock(mutex_);
  Gpu& gpu = gpus_[AsStream(handle).ordinal];
  if (options_.graph_bytes > options_.memory_bytes - gpu.allocated_bytes) {
    return absl::ResourceExhaustedError("cudaGraphInstantiate: out of memory (cudaErrorMemoryAllocation)");
  }
  gpu.allocated_bytes += options_.graph_bytes;
  StandInGraph& graph = graphs_.emplace_back();
  graph.ordinal = AsStream(handle).ordinal;
  graph.priority = AsStream(handle).priority;
  graph.steps = std::move(capture->steps);
  for (const StandInStep& step : graph.steps) CountUses(step.work, 1);
  for (size_t s = 1; s < capture->streams.size(); ++s) {
    StandInStream& side = graph.side_streams.emplace_back();
    side.priority = capture->streams[s]->priority;
    SHALE_RETURN_IF_ERROR(OpenStream(side, graph.ordinal, absl::StrCat("graph ", graphs_.size(), " stream ", s)));
  }
  return &graph;
}

std::unique_ptr<StandInCapture> StandInRuntime::Take(const StandInCapture& capture) {
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(captures_.begin(), captures_.end(), [&](const auto& other) { return other.get() == &capture; });
  std::unique_ptr<StandInCapture> taken = std::move(*found);
  captures_.erase(found);
  capturing_.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

absl::Status StandInRuntime::CaptureWait(StandInStream& stream, const StandInEvent& event) {
  constexpr const char* kCall = "cudaStreamWaitEvent";
  StandInCapture* capture = event.capture == 0 ? nullptr : CaptureOf(event.capture);
  if (stream.capture != nullptr && stream.capture != capture) {
    stream.capture->broken = true;
    return Misuse(kCall, "an event that was not recorded in the capture (cudaErrorStreamCaptureIsolation)");
  }
  if (capture == nullptr) return Misuse(kCall, "an event of a capture that has ended (cudaErrorCapturedEvent)");
  if (stream.ordinal != capture->streams[0]->ordinal) return Misuse(kCall, "a capture of another device");
  capture->Join(stream);
  capture->Add(stream, {.kind = Kind::kWait, .record = event.captured_step});
  return absl::OkStatus();
}

absl::StatusOr<cuda::NodeHandle> StandInRuntime::LastCaptured(cuda::StreamHandle handle) {
  constexpr const char* kCall = "cudaStreamGetCaptureInfo";
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, handle));
  StandInCapture* capture = AsStream(handle).capture;
  if (capture == nullptr) return Misuse(kCall, "a stream that is not being captured");
  for (auto step = capture->steps.rbegin(); step != capture->steps.rend(); ++step) {
    if (step->kind == Kind::kWork && capture->streams[step->stream] == &AsStream(handle)) return &*step;
  }
  return Misuse(kCall, "a stream of which nothing was captured");
}

std::vector<CudaStreamPriority> StandInRuntime::PrioritiesOf(cuda::GraphHandle handle) const {
  const auto& graph = *static_cast<const StandInGraph*>(handle);
  std::vector<CudaStreamPriority> priorities = {graph.priority};
  for (const StandInStream& side : graph.side_streams) priorities.push_back(side.priority);
  return priorities;
}

absl::Status StandInRuntime::CheckGraph(const char* call, cuda::GraphHandle handle) {
  if (handle == nullptr) return Misuse(call, "no graph");
  const auto& graph = *static_cast<StandInGraph*>(handle);
  if (graph.destroyed) return Misuse(call, "a graph that was destroyed");
  return ErrorOf(call, graph.ordinal);
}

absl::Status StandInRuntime::SetGraphCopy(cuda::GraphHandle handle, cuda::NodeHandle copy, void* to, const void* from,
                                          int64_t size_bytes) {
  constexpr const char* kCall = "cudaGraphExecMemcpyNodeSetParams1D";
  SHALE_RETURN_IF_ERROR(CheckGraph(kCall, handle));
  auto& steps = static_cast<StandInGraph*>(handle)->steps;
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const StandInStep& step) { return &step == copy; });
  if (found == steps.end() || found->work.copied_bytes == 0) return Misuse(kCall, "not a copy of the graph");
  SHALE_ASSIGN_OR_RETURN(StandInWork work, CopyWork(kCall, to, from, size_bytes));
  if (!SameMemory(work.to, found->work.to) || !SameMemory(work.from, found->work.from)) {
    return Misuse(kCall, "another kind of memory than the copy was captured with");
  }
  CountUses(found->work, -1);
  CountUses(work, 1);
  found->work = std::move(work);
  return absl::OkStatus();
}

absl::Status StandInRuntime::LaunchGraph(cuda::GraphHandle handle, cuda::StreamHandle stream_handle) {
  constexpr const char* kCall = "cudaGraphLaunch";
  SHALE_RETURN_IF_ERROR(CheckGraph(kCall, handle));
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream_handle));
  auto& graph = *static_cast<StandInGraph*>(handle);
  StandInStream& stream = AsStream(stream_handle);
  if (stream.capture != nullptr) return Misuse(kCall, "a stream that is being captured");
  if (stream.ordinal != graph.ordinal) return Misuse(kCall, "a graph and a stream of different devices");
  if (graph.launched_on != nullptr) {
    SHALE_RETURN_IF_ERROR(Await(stream, *graph.launched_on, graph.launch_record));
  }
  std::vector<uint64_t> records(graph.steps.size());
  const auto on = [&](const StandInStep& step) -> StandInStream& {
    return step.stream == 0 ? stream : graph.side_streams[step.stream - 1];
  };
  for (size_t i = 0; i < graph.steps.size(); ++i) {
    const StandInStep& step = graph.steps[i];
    if (step.kind == Kind::kWork) {
      SHALE_RETURN_IF_ERROR(Run(on(step), step.work));
    } else if (step.kind == Kind::kRecord) {
      SHALE_ASSIGN_OR_RETURN(records[i], Reach(on(step), nullptr));
    } else {
      SHALE_RETURN_IF_ERROR(Await(on(step), on(graph.steps[step.record]), records[step.record]));
    }
  }
  graph.launched_on = &stream;
  SHALE_ASSIGN_OR_RETURN(graph.launch_record, Reach(stream, nullptr));
  ++graph_launches_;
  return absl::OkStatus();
}

absl::Status StandInRuntime::DestroyGraph(cuda::GraphHandle handle) {
  const absl::Status status = CheckGraph("cudaGraphExecDestroy", handle);
  if (status.code() == absl::StatusCode::kInvalidArgument) return status;
  auto& graph = *static_cast<StandInGraph*>(handle);
  for (const StandInStep& step : graph.steps) CountUses(step.work, -1);
  for (StandInStream& side : graph.side_streams) side.work.reset();
  std::lock_guard lock(mutex_);
  graph.destroyed = true;
  gpus_[graph.ordinal].allocated_bytes -= options_.graph_bytes;
  return status;
}

}  // namespace shale::cuda_on_host
