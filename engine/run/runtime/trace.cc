#include "engine/run/runtime/trace.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/files/io/checksums.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Fewer bytes may stay in a cache, whose rate is none of memory.
constexpr double kLeastBytes = 64 << 20;

// Returns the least seconds of issues that together have the bytes and FLOPs of `sum`, or 0 if nothing is known.
template <class Sum>
double LeastSeconds(const Sum& sum, const Roofline& roofline) {
  const double peak = sum.is_float8 ? roofline.float8_flops_per_second : roofline.flops_per_second;
  const double moving = roofline.bytes_per_second > 0 ? sum.bytes / roofline.bytes_per_second : 0;
  const double computing = peak > 0 ? sum.flops / peak : 0;
  return std::max(moving, computing);
}

std::string PercentOf(double part, double whole) {
  return part > 0 && whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : "";
}

// Returns whether the bytes of an instruction's operands are those that it moves, at the rate of the device's memory.
// Embeddings touch only the rows that tokens choose, and links between devices and hosts have other rates.
bool HasRoofline(const Instruction& instruction) {
  const Op* op = std::get_if<Op>(&instruction.action);
  return op != nullptr && !op->Is<EmbeddingForward>() && !op->Is<EmbeddingBackward>();
}

const MatMul* MatMulOf(const Instruction& instruction) {
  const Op* op = std::get_if<Op>(&instruction.action);
  return op == nullptr ? nullptr : op->As<MatMul>();
}

std::string MatMulRow(const MatMul& op) {
  return absl::StrFormat("%8d %8d %8d  %s%s  %-9s", op.m(), op.n(), op.k(), op.transpose_a ? "t" : "n",
                         op.transpose_b ? "t" : "n", absl::StrCat(ToString(op.a.dtype), ">", ToString(op.c_MN.dtype)));
}

template <class Row>
void SortBySeconds(std::vector<Row>& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.second.seconds > b.second.seconds; });
}

constexpr absl::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", kTail = "\n]}\n";

