// The persistent state of one rank in memory, as checkpoints save and restore it, and checksums of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/state.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/runtime/executor.h"
#include "engine/run/runtime/rank_runtime.h"

namespace shale::cpu {
class Team;
}  // namespace shale::cpu

namespace shale {

class StagedFill;  // filling.h

// Return the states of a job as a manifest records them, those of JobState::states first, and those of a parameter that
// an optimizer updates.
std::vector<SavedState> SavedStatesOf(const JobState& state);
std::vector<SavedState> SavedStatesOf(const Optimizer& optimizer, const Parameter& parameter);

// Return the form in which a checkpoint of this state saves the values of parameters that train, and of frozen ones
// (kFloat32 if there are none). Frozen ones in 4 bits have a form of their own, SavedValues::kNf4.
SavedValues SavedValuesOf(const JobState& state);
SavedValues FrozenValuesOf(const JobState& state);
// Returns the parameters of the model as a checkpoint of its state records them.
std::vector<SavedParameter> SavedParametersOf(const ModelGraph& model, const JobState& state);
// Returns whether the `states` of a parameter can be restored from a checkpoint in which it has those in `saved`:
// whether there are as many, and each is Convertible to one of them.
bool CanRestoreStates(absl::Span<const SavedState> saved, absl::Span<const SavedState> states);

// Saves, restores, reads and writes the persistent state of one rank. Borrows everything it is given. REQUIRES: no
// program that touches the same bytes runs meanwhile. Each rank's state may be used by a thread of its own.
class RankState {
 public:
  RankState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, RankRuntime& runtime);

  // Returns the pieces that this rank saves, either of the state itself or of its snapshot (StepOptions::snapshot).
  // Leaves out the parameters that are in_base in `manifest`, whose parameters must be those of SavedParametersOf.
  // Parts with wide elements come first. Parameters are numbered by ParameterId. The pieces point to the arena, or to
  // the rank's pinned memory if their state is offloaded.
  enum class Source { kState, kSnapshot };
  std::vector<PieceSource> Pieces(Source source, const Manifest& manifest) const;

  // Restores the part of the state that this rank holds. The checkpoint may come from any number of ranks, any strategy
  // and any kind of masters, but its parameters must be those of the model, in the same order. With `values_only`, sets
  // the values, the count of updates and the loss scale, and leaves the optimizer's states as they are; otherwise
  // CanRestoreStates must hold for each parameter's states. Rounds to nearest the values that this rank holds in bf16
  // or fp16 and the checkpoint in fp32. Reads each byte that it needs once, through `staging` (pinned, at least
  // kReadStagingBytes). Sets no values of parameters that the checkpoint leaves to its base: Fill must follow. Returns
  // FailedPrecondition if a parameter is stored in 4 bits in one of the two only, or if this rank computes in fp16 and
  // the checkpoint has values in bf16. After an error the state is undefined; a second Restore may repair it.
  absl::Status Restore(const CheckpointReader& checkpoint, bool values_only, absl::Span<char> staging);

  // Stores elements [begin, begin + out.size()) of a parameter in `out`.
  using ReadValues = absl::FunctionRef<absl::Status(const Parameter& parameter, int64_t begin, absl::Span<float> out)>;
  // Sets the weights and masters that this rank holds. Calls `read` for these elements only. Of a parameter that is
  // stored in 4 bits, it calls `read` for all elements if this rank holds some of them, because all blocks share a
  // mean. Returns InvalidArgument if such a parameter has a weight that is not finite. `staging` is pinned, and has at
  // least kLeastFillStagingBytes; with more, more threads find work. Bits depend neither on it nor on `threads`.
  struct FillOptions {
    bool frozen_only = false;  // Leaves parameters that train as they are.
    int threads = 1;           // With more than one, they call `read` at the same time.
    // If not null, set to a ValuesDigest of those elements of frozen parameters that this rank saves. The sum over all
    // ranks is the digest of all elements.
    uint64_t* digest_of_frozen = nullptr;
  };
  absl::Status Fill(ReadValues read_values, const FillOptions& options, absl::Span<char> staging);

