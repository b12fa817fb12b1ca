#include "engine/runtime/op_times.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/op.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Fewer bytes may stay in a cache, whose rate is none of memory.
constexpr double kLeastBytes = 64 << 20;

// Returns the least seconds of `count` issues that together have these bytes and FLOPs, or 0 if nothing is known.
double LeastSeconds(double bytes, double flops, const Roofline& roofline) {
  const double moving = roofline.bytes_per_second > 0 ? bytes / roofline.bytes_per_second : 0;
  const double computing = roofline.flops_per_second > 0 ? flops / roofline.flops_per_second : 0;
  return std::max(moving, computing);
}

std::string PercentOf(double part, double whole) {
  return part > 0 && whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : "";
}

// Returns whether the bytes of an instruction's operands are those that it moves, at the rate of the device's memory.
// Some ops touch only the rows or ranges that they choose, and links between devices and hosts have other rates.
bool HasRoofline(const Instruction& instruction) {
  const Op* op = std::get_if<Op>(&instruction.action);
  return op != nullptr && op->As<EmbeddingForward>() == nullptr && op->As<EmbeddingBackward>() == nullptr &&
         op->As<ZeroRanges>() == nullptr;
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

}  // namespace

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
  return absl::StrCat("\"operands\":{", operands, "}");
}

void OpTimes::Add(const Instruction& instruction, const std::string& shape_json, double seconds, double bytes,
                  double flops) {
  Sum& sum = sums_[{instruction.stream, NameOf(instruction), instruction.phase, shape_json}];
  if (sum.count == 0) {
    sum.has_roofline = HasRoofline(instruction);
    if (const MatMul* op = MatMulOf(instruction)) sum.matmul_row = MatMulRow(*op);
  }
  sum.least_seconds = sum.count == 0 ? seconds : std::min(sum.least_seconds, seconds);
  ++sum.count;
  sum.seconds += seconds;
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
  return absl::StrCat(ByKind(steps, seconds, known), busy, "\n", note, "\n", ByShape(steps, seconds, known));
}

std::string OpTimes::ByKind(int64_t steps, double seconds, const Roofline& roofline) const {
  struct Kind : Sum {
    double roofline_seconds = 0;
  };
  std::map<std::tuple<StreamId, std::string, Phase>, Kind> kinds;
  for (const auto& [key, sum] : sums_) {
    Kind& kind = kinds[{key.stream, key.name, key.phase}];
    kind.count += sum.count;
    kind.seconds += sum.seconds;
    kind.flops += sum.flops;
    kind.bytes += sum.bytes;
    if (sum.has_roofline) kind.roofline_seconds += LeastSeconds(sum.bytes, sum.flops, roofline);
  }
  std::vector<std::pair<std::tuple<StreamId, std::string, Phase>, Kind>> rows(kinds.begin(), kinds.end());
  SortBySeconds(rows);
  std::string table = absl::StrFormat("%-8s %-10s %-22s %6s %10s %7s %9s %8s %8s\n", "stream", "phase", "instruction",
                                      "count", "ms/step", "share", "GFLOP/s", "GB/s", "roofline");
  for (const auto& [key, kind] : rows) {
    const auto& [stream, name, phase] = key;
    absl::StrAppendFormat(&table, "%-8s %-10s %-22s %6d %10.2f %6.1f%% %9s %8.1f %8s\n", ToString(stream),
                          ToString(phase), name, kind.count / steps, 1e3 * kind.seconds / static_cast<double>(steps),
                          100 * kind.seconds / seconds,
                          kind.flops > 0 ? absl::StrFormat("%.1f", kind.flops / kind.seconds * 1e-9) : "",
                          kind.bytes / kind.seconds * 1e-9, PercentOf(kind.roofline_seconds, kind.seconds));
  }
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
                          PercentOf(LeastSeconds(sum.bytes, sum.flops, roofline), sum.seconds));
  }
  return table;
}

}  // namespace shale
