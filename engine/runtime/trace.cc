#include "engine/runtime/trace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/program/issues.h"
#include "engine/program/live_bytes.h"
#include "kernels/check.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

constexpr absl::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", kTail = "\n]}\n";

// Returns the bytes that an instruction moves in the form in which it is issued.
int64_t BytesMoved(const Instruction& issued) {
  // The bytes that a transfer moves count once, although it has two operands.
  if (const auto* transfer = std::get_if<Transfer>(&issued.action)) return transfer->device.extent_bytes();
  const Op* op = std::get_if<Op>(&issued.action);
  const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
  const bool reads_packed = matmul != nullptr && matmul->b_is_packed;
  int64_t bytes = 0;
  VisitInstruction(issued, /*first_iteration=*/false, [&](absl::string_view name, const Tensor& t, Access access) {
    const bool untouched = name == "scratch" || (reads_packed && name == "b");
    if (!untouched) bytes += (access == Access::kReadWrite ? 2 : 1) * t.elements() * SizeOf(t.dtype);
  });
  return bytes;
}

double FlopsOf(const Instruction& instruction) {
  const Op* op = std::get_if<Op>(&instruction.action);
  return op == nullptr ? 0 : FlopsOf(*op);
}

// Returns, by InstructionId, what a counter shows from each instruction of the compute stream on: the most live bytes
// at this instruction or at one of another stream that is issued after the previous compute instruction. So no peak is
// lost, although only the times of one stream are used.
std::vector<LiveBytes> LiveAtCompute(const StepProgram& program) {
  std::vector<LiveBytes> shown(program.instructions.size());
  LiveBytes most;
  LiveBytes* last = nullptr;
  VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
    if (live.total > most.total) most = live;
    if (program.instructions[id].stream != StreamId::kCompute) return;
    last = &shown[id];
    *last = std::exchange(most, LiveBytes());
  });
  if (last != nullptr && most.total > last->total) *last = most;
  return shown;
}

// Returns counter events of the arena's live bytes by category. A counter changes when an instruction of the compute
// stream begins.
std::string MemoryCounters(const StepProgram& program, int rank, absl::Span<const InstructionTime> times,
                           int64_t origin_ns) {
  const std::vector<LiveBytes> live = LiveAtCompute(program);
  LiveBytes largest;
  for (const LiveBytes& bytes : live) {
    for (int c = 0; c < kBufferCategories; ++c) {
      largest.by_category[c] = std::max(largest.by_category[c], bytes.by_category[c]);
    }
  }
  std::string events;
  const LiveBytes* before = nullptr;
  for (const InstructionTime& time : times) {
    const LiveBytes& now = live[time.id];
    if (program.instructions[time.id].stream != StreamId::kCompute) continue;
    if (before != nullptr && before->by_category == now.by_category) continue;
    before = &now;
    absl::StrAppendFormat(&events, R"({"ph":"C","pid":%d,"ts":%.3f,"name":"planned memory","args":{)", rank,
                          static_cast<double>(time.begin_ns - origin_ns) * 1e-3);
    // Every event has the same categories, so that viewers can stack them.
    absl::string_view comma = "";
    for (int c = 0; c < kBufferCategories; ++c) {
      if (largest.by_category[c] == 0) continue;
      absl::StrAppendFormat(&events, R"(%s"%s":%d)", comma, ToString(static_cast<BufferCategory>(c)),
                            now.by_category[c]);
      comma = ",";
    }
    absl::StrAppend(&events, "}},\n");
  }
  return events;
}

}  // namespace

void StepTrace::Add(const StepProgram& program, int64_t step, int rank, absl::Span<const InstructionTime> times) {
  if (times.empty()) return;
  ranks_.insert(rank);
  int64_t begin = times[0].begin_ns, end = times[0].end_ns;
  for (const InstructionTime& time : times) {
    begin = std::min(begin, time.begin_ns);
    end = std::max(end, time.end_ns);
  }
  if (origin_ns_ < 0) origin_ns_ = begin;
  absl::StrAppend(&events_, MemoryCounters(program, rank, times, origin_ns_));
  for (const InstructionTime& time : times) {
    const Instruction& instruction = program.instructions[time.id];
    uses_host_stream_ |= instruction.stream == StreamId::kHost;
    const std::string name = NameOf(instruction);
    Instruction issued = instruction;
    TakeForm(issued, time.iteration == 0);
    issued.first_iteration_differs = false;
    const int64_t bytes = BytesMoved(issued);
    const double flops = FlopsOf(issued);
    const std::string shape = ShapeJson(issued);
    absl::StrAppendFormat(
        &events_,
        R"({"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":"%s","cat":"%s",)"
        R"("args":{"step":%d,"instruction":%d,)",
        rank, static_cast<int>(instruction.stream), static_cast<double>(time.begin_ns - origin_ns_) * 1e-3,
        static_cast<double>(time.end_ns - time.begin_ns) * 1e-3, name, ToString(instruction.phase), step, time.id);
    if (instruction.unit >= 0) absl::StrAppendFormat(&events_, R"("unit":"%s",)", program.units[instruction.unit]);
    if (instruction.micro_batch >= 0) absl::StrAppendFormat(&events_, R"("micro_batch":%d,)", time.iteration);
    absl::StrAppendFormat(&events_, "\"bytes\":%d,\"flops\":%.0f%s%s}},\n", bytes, flops, shape.empty() ? "" : ",",
                          shape);
    if (rank != 0) continue;
    times_.Add(issued, shape, static_cast<double>(time.end_ns - time.begin_ns) * 1e-9, static_cast<double>(bytes),
               flops);
  }
  if (rank != 0) return;
  ++steps_;
  seconds_ += static_cast<double>(end - begin) * 1e-9;
}

std::string StepTrace::ChromeJson() const {
  std::string json = absl::StrCat(kHead, "\n");
  absl::StrAppend(&json, events_);
  for (const int rank : ranks_) {
    absl::StrAppendFormat(&json, R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"rank %d"}},)", rank, rank);
    for (int stream = 0; stream < kStreams; ++stream) {
      if (!Shows(stream)) continue;
      absl::StrAppendFormat(&json, R"(%s{"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":"%s"}},)", "\n",
                            rank, stream, ToString(static_cast<StreamId>(stream)));
    }
    absl::StrAppend(&json, "\n");
  }
  // The format allows no comma after the last event.
  while (json.back() == ',' || json.back() == '\n') json.pop_back();
  return absl::StrCat(json, kTail);
}

std::string StepTrace::Table(const Roofline& roofline) const {
  if (steps_ == 0) return "";
  std::string busy = absl::StrFormat("rank 0, mean of %d steps, %.2f ms each; busy:", steps_,
                                     1e3 * seconds_ / static_cast<double>(steps_));
  for (int stream = 0; stream < kStreams; ++stream) {
    if (!Shows(stream)) continue;
    const auto id = static_cast<StreamId>(stream);
    absl::StrAppendFormat(&busy, " %s %.1f%%", ToString(id), 100 * times_.Seconds(id) / seconds_);
  }
  return times_.Tables(steps_, seconds_, roofline, busy);
}

std::string MergeChromeJson(absl::Span<const std::string> traces) {
  std::vector<absl::string_view> events;
  for (absl::string_view trace : traces) {
    SHALE_CHECK(absl::ConsumePrefix(&trace, kHead) && absl::ConsumeSuffix(&trace, kTail)) << "no trace";
    if (!trace.empty()) events.push_back(trace);
  }
  return absl::StrCat(kHead, absl::StrJoin(events, ","), kTail);
}

}  // namespace shale