  // Sets the weights and masters of the elements [begin, begin + values.size()) of a parameter that this rank holds.
  // Returns FailedPrecondition for a part of a parameter that is stored in 4 bits.
  absl::Status Write(ParameterId id, int64_t begin, absl::Span<const float> values);
  // Of the elements [begin, begin + values.size()) of a parameter, reads those that this rank updates. For kWeights it
  // reads the masters, or the weights if there are no masters; for kGradient the reduced gradient. Leaves the other
  // values alone. Returns how many elements it read. Returns FailedPrecondition for kGradient if gradients are not kept
  // (StepOptions::keep_gradients), or if the parameter is frozen.
  enum class Values { kWeights, kGradient };
  absl::StatusOr<int64_t> Read(Values what, ParameterId id, int64_t begin, absl::Span<float> values) const;
  // Returns FailedPrecondition if the parameter is frozen.
  absl::Status CheckTrains(ParameterId id) const;
  // Returns the states of the optimizer, SavedStatesOf(JobState), and how many elements one of them has of a parameter:
  // as many as the parameter, one for each block of its elements, or with Adafactor as its rows or columns. 0: the
  // parameter has no such state.
  const std::vector<SavedState>& states() const { return states_; }
  int64_t ElementsOf(int state, ParameterId id) const;
  // Write and read elements of a state of the optimizer in the same way, given by its place in states(). A state in
  // bf16 stores the nearest value. Return FailedPrecondition if the parameter is frozen. REQUIRES: the parameter has
  // the state, in f32 or bf16, and one scale is not for several elements.
  absl::Status WriteState(int state, ParameterId id, int64_t begin, absl::Span<const float> values);
  absl::StatusOr<int64_t> ReadState(int state, ParameterId id, int64_t begin, absl::Span<float> values) const;

  // Sets the manifest's update_count, previous_norm and loss_scale.
  absl::Status ReadScalars(Manifest& manifest) const;

 private:
  // Returns the elements of a parameter that lie in the range `of_group` of its group, numbered within the parameter.
  ElementRange OfParameter(ParameterId id, ElementRange of_group) const;
  // Returns the place in states() of the state of a group that a part of a checkpoint restores. REQUIRES:
  // CanRestoreStates holds.
  int RestoredBy(const Manifest& saved, SavedPart part, const GroupState& g) const;
  // Returns `declared_` of a job.
  static std::vector<int> DeclaredStates(const JobState& state);
  // Returns the one of JobState::states that a state is, or is a part of.
  const UpdateState& Declared(int64_t state) const { return state_.states[declared_[state]]; }
  // Returns where the elements of a state of a parameter lie among those of the group. Empty: it has none.
  ElementRange PlaceOf(int64_t state, ParameterId id) const;
  // Adds the pieces of a state that this rank saves.
  void AddStatePieces(const PartSpec& spec, Source source, const Manifest& manifest,
                      std::vector<PieceSource>& pieces) const;
  // Returns what this rank saves of each frozen parameter, by ParameterId.
  std::vector<std::vector<ElementRange>> SavedOfFrozen() const;
  std::byte* Address(const Tensor& tensor, int64_t element) const;
  // Return the elements of a group whose weights this rank holds, those that it updates, and those of a state.
  ElementRange Weights(const GroupState& g) const { return g.placement.Weights(runtime_.rank()); }
  ElementRange Owned(const GroupState& g) const { return g.placement.Owned(runtime_.rank()); }
  ElementRange Owned(const GroupState& g, const UpdateState& state) const;
  // Returns whether this rank holds values of the group as fp32, in masters or in weights. The halves of a SPLIT
  // checkpoint are then joined.
  bool JoinsFloats(const GroupState& g) const;
  // Calls Arena::MakeResident for the bytes that are about to be set, with or without the optimizer's states.
  void MakeResident(bool states);
  // Copy `count` elements of a tensor from host memory, and back (RankRuntime::Write and Read).
  absl::Status Store(const Tensor& tensor, int64_t element, const void* from, int64_t count);
  absl::Status Load(const Tensor& tensor, int64_t element, void* to, int64_t count) const;
  // Sets the loss scale, if the job has one. Without a saved one, it is the first.
  absl::Status StoreLossScale(const SavedLossScale& saved);
  // The part of some elements of a parameter that this rank updates.
  struct OwnedPart {
    ElementRange range;    // Numbered within the parameter. Empty if the rank updates none of them.
    int64_t at_owned = 0;  // The number of the first one among the elements of the group that the rank updates.
    int64_t size() const { return range.end - range.begin; }
  };
  OwnedPart OwnedPartOf(ParameterId id, ElementRange elements) const;
  // Return the tensor of a state of a parameter that trains, and the part of its elements that this rank updates.
  const Tensor& TensorOf(int64_t state, ParameterId id) const;
  OwnedPart OwnedPartOf(int state, ParameterId id, ElementRange elements) const;
  // Stores these elements of a tensor in f32, bf16 or f16 at `to`, joined with `low` if that is present. Returns their
  // count.
  absl::StatusOr<int64_t> LoadFloats(const Tensor& from, const Tensor& low, const OwnedPart& own, float* to) const;
  // Copies elements to GroupState::host_weight, if that is a tensor of its own. `of_own` numbers them among those that
  // the rank updates; without it, copies all of these.
  absl::Status CopyToHostWeight(const GroupState& g, std::optional<ElementRange> of_own = std::nullopt);
  // The functions below set state in the arena or in the rank's pinned memory. `work` points to kWorkBytes bytes,
  // preferably pinned, for elements on their way there.
  static constexpr int64_t kWorkBytes = kReadStagingBytes - kCheckpointChunkBytes;
  static constexpr int64_t kWorkFloats = kWorkBytes / sizeof(float);
  // Returns how many of these bytes `count` elements need.
  static int64_t WorkBytesFor(int64_t count) { return std::min(kWorkFloats, count) * int64_t{sizeof(float)}; }
  absl::Status ZeroValues(const GroupState& g, char* work);
  // Stores elements of a state, converted from dtype `saved` to that of `to`.
  absl::Status PutState(const Tensor& to, int64_t element, DType saved, const char* bytes, int64_t count, char* work);
  // Sets the codes of 8-bit states in the gaps between parameters to those that an update leaves there. No checkpoint
  // holds these codes.
  absl::Status ZeroCodesBetweenParameters(char* work);
  absl::Status Put(const Manifest& saved, const ShardPiece& piece, const char* bytes, char* work);
  absl::Status PutValues(const GroupState& g, int64_t flat, const float* values, int64_t count, char* work);
  // Sets the elements `wanted` of a parameter, which is not in 4 bits (rank_state_fill.cc).
  absl::Status FillValues(const Parameter& parameter, ElementRange wanted, ReadValues read, cpu::Team& team,
                          StagedFill& out);
  absl::Status PutHalf(const GroupState& g, int64_t flat, SavedPart half, const uint16_t* bits, int64_t count,
                       char* work);
  absl::Status AddHalf(const Tensor& to, int64_t element, SavedPart half, const uint16_t* bits, int64_t count,
                       char* work);

