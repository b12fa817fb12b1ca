// Short listings of programs, for tests of passes.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/program.h"

namespace shale::testing {

// Returns for example "copy Fetch m": stream, action, and the buffer that a copy moves or an all-gather reads. Loops
// are separated by "|".
inline std::vector<std::string> Listing(const StepProgram& program) {
  std::vector<std::string> listing;
  const auto name = [&](const Tensor& t) { return program.buffers[t.where.symbol].name; };
  for (const Loop& loop : program.loops) {
    if (loop.begin > 0) listing.push_back("|");
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const Instruction& instruction = program.instructions[id];
      std::string text = absl::StrCat(ToString(instruction.stream), " ", NameOf(instruction));
      if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) {
        absl::StrAppend(&text, " ", name(transfer->host));
      } else if (const auto* collective = std::get_if<Collective>(&instruction.action)) {
        absl::StrAppend(&text, " ", name(collective->local.present() ? collective->local : collective->full));
      }
      listing.push_back(text);
    }
  }
  return listing;
}

inline std::vector<std::string> Names(const StepProgram& program) {
  std::vector<std::string> names;
  for (const Buffer& buffer : program.buffers) names.push_back(buffer.name);
  return names;
}

}  // namespace shale::testing
