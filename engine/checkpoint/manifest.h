// The manifest of a checkpoint: the state of a run without its tensors, and the files that hold the tensors.
//
// A checkpoint is a folder:
//
//   MANIFEST                     the manifest
//   rank-00000-of-00002.shard    what rank 0 owned (engine/checkpoint/shard_header.h)
//   rank-00001-of-00002.shard
//
// State is recorded by parameter name and range of the parameter's elements, never by an offset in memory. Therefore
// any number of ranks can read a checkpoint, under any strategy, schedule or kind of master weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr char kManifestName[] = "MANIFEST";
// The bytes of a shard file that one checksum covers. A shard file is read and written in chunks of this size.
inline constexpr int64_t kCheckpointChunkBytes = int64_t{4} << 20;

// The parts of a parameter, each saved element by element. The numbers are part of the file format.
enum class SavedPart : uint8_t {
  kValue = 1,         // f32: the master weight, or the weight of a run in fp32.
  kHigh = 2,          // bf16: the weight under SPLIT masters.
  kLow = 3,           // i16: the bits below kHigh (JoinMaster in kernels/dtype.h).
  kFirstMoment = 4,   // f32: AdamW's m.
  kSecondMoment = 5,  // f32: AdamW's v.
};
absl::string_view ToString(SavedPart part);
constexpr int64_t BytesPerElement(SavedPart part) {
  return part == SavedPart::kHigh || part == SavedPart::kLow ? 2 : 4;
}

// The form in which values are saved. The same for all parameters of a checkpoint.
enum class SavedValues : uint8_t {
  kFloat32,  // kValue.
  kSplit,    // kHigh and kLow.
};
absl::string_view ToString(SavedValues values);
// Returns the parts that a checkpoint of this form has, in the order in which they are saved: wide elements first.
std::vector<SavedPart> PartsOf(SavedValues values);

struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;

  int64_t elements() const;
  bool operator==(const SavedParameter&) const = default;
};

// Everything that decides which sample a position in the data means.
struct SavedData {
  int64_t samples_per_epoch = 0;
  int64_t sequence_length = 0;  // Tokens.
  bool shuffled = false;
  uint64_t seed = 0;
  std::string tokenizer;  // Distinguishes one tokenizer from another.

  bool operator==(const SavedData&) const = default;
};

struct SavedFile {
  std::string name;  // Within the checkpoint's folder.
  int64_t size_bytes = 0;
  std::vector<uint32_t> chunk_crcs;  // CRC-32C of each kCheckpointChunkBytes; the last chunk may be shorter.

  bool operator==(const SavedFile&) const = default;
};

struct Manifest {
  int64_t step = 0;          // Optimizer steps done.
  int64_t tokens = 0;        // Valid target tokens so far.
  int64_t samples = 0;       // Samples taken so far, over all epochs.
  int64_t update_count = 0;  // Updates applied: steps minus skipped updates.
  uint64_t seed = 0;         // Seed of everything random; the generators are counters without other state.
  std::string job;           // The resolved job as textproto.
  SavedData data;
  int64_t ranks = 0;               // The number of files.
  std::string strategy, schedule;  // For people; reading a checkpoint does not depend on them.
  SavedValues values = SavedValues::kFloat32;
  std::vector<SavedParameter> parameters;
  std::vector<SavedFile> files;  // In rank order.

  uint32_t job_crc() const;  // CRC-32C of `job`.
  bool operator==(const Manifest&) const = default;
};

// Returns a name such as "rank-00003-of-00008.shard".
std::string ShardFileName(int64_t rank, int64_t ranks);

// Returns the bytes of a MANIFEST: "SHALEMAN", u32 version, u32 CRC-32C of everything else, u64 length, message.
std::string SerializeManifest(const Manifest& manifest);

// Accepts any bytes. Returns InvalidArgument, without a path, for bytes that are not a manifest, are damaged, or
// contradict themselves: negative counts or counts above 2^60, more parameters or files than the limits below, a shape
// whose elements cannot be counted, a name used twice, a file with another name than ShardFileName gives or with
// another number of checksums than its size requires. Returns Unimplemented for another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);

// Limits of a MANIFEST that is read: its size, and its number of parameters and of files. All are checked before
// anything is built.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxSavedParameters = int64_t{1} << 18;
inline constexpr int64_t kMaxSavedFiles = int64_t{1} << 20;

}  // namespace shale
