#include "tests/engine/compile/memory/interleaving.h"

#include <algorithm>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/compile/memory/unrolled.h"

namespace shale::testing {
namespace {

constexpr int64_t kRank = 1;

// The last writer of each byte: the number of an issue, a tag for what a buffer holds before the step, or a tag for a
// write that is still running.
using Tags = std::vector<int64_t>;
int64_t InitialTag(BufferId buffer) { return -1 - buffer; }
int64_t WritingTag(size_t issue) { return 1'000'000 + static_cast<int64_t>(issue); }

// Returns, by issue and access, the tags that a read must find, in order.
std::vector<std::vector<Tags>> ExpectedReads(const StepProgram& program, const std::vector<UnrolledIssue>& issues) {
  std::vector<Tags> memory;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    memory.emplace_back(program.buffers[b].size_bytes(), InitialTag(static_cast<BufferId>(b)));
  }
  std::vector<std::vector<Tags>> expected(issues.size());
  for (size_t i = 0; i < issues.size(); ++i) {
    for (const UnrolledAccess& access : issues[i].accesses) {
      Tags& found = expected[i].emplace_back();
      if (!access.reads) continue;
      for (const ByteRange& r : access.in_slot) {
        found.insert(found.end(), memory[access.buffer].begin() + r.begin, memory[access.buffer].begin() + r.end);
      }
    }
    for (const UnrolledAccess& access : issues[i].accesses) {
      if (!access.writes) continue;
      for (const ByteRange& r : access.in_slot) {
        std::fill(memory[access.buffer].begin() + r.begin, memory[access.buffer].begin() + r.end, i);
      }
    }
  }
  return expected;
}

class Machine {
 public:
  Machine(const StepProgram& program, const MemoryPlan& plan, uint64_t seed)
      : issues_(Unroll(program, plan, kRank)),
        expected_(ExpectedReads(program, issues_)),
        memory_(plan.peak_bytes + plan.host_bytes, -1'000'000),
        done_(issues_.size(), false),
        queues_(kStreams),
        random_(seed) {
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      if (!program.buffers[b].persistent) continue;
      const auto id = static_cast<BufferId>(b);
      std::fill_n(memory_.begin() + AddressOf(program, plan, id), program.buffers[b].size_bytes(), InitialTag(id));
    }
    for (size_t i = 0; i < issues_.size(); ++i) queues_[issues_[i].stream].push_back(static_cast<int>(i));
  }

  std::string Run() {
    std::vector<size_t> next(kStreams, 0);
    std::vector<bool> running(kStreams, false);
    while (true) {
      std::vector<int> able;
      bool left = false;
      for (int s = 0; s < kStreams; ++s) {
        if (next[s] == queues_[s].size()) continue;
        left = true;
        if (running[s] || MayStart(queues_[s][next[s]])) able.push_back(s);
      }
      if (!left) return "";
      if (able.empty()) return "every stream waits";
      const int s = able[random_() % able.size()];
      const int issue = queues_[s][next[s]];
      const std::string error = running[s] ? End(issue) : Start(issue);
      if (!error.empty()) return error;
      if (running[s]) ++next[s];
      running[s] = !running[s];
    }
  }

 private:
  bool MayStart(int issue) const {
    return std::all_of(issues_[issue].waits.begin(), issues_[issue].waits.end(), [&](int w) { return done_[w]; });
  }

  std::string Start(int issue) {
    std::string error = Compare(issue, /*at_end=*/false);
    Fill(issue, WritingTag(issue));
    return error;
  }

  std::string End(int issue) {
    const std::string error = Compare(issue, /*at_end=*/true);
    Fill(issue, issue);
    done_[issue] = true;
    return error;
  }

  // Checks what the issue accesses. At its end, its reads must be unchanged except for the bytes that it writes itself,
  // and those must still be as it wrote them.
  std::string Compare(int issue, bool at_end) const {
    const auto text = [&](int64_t at, int64_t wanted) {
      return absl::StrCat("issue ", issue, " (instruction ", issues_[issue].instruction, ", iteration ",
                          issues_[issue].iteration, ") finds the tag ", memory_[at], " at byte ", at, ", wanted ",
                          wanted);
    };
    for (size_t a = 0; a < issues_[issue].accesses.size(); ++a) {
      const UnrolledAccess& access = issues_[issue].accesses[a];
      size_t i = 0;
      for (const ByteRange& r : access.exact) {
        for (int64_t at = r.begin; at < r.end; ++at) {
          const bool own = at_end && memory_[at] == WritingTag(issue);
          if (access.reads) {
            const int64_t wanted = expected_[issue][a][i++];
            if (memory_[at] != wanted && !own) return text(at, wanted);
          }
          if (access.writes && at_end && !own) return text(at, WritingTag(issue));
        }
      }
    }
    return "";
  }

  void Fill(int issue, int64_t tag) {
    for (const UnrolledAccess& access : issues_[issue].accesses) {
      if (!access.writes) continue;
      for (const ByteRange& r : access.exact) std::fill(memory_.begin() + r.begin, memory_.begin() + r.end, tag);
    }
  }

  const std::vector<UnrolledIssue> issues_;
  const std::vector<std::vector<Tags>> expected_;
  Tags memory_;
  std::vector<bool> done_;
  std::vector<std::vector<int>> queues_;  // By stream.
  std::mt19937_64 random_;
};

}  // namespace

std::string RunInterleaved(const StepProgram& program, const MemoryPlan& plan, uint64_t seed) {
  return Machine(program, plan, seed).Run();
}

}  // namespace shale::testing
