#include "engine/memory/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/program/structure.h"

namespace shale {
namespace {

std::string Percent(int64_t part, int64_t whole) {
  return absl::StrFormat("%.1f %%", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// Describes an instruction, and notes if it runs in every micro-batch.
std::string MomentText(const StepProgram& program, InstructionId id) {
  std::string text = Describe(program, id);
  if (program.instructions[id].micro_batch >= 0) absl::StrAppend(&text, ", in every micro-batch");
  return text;
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr absl::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const std::string sign = bytes < 0 ? "-" : "";
  double value = std::abs(static_cast<double>(bytes));
  size_t unit = 0;
  // A value that would print as 1024 is printed as 1.0 of the next unit.
  while (unit + 1 < std::size(kUnits) && value >= (unit == 0 ? 1024 : 1023.5)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0 || value >= 99.95) return absl::StrFormat("%s%.0f %s", sign, value, kUnits[unit]);
  std::string digits = absl::StrFormat(value >= 9.995 ? "%.1f" : "%.2f", value);
  if (digits.size() == 4 && digits[1] == '.' && digits.back() == '0') digits.pop_back();
  return absl::StrCat(sign, digits, " ", kUnits[unit]);
}

std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan) {
  std::string text = absl::StrCat("peak ", FormatBytes(plan.peak_bytes), " (lower bound ",
                                  FormatBytes(plan.lower_bound_bytes), ") per rank\n");
  const auto row = [&](absl::string_view name, int64_t bytes) {
    if (bytes <= 0) return;
    absl::StrAppendFormat(&text, "  %-22s %9s %8s\n", name, FormatBytes(bytes), Percent(bytes, plan.peak_bytes));
  };
  for (int c = 0; c < kBufferCategories; ++c) row(ToString(static_cast<BufferCategory>(c)), plan.bytes_at_peak[c]);
  row("between buffers", plan.peak_bytes - plan.lower_bound_bytes);
  if (program.instructions.empty()) return text;
  absl::StrAppend(&text, "reached at ", MomentText(program, plan.peak_instruction), "\n");

  text += "largest buffers then\n";
  size_t width = 0;
  for (BufferId b : plan.largest_at_peak) width = std::max(width, program.buffers[b].name.size());
  for (BufferId b : plan.largest_at_peak) {
    const Buffer& buffer = program.buffers[b];
    absl::StrAppendFormat(&text, "  %9s  %-*s  %s", FormatBytes(buffer.size_bytes()), static_cast<int>(width),
                          buffer.name, ToString(buffer.category));
    if (buffer.slots > 1) absl::StrAppend(&text, ", ", buffer.slots, " slots of ", FormatBytes(buffer.slot_bytes));
    text += "\n";
  }
  return text;
}

}  // namespace shale