  // The functions below are for groups in 4 bits (rank_state_fill.cc). Nf4Address returns where an element of a part of
  // a row lies, given the number in the group of the first weight that the element is for.
  std::byte* Nf4Address(const GroupState& g, SavedPart part, int64_t flat) const;
  // Returns the weights that this rank holds of a range of the group, as pieces that each lie in one row.
  std::vector<ElementRange> HeldNf4(const GroupState& g, ElementRange of_group) const;
  // Quantizes a parameter, of which `read` reads all elements: first the weights, which gives the absmax of all blocks,
  // and then these, which share a mean.
  absl::Status FillNf4(const Parameter& parameter, ReadValues read, cpu::Team& team, StagedFill& out);
  absl::Status FillNf4Codes(const Parameter& parameter, ReadValues read, cpu::Team& team, StagedFill& out,
                            absl::Span<float> absmax);
  absl::Status FillNf4Scales(const Parameter& parameter, absl::Span<const float> absmax, cpu::Team& team,
                             StagedFill& out);
  absl::Status WriteNf4(const Parameter& parameter, int64_t begin, absl::Span<const float> values);
  absl::Status PutNf4(const GroupState& g, int64_t offset, const ShardPiece& piece, const char* bytes);
  // Dequantizes the weights of a group from number `flat` on.
  absl::Status ReadNf4(const GroupState& g, int64_t flat, absl::Span<float> out) const;

  const ModelGraph& model_;
  const JobState& state_;
  const MemoryPlan& plan_;
  RankRuntime& runtime_;
  const std::vector<SavedState> states_;  // SavedStatesOf(state_).
  const std::vector<int> declared_;       // By place in states(): that in JobState::states.
};

// Returns the pinned staging memory of a rank, or InvalidArgument if it has fewer than `bytes` bytes.
absl::StatusOr<absl::Span<char>> StagingOf(RankRuntime& rank, int64_t bytes);

// CRC-32Cs of a rank's weights, masters and optimizer states, by who holds the same. One wrong bit always changes them.
struct StateDigest {
  uint32_t everywhere = 0;  // What every rank holds. The CRC of nothing under FULL_SHARD.
  uint32_t column = 0;      // The rank's shards, which the other ranks of its column of the mesh hold too, if any.
  bool operator==(const StateDigest&) const = default;
};

// Reads the state of a rank in the persistent buffers of a program with this plan: all of it, or only that of which
// other ranks hold copies. Call it on the rank's launching thread while no program runs, or while it pauses. Returns
// the errors of the device.
enum class Digested { kAll, kReplicas };
absl::StatusOr<StateDigest> DigestOfState(Digested what, const JobState& state, const MemoryPlan& plan,
                                          RankRuntime& rank);

// Returns the first instruction of a step, in issue order, that writes to the state, or -1 if none does. Until then the
// state is what the last step has left.
InstructionId FirstWriteOfState(const JobState& state, const StepProgram& program);

}  // namespace shale
