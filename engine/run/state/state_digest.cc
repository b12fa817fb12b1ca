#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/issues.h"
#include "engine/files/io/checksums.h"
#include "engine/run/state/rank_state.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

class Digester {
 public:
  Digester(const MemoryPlan& plan, RankRuntime& rank) : plan_(plan), rank_(rank), chunk_(kChunkBytes) {}

  absl::Status Add(const Tensor& tensor, uint32_t& crc) {
    const std::byte* const from = rank_.Address(plan_, tensor.where);
    for (int64_t at = 0; at < tensor.extent_bytes(); at += kChunkBytes) {
      const int64_t bytes = std::min(kChunkBytes, tensor.extent_bytes() - at);
      SHALE_RETURN_IF_ERROR(rank_.Read(from + at, chunk_.data(), bytes));
      crc = Crc32c(absl::string_view(chunk_.data(), bytes), crc);
    }
    return absl::OkStatus();
  }

 private:
  const MemoryPlan& plan_;
  RankRuntime& rank_;
  std::vector<char> chunk_;
};

// Calls visit(part of a group that the rank holds, placement, tensor) for every tensor of the state.
template <class Visit>
absl::Status VisitState(const JobState& state, Visit&& visit) {
  for (const GroupState& group : state.groups) {
    const Placement& placement = group.placement.placement();
    const auto present = [&](Part part, const Tensor& tensor) {
      return tensor.present() ? visit(part, placement, tensor) : absl::OkStatus();
    };
    SHALE_RETURN_IF_ERROR(present(placement.weights, group.weights()));
    if (group.host_weight.where.symbol != group.own_weight.where.symbol) {
      SHALE_RETURN_IF_ERROR(present(placement.state, group.host_weight));
    }
    SHALE_RETURN_IF_ERROR(present(placement.state, group.master));
    SHALE_RETURN_IF_ERROR(present(placement.state, group.low));
    for (const Tensor& tensor : group.states) SHALE_RETURN_IF_ERROR(present(placement.state, tensor));
  }
  return absl::OkStatus();
}

// Returns the buffers of this state, by Location::symbol.
std::set<int64_t> BuffersOf(const JobState& state) {
  std::set<int64_t> buffers;
  VisitState(state, [&](Part, const Placement&, const Tensor& tensor) {
    buffers.insert(tensor.where.symbol);
    return absl::OkStatus();
  }).IgnoreError();
  return buffers;
}

}  // namespace

absl::StatusOr<StateDigest> DigestOfState(Digested what, const JobState& state, const MemoryPlan& plan,
                                          RankRuntime& rank) {
  StateDigest digest;
  Digester digester(plan, rank);
  SHALE_RETURN_IF_ERROR(VisitState(state, [&](Part part, const Placement& placement, const Tensor& tensor) {
    if (part == Part::kFull) return digester.Add(tensor, digest.everywhere);
    const bool wanted = what == Digested::kAll || placement.mesh.replicate > 1;
    return wanted ? digester.Add(tensor, digest.column) : absl::OkStatus();
  }));
  return digest;
}

InstructionId FirstWriteOfState(const JobState& state, const StepProgram& program) {
  const std::set<int64_t> buffers = BuffersOf(state);
  for (const Issue& issue : IssuesOf(program, /*most_iterations=*/2)) {
    bool writes = false;
    VisitInstruction(program.instructions[issue.id], issue.first_iteration(),
                     [&](absl::string_view, const Tensor& t, Access access) {
                       writes |= access != Access::kRead && buffers.contains(t.where.symbol);
                     });
    if (writes) return issue.id;
  }
  return -1;
}

}  // namespace shale
