#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/issues.h"

namespace shale {
namespace {

constexpr int64_t kAnalyzedIterations = 3;  // See [Note: three iterations are enough].

// Number of an issue, counted in issue order. The issues of one stream finish in that order. -1: none.
using IssueId = int32_t;
// By stream: the last issue that has finished. All earlier issues of that stream have finished too.
using Clock = std::array<IssueId, kStreams>;

// Returns a clock for which nothing has finished on any stream.
constexpr Clock Nothing() {
  Clock clock{};
  for (IssueId& issue : clock) issue = -1;
  return clock;
}
constexpr Clock kNothing = Nothing();

void Join(Clock& clock, const Clock& other) {
  for (int s = 0; s < kStreams; ++s) clock[s] = std::max(clock[s], other[s]);
}

struct NumberedIssue {
  InstructionId instruction = -1;
  int stream = 0;
  Clock finished = kNothing;  // Everything that has finished when this issue has finished, itself included.
};

// For every byte of a region: the issue that wrote it last, and the issues that have read it since.
class AccessMap {
 public:
  AccessMap() { pieces_[std::numeric_limits<int64_t>::min()] = {}; }

  // Read and Write record an access to `bytes` by `issue`, and raise `needed` to the accesses that must finish before
  // it: for a read the last write, for a write the last write and all reads since then.
  void Read(ByteRange bytes, IssueId issue, int stream, const std::vector<NumberedIssue>& issues, Clock& needed) {
    const auto end = Split(bytes.end);
    for (auto it = Split(bytes.begin); it != end; ++it) {
      Need(it->second.writer, issues, needed);
      it->second.readers[stream] = issue;
    }
  }

  void Write(ByteRange bytes, IssueId issue, const std::vector<NumberedIssue>& issues, Clock& needed) {
    const auto end = Split(bytes.end);
    const auto begin = Split(bytes.begin);
    for (auto it = begin; it != end; ++it) {
      Need(it->second.writer, issues, needed);
      Join(needed, it->second.readers);
    }
    begin->second = {.writer = issue};
    pieces_.erase(std::next(begin), end);
  }

 private:
  struct Piece {
    IssueId writer = -1;
    Clock readers = kNothing;
  };
  using Pieces = std::map<int64_t, Piece>;  // By first byte. Each piece extends to the next one.

  static void Need(IssueId writer, const std::vector<NumberedIssue>& issues, Clock& needed) {
    if (writer >= 0) needed[issues[writer].stream] = std::max(needed[issues[writer].stream], writer);
  }

  Pieces::iterator Split(int64_t at) {
    const auto next = pieces_.upper_bound(at);
    const auto it = std::prev(next);
    return it->first == at ? it : pieces_.emplace_hint(next, at, it->second);
  }

  Pieces pieces_;
};

struct ArenaAccess {
  ByteRange bytes;
  bool writes = false;
  BufferId buffer = -1;
};

// The accesses of instructions, each one's in a row.
class AccessTable {
 public:
  AccessTable(const StepProgram& program, const MemoryPlan& plan) : program_(program), plan_(plan) {}

  // Appends the accesses of an instruction, reads first, so that its own writes do not order its reads. Returns the
  // number by which to find them.
  size_t Add(const Instruction& instruction, bool first_iteration) {
    GetOperands(instruction, first_iteration, operands_);
    for (const bool writes : {false, true}) {
      for (const OperandBytes& operand : operands_) {
        if (operand.writes == writes) Add(operand);
      }
    }
    ends_.push_back(accesses_.size());
    return ends_.size() - 1;
  }
  absl::Span<const ArenaAccess> Of(size_t number) const {
    const size_t begin = number == 0 ? 0 : ends_[number - 1];
    return absl::MakeConstSpan(accesses_).subspan(begin, ends_[number] - begin);
  }
  const std::vector<ArenaAccess>& all() const { return accesses_; }

 private:
  void Add(const OperandBytes& operand) {
    const Buffer& buffer = program_.buffers[operand.buffer];
    const int64_t address = plan_.addresses[operand.buffer];
    ByteRange bytes{address + operand.bytes.begin, address + operand.bytes.end};
    if (buffer.slots > 1 || operand.by_rank) bytes = {address, address + buffer.size_bytes()};
    if (bytes.begin < bytes.end) accesses_.push_back({bytes, operand.writes, operand.buffer});
  }

