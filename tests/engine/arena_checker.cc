#include "tests/engine/arena_checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"

namespace shale::testing {

ArenaChecker::ArenaChecker(const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime,
                           std::function<void(std::string)> report)
    : program_(program),
      plan_(plan),
      runtime_(runtime),
      report_(std::move(report)),
      ends_(program.instructions.size()),
      loop_of_(program.instructions.size()) {
  lifetimes_ = ComputeLifetimes(program);
  for (size_t b = 0; b < lifetimes_.size(); ++b) {
    if (program.buffers[b].memory == MemoryKind::kHost) continue;
    if (!program.buffers[b].persistent && lifetimes_[b].first <= lifetimes_[b].last) {
      ends_[lifetimes_[b].last].push_back(static_cast<BufferId>(b));
    }
  }
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) loop_of_[id] = &loop;
  }
}

void ArenaChecker::Read(std::vector<std::byte>& bytes) {
  bytes.resize(runtime_.arena().size_bytes());
  const absl::Status status = runtime_.Read(runtime_.arena().base(), bytes.data(), std::ssize(bytes));
  if (!status.ok()) report_(absl::StrCat("reading the arena: ", status.ToString()));
}

void ArenaChecker::Before(InstructionId, int64_t, const Instruction&) {
  // At this point every stream is idle, and collectives of peers write only into their own arenas.
  Read(before_);
}

void ArenaChecker::After(InstructionId id, int64_t iteration, const Instruction& instruction) {
  const std::byte* base = runtime_.arena().base();
  Read(after_);
  // Undoes in `after_` what the instruction may write. Everything else must equal `before_`.
  VisitInstruction(instruction, iteration == 0, [&](absl::string_view, const Tensor& t, Access access) {
    if (access == Access::kRead || program_.buffers[t.where.symbol].memory == MemoryKind::kHost) return;
    const int64_t begin = static_cast<const std::byte*>(t.data) - base;
    // Allows dense rows in the last dimension. An op must not write the gaps between strided rows.
    const int64_t row = t.dim(-1) * SizeOf(t.dtype);
    const int64_t rows = t.elements() / t.dim(-1);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t rest = r, offset = 0;
      for (int i = t.rank - 2; i >= 0; --i) {
        offset += (rest % t.shape[i]) * t.strides[i];
        rest /= t.shape[i];
      }
      const int64_t at = begin + offset * SizeOf(t.dtype);
      if (t.stride(-1) == 1) std::memcpy(after_.data() + at, before_.data() + at, row);
    }
  });
  if (std::memcmp(after_.data(), before_.data(), before_.size()) != 0) {
    const auto changed = std::mismatch(after_.begin(), after_.end(), before_.begin()).first - after_.begin();
    report_(absl::StrCat("rank ", runtime_.rank(), ", instruction ", id, " (", NameOf(instruction), ", iteration ",
                         iteration, ") changed byte ", changed, " outside its writes"));
  }
  PoisonDead(id, iteration);
}

void ArenaChecker::PoisonDead(InstructionId id, int64_t iteration) {
  const Loop& loop = *loop_of_[id];
  for (BufferId b : ends_[id]) {
    // A buffer that lives through a whole loop dies with its last iteration.
    const bool whole_loop = lifetimes_[b].first <= loop.begin && loop.repeat > 1;
    if (whole_loop && iteration + 1 < loop.repeat) continue;
    const std::vector<std::byte> poison(program_.buffers[b].size_bytes(), std::byte{0xff});
    const absl::Status status =
        runtime_.Write(runtime_.arena().base() + plan_.addresses[b], poison.data(), std::ssize(poison));
    if (!status.ok()) report_(absl::StrCat("poisoning the arena: ", status.ToString()));
  }
}

}  // namespace shale::testing
