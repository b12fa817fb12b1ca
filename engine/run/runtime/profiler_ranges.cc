#include "engine/run/runtime/profiler_ranges.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifdef SHALE_HAVE_NVTX
#include <deque>
#include <mutex>

#include "nvtx3/nvToolsExt.h"
#endif

namespace shale {

bool ProfilerWantsNvtxRanges() {
  const char* const library = std::getenv("NVTX_INJECTION64_PATH");
  return library != nullptr && library[0] != '\0';
}

#ifdef SHALE_HAVE_NVTX
namespace {

class NvtxRanges : public ProfilerRanges {
 public:
  ~NvtxRanges() override {
    for (const Domain& domain : domains_) nvtxDomainDestroy(domain.handle);
  }

  int Lane(const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t lane = 0; lane < domains_.size(); ++lane) {
      if (domains_[lane].name == name) return static_cast<int>(lane);
    }
    domains_.push_back({name, nvtxDomainCreateA(name.c_str())});
    return static_cast<int>(domains_.size()) - 1;
  }

  Name Register(int lane, const std::string& name) override {
    return nvtxDomainRegisterStringA(HandleOf(lane), name.c_str());
  }

  void Push(int lane, Name name, int64_t number) override {
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = static_cast<nvtxStringHandle_t>(const_cast<void*>(name));
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = number;
    nvtxDomainRangePushEx(HandleOf(lane), &event);
  }

  void Pop(int lane) override { nvtxDomainRangePop(HandleOf(lane)); }

 private:
  struct Domain {
    std::string name;
    nvtxDomainHandle_t handle;
  };

  nvtxDomainHandle_t HandleOf(int lane) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return domains_[lane].handle;
  }

  std::mutex mutex_;
  std::deque<Domain> domains_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges() { return std::make_unique<NvtxRanges>(); }
#else
absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges() {
  return absl::UnimplementedError(
      "telemetry.nvtx wants a program that was built where a CUDA toolkit is installed, which has the headers of NVTX; "
      "this one was not. Leave nvtx out, or build again there");
}
#endif

ProgramRanges::ProgramRanges(const StepProgram& program, ProfilerRanges& profiler)
    : program_(program), profiler_(profiler), step_lane_(profiler.Lane("shale")), lanes_(kStreams) {
  step_ = profiler.Register(step_lane_, "step");
  for (const Loop& loop : program.loops) {
    launches_.push_back(
        profiler.Register(step_lane_, absl::StrCat("graph of instructions ", loop.begin, " to ", loop.end - 1)));
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    if (!UsesStream(program, static_cast<StreamId>(stream))) continue;
    Lane& lane = lanes_[stream];
    lane.number = profiler.Lane(absl::StrCat("shale ", ToString(static_cast<StreamId>(stream))));
    lane.micro_batch = profiler.Register(lane.number, "micro-batch");
  }
  std::map<std::pair<int, std::string>, ProfilerRanges::Name> names;  // By lane and text.
  const auto name_of = [&](int lane, const std::string& text) {
    const auto [at, is_new] = names.try_emplace({lane, text});
    if (is_new) at->second = profiler.Register(lane, text);
    return at->second;
  };
  for (const Instruction& instruction : program.instructions) {
    const int lane = lanes_[static_cast<int>(instruction.stream)].number;
    const std::string unit = instruction.unit < 0 ? "" : absl::StrCat(" ", program.units[instruction.unit]);
    instructions_.push_back(name_of(lane, NameOf(instruction)));
    work_names_.push_back(name_of(lane, absl::StrCat(ToString(instruction.phase), unit)));
    works_.push_back(static_cast<int>(instruction.phase) * (std::ssize(program.units) + 1) + instruction.unit + 1);
  }
}

void ProgramRanges::BeginRun() { profiler_.Push(step_lane_, step_, runs_++); }

void ProgramRanges::EndRun() {
  for (Lane& lane : lanes_) EndMicroBatch(lane);
  profiler_.Pop(step_lane_);
}

void ProgramRanges::EndWork(Lane& lane) {
  if (lane.open_work >= 0) profiler_.Pop(lane.number);
  lane.open_work = -1;
}

void ProgramRanges::EndMicroBatch(Lane& lane) {
  EndWork(lane);
  if (lane.open_micro_batch >= 0) profiler_.Pop(lane.number);
  lane.open_micro_batch = -1;
}

void ProgramRanges::BeginIssue(InstructionId id, int64_t iteration) {
  Lane& lane = LaneOf(id);
  const int32_t first = program_.instructions[id].micro_batch;
  const int64_t micro_batch = first < 0 ? -1 : first + iteration;
  if (lane.open_micro_batch != micro_batch) {
    EndMicroBatch(lane);
    if (micro_batch >= 0) profiler_.Push(lane.number, lane.micro_batch, micro_batch);
    lane.open_micro_batch = micro_batch;
  }
  if (lane.open_work != works_[id]) {
    EndWork(lane);
    profiler_.Push(lane.number, work_names_[id], id);
    lane.open_work = works_[id];
  }
  profiler_.Push(lane.number, instructions_[id], id);
}

void ProgramRanges::EndIssue(InstructionId id) { profiler_.Pop(LaneOf(id).number); }

void ProgramRanges::BeginLaunch(size_t loop, int64_t iteration) {
  profiler_.Push(step_lane_, launches_[loop], iteration);
}

void ProgramRanges::EndLaunch() { profiler_.Pop(step_lane_); }

}  // namespace shale
