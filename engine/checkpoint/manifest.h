// The manifest of a checkpoint: the state of a run but for its tensors, and the files that hold those.
//
// A checkpoint is a folder:
//
//   MANIFEST                     this
//   rank-00000-of-00002.shard    what rank 0 owned (engine/checkpoint/shard_header.h)
//   rank-00001-of-00002.shard
//
// State is recorded by parameter name and range of the parameter's elements, never by offset in anybody's memory: so
// that a checkpoint can be read by any number of ranks, under any strategy, schedule or kind of master weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr char kManifestName[] = "MANIFEST";
// A checksum covers this many bytes of a shard file; also what reading and writing one holds in memory at a time.
inline constexpr int64_t kCheckpointChunkBytes = int64_t{4} << 20;

// What is saved of every parameter, element by element. Numbers are part of the format.
enum class SavedPart : uint8_t {
  kValue = 1,         // f32: the master, or the weight of a run in fp32.
  kHigh = 2,          // bf16: the weight under SPLIT masters,
  kLow = 3,           // i16: and the bits below it (JoinMaster in kernels/dtype.h).
  kFirstMoment = 4,   // f32, AdamW's m.
  kSecondMoment = 5,  // f32, AdamW's v.
};
absl::string_view ToString(SavedPart part);
constexpr int64_t BytesPerElement(SavedPart part) {
  return part == SavedPart::kHigh || part == SavedPart::kLow ? 2 : 4;
}

// In which form the values of a checkpoint are saved: all parameters in the same.
enum class SavedValues : uint8_t {
  kFloat32,  // kValue.
  kSplit,    // kHigh and kLow.
};
absl::string_view ToString(SavedValues values);
// The parts that a checkpoint of this form has.
std::vector<SavedPart> PartsOf(SavedValues values);

struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;

  int64_t elements() const;
  bool operator==(const SavedParameter&) const = default;
};

// Whatever would make the same position in the data mean another sample.
struct SavedData {
  int64_t samples_per_epoch = 0;
  int64_t sequence_length = 0;  // Tokens.
  bool shuffled = false;
  uint64_t seed = 0;
  std::string tokenizer;  // Names it, so that two can be told apart.

  bool operator==(const SavedData&) const = default;
};

struct SavedFile {
  std::string name;  // In the checkpoint's folder.
  int64_t size_bytes = 0;
  std::vector<uint32_t> chunk_crcs;  // CRC-32C of each kCheckpointChunkBytes; the last chunk is what is left.

  bool operator==(const SavedFile&) const = default;
};

struct Manifest {
  int64_t step = 0;          // Optimizer steps done.
  int64_t tokens = 0;        // Valid target tokens so far.
  int64_t samples = 0;       // Samples taken so far, over all epochs.
  int64_t update_count = 0;  // Updates applied: steps less those that were left out.
  uint64_t seed = 0;         // Of everything random; generators are counters and have no other state.
  std::string job;           // The resolved job, as text.
  SavedData data;
  int64_t ranks = 0;  // Files. What follows them is for people.
  std::string strategy, schedule;
  SavedValues values = SavedValues::kFloat32;
  std::vector<SavedParameter> parameters;
  std::vector<SavedFile> files;  // By rank.

  uint32_t job_crc() const;  // The job's digest.
  bool operator==(const Manifest&) const = default;
};

// "rank-00003-of-00008.shard".
std::string ShardFileName(int64_t rank, int64_t ranks);

// The bytes of a MANIFEST: "SHALEMAN", u32 version, u32 CRC-32C of the rest, u64 length, message.
std::string SerializeManifest(const Manifest& manifest);

// Any bytes are fine as input. InvalidArgument (without a path) for what is no manifest, is damaged, or contradicts
// itself: counts below zero or above 2^60, more parameters or files than below, a shape whose elements cannot be
// counted, a name used twice, a file that is not named as ShardFileName says or has another number of checksums than
// its size asks for. Unimplemented for another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);

// The largest MANIFEST that is read, and what it may have of each. Checked before anything is built.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxSavedParameters = int64_t{1} << 18;
inline constexpr int64_t kMaxSavedFiles = int64_t{1} << 20;

}  // namespace shale
