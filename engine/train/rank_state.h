// The persistent state of one rank in memory: what it writes into a checkpoint, and what it takes from one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/shard_writer.h"
#include "engine/memory/plan.h"
#include "engine/runtime/executor.h"
#include "engine/step/compile.h"

namespace shale {

// Borrows everything it is given. Use while no program runs that touches the same bytes; the ranks' states may be used
// by a thread each.
class RankState {
 public:
  RankState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, RankRuntime& runtime);

  // What this rank saves, wide parts first: of the state itself, or of its snapshot (StepOptions::snapshot). Parameters
  // are numbered by ParameterId; the data is the device's.
  enum class Source { kState, kSnapshot };
  std::vector<PieceSource> Pieces(Source source) const;

  // Restores what this rank holds, whoever saved it: any number of ranks, strategy and kind of masters. The
  // checkpoint's parameters must be those of the model, in its order. Reads each byte that it needs once, through
  // `staging` (pinned, at least kReadStagingBytes). After an error the state is undefined, and a second Restore may
  // repair it. With `values_only` the moments stay as they are.
  absl::Status Restore(const CheckpointReader& checkpoint, bool values_only, absl::Span<char> staging);

  // Elements [begin, begin + out.size()) of a parameter.
  using ReadValues = absl::FunctionRef<absl::Status(const Parameter& parameter, int64_t begin, absl::Span<float> out)>;
  // Sets the values that this rank holds, and asks for no others. `staging` as above.
  absl::Status Fill(ReadValues read, absl::Span<char> staging);

  absl::StatusOr<int64_t> ReadUpdateCount() const;

 private:
  // What this rank holds of a group, in elements of the group.
  ElementRange Owned(const GroupState& g) const;    // Masters and moments.
  ElementRange Weights(const GroupState& g) const;  // Weights: more than that where they are replicated.
  // The part of a parameter's elements that lie in `of_group`.
  ElementRange OfParameter(ParameterId id, ElementRange of_group) const;
  std::byte* Address(const Tensor& tensor, int64_t element) const;
  bool JoinsFloats(const GroupState& g) const;
  // What is about to be set, with or without the moments: Arena::MakeResident.
  void MakeResident(bool moments);
  // Pinned memory to the device and back, on the copy stream.
  absl::Status Write(const Tensor& tensor, int64_t element, const void* from, int64_t count);
  absl::Status Read(const Tensor& tensor, int64_t element, void* to, int64_t count) const;
  // `work` is pinned memory for values on their way, kWorkBytes.
  absl::Status ZeroValues(const GroupState& g, char* work);
  absl::Status Put(const ShardPiece& piece, const char* bytes, char* work);
  absl::Status PutValues(const GroupState& g, int64_t flat, const float* values, int64_t count, char* work);
  absl::Status PutHalf(const GroupState& g, int64_t flat, SavedPart half, const uint16_t* bits, int64_t count,
                       char* work);
  absl::Status AddHalf(const Tensor& to, int64_t element, SavedPart half, const uint16_t* bits, int64_t count,
                       char* work);

  const ModelGraph& model_;
  const JobState& state_;
  const MemoryPlan& plan_;
  RankRuntime& runtime_;
};

}  // namespace shale