  const StepProgram& program_;
  const MemoryPlan& plan_;
  std::vector<OperandBytes> operands_;  // Of one instruction.
  std::vector<ArenaAccess> accesses_;
  std::vector<size_t> ends_;  // By number.
};

// Numbers regions: the buffers of one lie in bytes that no buffer of another region has, so that accesses to different
// regions need no order. Persistent buffers have one each, and without sharing all buffers do. Returns the region of
// each buffer that is used.
std::vector<int32_t> RegionsOf(const StepProgram& program, const MemoryPlan& plan, const std::vector<bool>& used,
                               int32_t* count) {
  std::vector<BufferId> buffers;
  for (size_t b = 0; b < used.size(); ++b) {
    if (used[b]) buffers.push_back(static_cast<BufferId>(b));
  }
  std::sort(buffers.begin(), buffers.end(),
            [&](BufferId a, BufferId b) { return plan.addresses[a] < plan.addresses[b]; });
  std::vector<int32_t> regions(used.size(), -1);
  int64_t end = std::numeric_limits<int64_t>::min();
  *count = 0;
  for (const BufferId b : buffers) {
    if (plan.addresses[b] >= end) ++*count;
    end = std::max(end, plan.addresses[b] + program.buffers[b].size_bytes());
    regions[b] = *count - 1;
  }
  return regions;
}

class WaitDeriver {
 public:
  WaitDeriver(StepProgram& program, const MemoryPlan& plan) : program_(program), accesses_(program, plan) {
    latest_.assign(program.instructions.size(), -1);
    for (Instruction& instruction : program.instructions) {
      instruction.waits.clear();
      later_.push_back(accesses_.Add(instruction, /*first_iteration=*/false));
      first_.push_back(instruction.first_iteration_differs ? accesses_.Add(instruction, /*first_iteration=*/true)
                                                           : later_.back());
    }
    std::vector<bool> used(program.buffers.size(), false);
    for (const ArenaAccess& access : accesses_.all()) used[access.buffer] = true;
    int32_t count = 0;
    regions_ = RegionsOf(program, plan, used, &count);
    maps_.resize(static_cast<size_t>(count));
  }

  void Run() {
    for (const Issue& issue : IssuesOf(program_, kAnalyzedIterations)) {
      IssueOne(issue.id, accesses_.Of((issue.first_iteration() ? first_ : later_)[issue.id]));
    }
    for (Instruction& instruction : program_.instructions) {
      std::sort(instruction.waits.begin(), instruction.waits.end());
    }
  }

 private:
  void IssueOne(InstructionId id, absl::Span<const ArenaAccess> accesses) {
    Instruction& instruction = program_.instructions[id];
    const int stream = static_cast<int>(instruction.stream);
    const IssueId self = static_cast<IssueId>(issues_.size());
    issues_.push_back({id, stream, finished_[stream]});
    Clock needed = kNothing;
    for (const ArenaAccess& access : accesses) {
      AccessMap& map = maps_[regions_[access.buffer]];
      if (access.writes) {
        map.Write(access.bytes, self, issues_, needed);
      } else {
        map.Read(access.bytes, self, stream, issues_, needed);
      }
    }
    Clock& finished = issues_.back().finished;
    AddWaits(needed, stream, finished, instruction);
    finished[stream] = self;
    finished_[stream] = finished;
    latest_[id] = self;
  }

  // Adds the waits that `needed` requires beyond `finished`, which already contains the FIFO order, and joins them into
  // `finished`.
  void AddWaits(const Clock& needed, int own_stream, Clock& finished, Instruction& instruction) {
    // A wait refers to the latest issue of an instruction, which may be later than the one needed.
    Clock candidates = kNothing;
    for (int s = 0; s < kStreams; ++s) {
      if (s != own_stream && needed[s] > finished[s]) candidates[s] = latest_[issues_[needed[s]].instruction];
    }
    const auto implied = [&](int s) {
      return std::any_of(candidates.begin(), candidates.end(), [&](IssueId other) {
        return other >= 0 && other != candidates[s] && issues_[other].finished[s] >= candidates[s];
      });
    };
    for (int s = 0; s < kStreams; ++s) {
      if (candidates[s] < 0 || implied(s)) continue;
      Join(finished, issues_[candidates[s]].finished);
      const InstructionId wait = issues_[candidates[s]].instruction;
      if (std::find(instruction.waits.begin(), instruction.waits.end(), wait) == instruction.waits.end()) {
        instruction.waits.push_back(wait);
      }
    }
  }

  StepProgram& program_;
  AccessTable accesses_;
  std::vector<size_t> first_, later_;  // By instruction: its accesses in the first iteration of its loop and in others.
  std::vector<int32_t> regions_;       // By buffer.
  std::vector<AccessMap> maps_;        // By region.
  std::vector<NumberedIssue> issues_;
  // By stream: what has finished when its last issue has finished.
  std::vector<Clock> finished_ = std::vector<Clock>(kStreams, kNothing);
  std::vector<IssueId> latest_;  // Latest issue of each instruction.
};

}  // namespace

void DeriveWaits(StepProgram& program, const MemoryPlan& plan) { WaitDeriver(program, plan).Run(); }

}  // namespace shale
