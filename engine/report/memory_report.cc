#include "engine/report/memory_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/program/structure.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

// Describes an instruction, and notes if it runs in every micro-batch.
std::string MomentText(const StepProgram& program, InstructionId id) {
  std::string text = Describe(program, id);
  if (program.instructions[id].micro_batch >= 0) absl::StrAppend(&text, ", in every micro-batch");
  return text;
}

}  // namespace

std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan) {
  std::string text = absl::StrCat("peak ", FormatBytes(plan.peak_bytes), " (lower bound ",
                                  FormatBytes(plan.lower_bound_bytes), ") per rank\n");
  const auto row = [&](absl::string_view name, int64_t bytes) {
    if (bytes <= 0) return;
    absl::StrAppendFormat(&text, "  %-22s %9s %8s\n", name, FormatBytes(bytes),
                          Percent(static_cast<double>(bytes), static_cast<double>(plan.peak_bytes)));
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
