// The persistent state of all ranks that this process holds. LocalState sets it at the start of a run, and reads and
// writes it by parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/step/compile.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/rank_state.h"

namespace shale {

// Borrows everything it is given. Used by one caller at a time. REQUIRES, for all functions that read or write: no
// program runs meanwhile.
class LocalState {
 public:
  // Gives access to the state in the persistent buffers of a program with this plan.
  LocalState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, LocalRanks& ranks);

  int size() const { return static_cast<int>(ranks_.size()); }
  const RankState& operator[](int local) const { return ranks_[local]; }

  // Restore sets the state from a checkpoint whose parameters are the model's (see RankState::Restore). Fill sets only
  // the values, from `read` (see RankState::Fill; a digest is the sum of those of the local ranks, each of which uses
  // `threads` threads); several threads call `read` at the same time. Each rank works through its own staging memory,
  // of which it needs kReadStagingBytes, or kLeastFillStagingBytes to fill. REQUIRES: no save is pending, because a
  // save uses the same staging memory.
  absl::Status Restore(const CheckpointReader& checkpoint, bool values_only);
  absl::Status Fill(RankState::ReadValues read, const RankState::FillOptions& options = {});

  const std::vector<Parameter>& parameters() const { return model_.parameters; }
  // Returns the parameter of that name, or NotFound with the nearest name.
  absl::StatusOr<ParameterId> Find(absl::string_view name) const;
  // Like Find, but returns InvalidArgument unless the parameter has `elements` elements.
  absl::StatusOr<ParameterId> Find(absl::string_view name, int64_t elements) const;
  // Like Find, but returns OutOfRange unless the parameter has elements [begin, begin + count).
  absl::StatusOr<ParameterId> FindElements(absl::string_view name, int64_t begin, int64_t count) const;

  // Returns the states that the optimizer keeps. With groups of the optimizer, a parameter has some of them.
  const std::vector<SavedState>& states() const { return ranks_[0].states(); }
  // Returns the place among them of the state of that name that a parameter has. Returns NotFound with the names of the
  // states that it has, or FailedPrecondition if it is frozen.
  absl::StatusOr<int> FindState(absl::string_view name, ParameterId parameter) const;
  // Returns how many elements the state has of a parameter that has it.
  int64_t StateElements(int state, ParameterId parameter) const { return ranks_[0].ElementsOf(state, parameter); }

  // Write and read elements [begin, begin + values.size()) of a parameter as fp32, in row-major order, whatever form
  // the ranks keep them in. A caller may go through a large parameter range by range and never hold all of it. Reading
  // returns FailedPrecondition if ranks of other processes hold some of the elements.
  //
  // Write sets weights and masters, on every local rank that holds them. Read reads the masters, or the weights if
  // there are no masters. ReadGradient reads the reduced gradient of the last step, before clipping. With
  // loss scaling it has the scale of that step as a factor. It returns FailedPrecondition if the job does not keep
  // gradients (memory.keep_gradients).
  absl::Status Write(ParameterId id, int64_t begin, absl::Span<const float> values);
  absl::Status Read(ParameterId id, int64_t begin, absl::Span<float> values) const;
  absl::Status ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const;
  // WriteState and ReadState do the same with elements of a state of the optimizer, which FindState found. A state in
  // bf16 stores the nearest value. Return OutOfRange for elements that it does not have, and FailedPrecondition if they
  // cannot be read and written one by one, because blocks of them share a scale.
  absl::Status WriteState(int state, ParameterId id, int64_t begin, absl::Span<const float> values);
  absl::Status ReadState(int state, ParameterId id, int64_t begin, absl::Span<float> values) const;

 private:
  absl::Status CheckStateElements(int state, ParameterId id, int64_t begin, int64_t count) const;
  // Reads with `read` what each shard has of `count` elements of a parameter. `read` returns how many it read.
  absl::Status ReadShards(ParameterId id, int64_t count,
                          absl::FunctionRef<absl::StatusOr<int64_t>(const RankState&)> read) const;

  const ModelGraph& model_;
  const JobState& state_;
  LocalRanks& local_;
  std::vector<RankState> ranks_;  // By local rank.
};

// Checks that saved parameters have the names, the shapes and the order of the model's parameters. If not, returns
// FailedPrecondition, which names the first difference.
absl::Status CheckSameParameters(const std::vector<SavedParameter>& saved, const ModelGraph& model);

}  // namespace shale
