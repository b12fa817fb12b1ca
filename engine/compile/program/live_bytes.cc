#include "engine/compile/program/live_bytes.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/compile/program/accesses.h"
#include "engine/compile/program/range_set.h"

namespace shale {
namespace {

// Bytes of a buffer: a RangeSet that allocates nothing as long as it has one range, as most have.
class WrittenBytes {
 public:
  void Add(ByteRange range) {
    if (range.begin >= range.end) return;
    if (more_.ranges().empty()) {
      if (one_.begin >= one_.end) {
        one_ = range;
        return;
      }
      if (range.begin <= one_.end && range.end >= one_.begin) {
        one_ = {std::min(one_.begin, range.begin), std::max(one_.end, range.end)};
        return;
      }
      more_.Add(std::exchange(one_, {}));
    }
    more_.Add(range);
  }
  bool Contains(ByteRange range) const {
    if (!more_.ranges().empty()) return more_.Contains(range);
    return range.begin >= range.end || (one_.begin <= range.begin && range.end <= one_.end);
  }
  // Returns whether the first `bytes` bytes are in the set, as one range.
  bool ContainsFirst(int64_t bytes) const { return one_.begin == 0 && one_.end >= bytes && one_.end > 0; }
  void clear() {
    one_ = {};
    more_.clear();
  }

 private:
  ByteRange one_;  // Empty once there are several.
  RangeSet more_;
};

// The accesses to one buffer so far.
struct Use {
  Lifetime span;
  int first_loop = -1;
  int last_loop = -1;
  WrittenBytes written;     // Bytes written in the current iteration of last_loop.
  bool read_first = false;  // Whether an iteration reads bytes before it writes them.

  void Touch(InstructionId id, int loop) {
    if (first_loop < 0) {
      first_loop = loop;
      span.first = id;
    }
    if (last_loop != loop) written.clear();
    last_loop = loop;
    span.last = id;
  }
};

// Records the accesses of a program to its buffers.
class Uses {
 public:
  explicit Uses(const StepProgram& program) : program_(program), uses_(program.buffers.size()) {}

  // Records the accesses of an instruction of a loop.
  void Add(InstructionId id, int loop) {
    const Instruction& instruction = program_.instructions[id];
    const bool repeats = program_.loops[loop].repeat > 1;  // Else nothing passes from one iteration to the next.
    writes_.clear();
    // The first iteration accesses no other buffers than the later ones, and reads no more than they do.
    VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access access) {
      Use& use = uses_[t.where.symbol];
      use.Touch(id, loop);
      if (!repeats || use.written.ContainsFirst(program_.buffers[t.where.symbol].slot_bytes)) return;
      const ByteRange bytes = {t.where.offset_bytes, t.where.offset_bytes + t.extent_bytes()};
      const std::vector<ElementRange>* ranges = access == Access::kReadWrite ? RangesOf(instruction) : nullptr;
      if (access != Access::kWrite && ranges == nullptr && !use.written.Contains(bytes)) use.read_first = true;
      if (access != Access::kRead) writes_.push_back({&use, bytes, ranges, SizeOf(t.dtype)});
    });
    // An instruction reads before it writes.
    for (const Write& write : writes_) write.Do();
  }

  std::vector<Use>& all() { return uses_; }

 private:
  struct Write {
    Use* use;
    ByteRange bytes;
    const std::vector<ElementRange>* ranges;  // Of these bytes, unless it is all of them.
    int64_t element_bytes;

    void Do() const {
      if (ranges == nullptr) return use->written.Add(bytes);
      for (const ElementRange& range : *ranges) {
        use->written.Add({bytes.begin + range.begin * element_bytes, bytes.begin + range.end * element_bytes});
      }
    }
  };
  static const std::vector<ElementRange>* RangesOf(const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op == nullptr ? nullptr : WrittenRanges(*op);
  }

  const StepProgram& program_;
  std::vector<Use> uses_;      // By buffer.
  std::vector<Write> writes_;  // Of one instruction.
};

}  // namespace

std::vector<Lifetime> ComputeLifetimes(const StepProgram& program) {
  Uses uses(program);
  std::vector<int> loop_of(program.instructions.size(), -1);
  for (int s = 0; s < std::ssize(program.loops); ++s) {
    for (InstructionId id = program.loops[s].begin; id < program.loops[s].end; ++id) {
      loop_of[id] = s;
      uses.Add(id, s);
    }
  }

  std::vector<Lifetime> lifetimes(program.buffers.size());
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    Use& use = uses.all()[b];
    if (buffer.persistent) {
      lifetimes[b] = {0, static_cast<InstructionId>(program.instructions.size()) - 1};
      continue;
    }
    if (use.first_loop < 0) continue;
    if (buffer.held_until > use.span.last) {
      use.span.last = buffer.held_until;
      use.last_loop = loop_of[buffer.held_until];
    }
    if (use.first_loop != use.last_loop || use.read_first) {
      const Loop& first = program.loops[use.first_loop];
      const Loop& last = program.loops[use.last_loop];
      if (first.repeat > 1) use.span.first = first.begin;
      if (last.repeat > 1) use.span.last = last.end - 1;
    }
    lifetimes[b] = use.span;
  }
  return lifetimes;
}

LiveBytes PersistentBytes(const StepProgram& program) {
  LiveBytes live;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && buffer.memory == MemoryKind::kDevice) live.Add(buffer);
  }
  return live;
}

std::vector<LiveChange> LiveChanges(const StepProgram& program, const std::vector<Lifetime>& lifetimes) {
  std::vector<LiveChange> changes(program.instructions.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || buffer.memory == MemoryKind::kHost || !lifetimes[b].used()) continue;
    changes[lifetimes[b].first].begins.push_back(static_cast<BufferId>(b));
    changes[lifetimes[b].last].ends.push_back(static_cast<BufferId>(b));
  }
  return changes;
}

}  // namespace shale