// Returns the bytes that an instruction moves in the form in which it is issued.
int64_t BytesMoved(const Instruction& issued) {
  // The bytes that a transfer moves count once, although it has two operands.
  if (const auto* transfer = std::get_if<Transfer>(&issued.action)) return transfer->device.extent_bytes();
  if (const auto* op = std::get_if<Op>(&issued.action)) {
    const OpTraffic traffic = TrafficOf(*op);
    return static_cast<int64_t>(traffic.bytes_read + traffic.bytes_written);
  }
  int64_t bytes = 0;
  VisitInstruction(issued, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access access) {
    bytes += (access == Access::kReadWrite ? 2 : 1) * t.elements() * SizeOf(t.dtype);
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

std::string ProgramDigest(const StepProgram& program, int64_t ranks) {
  return absl::StrFormat("%08x", Crc32c(absl::StrCat(DumpProgram(program), ranks, " ranks\n")));
}

std::string ShapeJson(const Instruction& instruction) {
  if (const MatMul* op = MatMulOf(instruction)) {
    const auto boolean = [](bool value) { return value ? "true" : "false"; };
    return absl::StrFormat(
        R"("m":%d,"n":%d,"k":%d,"transpose_a":%s,"transpose_b":%s,"dtype":"%s","result":"%s","accumulate":%s)", op->m(),
        op->n(), op->k(), boolean(op->transpose_a), boolean(op->transpose_b), ToString(op->a.dtype),
        ToString(op->c_MN.dtype), boolean(op->accumulate));
  }
  const Op* op = std::get_if<Op>(&instruction.action);
  if (op == nullptr) return "";
  std::string operands;
  VisitOperands(*op, [&](absl::string_view name, const Tensor& t, Access) {
    if (!t.present()) return;
    absl::StrAppend(&operands, operands.empty() ? "" : ",", "\"", name, "\":\"", t.ToString(), "\"");
  });
  const absl::string_view kernels = instruction.kernels;
  return absl::StrCat("\"operands\":{", operands, "}", kernels.empty() ? "" : ",\"kernels\":\"", kernels,
                      kernels.empty() ? "" : "\"");
}

void OpTimes::Add(const Instruction& instruction, const std::string& shape_json, double seconds, double bytes,
                  double flops, double predicted_seconds) {
  Sum& sum = sums_[{instruction.stream, NameOf(instruction), instruction.phase, shape_json}];
  if (sum.count == 0) {
    sum.has_roofline = HasRoofline(instruction);
    if (const MatMul* op = MatMulOf(instruction)) {
      sum.matmul_row = MatMulRow(*op);
      sum.is_float8 = op->is_float8();
    }
  }
  sum.least_seconds = sum.count == 0 ? seconds : std::min(sum.least_seconds, seconds);
  ++sum.count;
  sum.seconds += seconds;
  sum.predicted_seconds += predicted_seconds;
  predicted_ = predicted_ || predicted_seconds > 0;
  sum.flops += flops;
  sum.bytes += bytes;
}

double OpTimes::Seconds(StreamId stream) const {
  double seconds = 0;
  for (const auto& [key, sum] : sums_) seconds += key.stream == stream ? sum.seconds : 0;
  return seconds;
}

Roofline OpTimes::Known(Roofline roofline) const {
  if (roofline.bytes_per_second > 0) return roofline;
  for (const auto& [key, sum] : sums_) {
    if (!sum.has_roofline || sum.bytes < kLeastBytes * static_cast<double>(sum.count) || sum.seconds <= 0) continue;
    roofline.bytes_per_second = std::max(roofline.bytes_per_second, sum.bytes / sum.seconds);
  }
  return roofline;
}

std::string OpTimes::Tables(int64_t steps, double seconds, const Roofline& roofline, const std::string& busy) const {
  const Roofline known = Known(roofline);
  std::string note;
  if (known.bytes_per_second > 0) {
    note = absl::StrFormat("roofline: %.0f GB/s%s", known.bytes_per_second * 1e-9,
                           roofline.bytes_per_second > 0 ? "" : ", the best of an op here");
  } else {
    note = "roofline: GB/s unknown, no op moves 64 MiB";
  }
  if (known.flops_per_second > 0) absl::StrAppendFormat(&note, "; %.4g TFLOP/s", known.flops_per_second * 1e-12);
  const bool any_float8 = std::any_of(sums_.begin(), sums_.end(), [](const auto& sum) { return sum.second.is_float8; });
  if (any_float8 && known.float8_flops_per_second > 0) {
    absl::StrAppendFormat(&note, ", in fp8 %.4g", known.float8_flops_per_second * 1e-12);
  }
  return absl::StrCat(ByKind(steps, seconds, known), busy, "\n", note, "\n", ByShape(steps, seconds, known));
}

OpTimes::Kinds OpTimes::SumKinds(const Roofline& roofline) const {
  std::map<std::tuple<StreamId, std::string, Phase>, Kind> kinds;
  for (const auto& [key, sum] : sums_) {
    Kind& kind = kinds[{key.stream, key.name, key.phase}];
    kind.count += sum.count;
    kind.seconds += sum.seconds;
    kind.predicted_seconds += sum.predicted_seconds;
    kind.flops += sum.flops;
    kind.bytes += sum.bytes;
    if (sum.has_roofline) kind.roofline_seconds += LeastSeconds(sum, roofline);
  }
  Kinds rows(kinds.begin(), kinds.end());
  SortBySeconds(rows);
  return rows;
}

std::string OpTimes::ByKind(int64_t steps, double seconds, const Roofline& roofline) const {
  const auto predicted = [&](const std::string& cell) { return predicted_ ? absl::StrFormat(" %10s", cell) : ""; };
  const auto per_step = [&](double sum) { return 1e3 * sum / static_cast<double>(steps); };
  std::string table =
      absl::StrFormat("%-8s %-10s %-22s %6s %10s%s %7s %9s %8s %8s\n", "stream", "phase", "instruction", "count",
                      "ms/step", predicted("predicted"), "share", "GFLOP/s", "GB/s", "roofline");
  const Kinds rows = SumKinds(roofline);
  const std::pair<std::tuple<StreamId, std::string, Phase>, Kind>* worst = nullptr;
  const auto beyond = [](const Kind& kind) { return kind.seconds - kind.predicted_seconds; };
  for (const auto& row : rows) {
    const auto& [stream, name, phase] = row.first;
    const Kind& kind = row.second;
    if (worst == nullptr || beyond(kind) > beyond(worst->second)) worst = &row;
    absl::StrAppendFormat(&table, "%-8s %-10s %-22s %6d %10.2f%s %6.1f%% %9s %8.1f %8s\n", ToString(stream),
                          ToString(phase), name, kind.count / steps, per_step(kind.seconds),
                          predicted(absl::StrFormat("%.2f", per_step(kind.predicted_seconds))),
                          100 * kind.seconds / seconds,
                          kind.flops > 0 ? absl::StrFormat("%.1f", kind.flops / kind.seconds * 1e-9) : "",
                          kind.bytes / kind.seconds * 1e-9, PercentOf(kind.roofline_seconds, kind.seconds));
  }
  if (!predicted_ || worst == nullptr || beyond(worst->second) <= 0) return table;
  const auto& [stream, name, phase] = worst->first;
  absl::StrAppendFormat(&table, "slowest against its prediction: %s %s %s, %.2f ms of a step instead of %.2f\n",
                        ToString(stream), ToString(phase), name, per_step(worst->second.seconds),
                        per_step(worst->second.predicted_seconds));
  return table;
}

std::string OpTimes::ByShape(int64_t steps, double seconds, const Roofline& roofline) const {
  // Matmuls that accumulate are in the row of those that do not.
  std::map<std::pair<Phase, std::string>, Sum> shapes;
  for (const auto& [key, sum] : sums_) {
    if (sum.matmul_row.empty()) continue;
    Sum& shape = shapes[{key.phase, sum.matmul_row}];
    shape.least_seconds = shape.count == 0 ? sum.least_seconds : std::min(shape.least_seconds, sum.least_seconds);
    shape.count += sum.count;
    shape.seconds += sum.seconds;
    shape.flops += sum.flops;
    shape.bytes += sum.bytes;
    shape.is_float8 = sum.is_float8;
  }
  if (shapes.empty()) return "";
  std::vector<std::pair<std::pair<Phase, std::string>, Sum>> rows(shapes.begin(), shapes.end());
  SortBySeconds(rows);
  std::string table = absl::StrFormat("%-10s %8s %8s %8s  %s  %-9s %6s %10s %10s %8s %7s %8s\n", "matmul", "m", "n",
                                      "k", "ab", "dtypes", "count", "us", "least us", "TFLOP/s", "share", "roofline");
  for (const auto& [key, sum] : rows) {
    const auto& [phase, shape] = key;
    absl::StrAppendFormat(&table, "%-10s %s %6d %10.1f %10.1f %8.4g %6.1f%% %8s\n", ToString(phase), shape,
                          sum.count / steps, 1e6 * sum.seconds / static_cast<double>(sum.count),
                          1e6 * sum.least_seconds, sum.flops / sum.seconds * 1e-12, 100 * sum.seconds / seconds,
                          PercentOf(LeastSeconds(sum, roofline), sum.seconds));
  }
  return table;
}

void StepTrace::Add(const StepProgram& program, int64_t step, int rank, absl::Span<const InstructionTime> times) {
  if (times.empty()) return;
  if (program_.empty()) program_ = ProgramDigest(program, job_ranks_);
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
    times_.Add(issued, shape, time.seconds(), static_cast<double>(bytes), flops, predicted_ ? predicted_(issued) : 0);
  }
  if (rank != 0) return;
  ++steps_;
  seconds_ += static_cast<double>(end - begin) * 1e-9;
}

std::string StepTrace::ChromeJson() const {
  std::string json = absl::StrCat(kHead, "\n");
  absl::StrAppend(&json, events_);
  for (const int rank : ranks_) {
    absl::StrAppendFormat(&json,
                          R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"rank %d","program":"%s"}},)",
                          rank, rank, program_);
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
