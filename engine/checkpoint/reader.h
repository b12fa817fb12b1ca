// Reads a checkpoint, by parameter and range.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/shard_header.h"
#include "engine/io/file.h"

namespace shale {

// The manifest of the checkpoint in `folder`. Errors name the file: NotFound for no such folder or no MANIFEST in it,
// InvalidArgument or Unimplemented as ParseManifest.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// A checkpoint whose manifest and heads are known to be whole; data is read and verified on demand. Immutable: any
// thread may read, each with a staging buffer of its own.
class CheckpointReader {
 public:
  // Reads the manifest and the head of every shard, and checks that the folder holds exactly the files of the manifest,
  // each a regular file (no link) of the recorded size, and that every element of every part of every parameter is
  // there once. Errors, all with the path of the file: NotFound for no such folder or no MANIFEST in it,
  // InvalidArgument or Unimplemented for what is damaged, foreign or of another version.
  static absl::StatusOr<CheckpointReader> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<ShardHeader>& shards() const { return shards_; }  // By rank.
  // Of the shard files.
  int64_t size_bytes() const;
  // Index into manifest().parameters; -1: none.
  int FindParameter(absl::string_view name) const;

  // Streams what is wanted: `wanted(piece)` gives the elements of a piece that are wanted (empty: none); `sink` gets
  // them in pieces that fit a chunk, with their bytes. Chunks that hold nothing wanted are not read, every other is
  // read once and verified before a byte of it is handed out. `staging`, of at least kCheckpointChunkBytes, is all the
  // memory it takes. DataLoss, with file and place, for a chunk that is damaged.
  absl::Status Stream(absl::FunctionRef<ElementRange(const ShardPiece&)> wanted,
                      absl::FunctionRef<absl::Status(const ShardPiece&, const char*)> sink,
                      absl::Span<char> staging) const;

  // Reads a chunk of a shard file and verifies it; the bytes are at the start of `out`.
  absl::StatusOr<absl::string_view> ReadChunk(int64_t rank, int64_t chunk, absl::Span<char> out) const;

  // Verifies every byte. DataLoss names each damaged chunk (the first 20, and how many more). VerifyCheckpoint in
  // engine/checkpoint/verify.h goes on where Open refuses.
  absl::Status Verify(absl::Span<char> staging) const;

 private:
  CheckpointReader() = default;
  absl::Status OpenFiles();
  absl::Status CheckCoverage() const;
  // Opened for each use: a checkpoint may have more files than a process may hold open.
  absl::StatusOr<InputFile> OpenShard(int64_t rank) const;

  std::string folder_;
  Manifest manifest_;
  std::vector<ShardHeader> shards_;
  absl::flat_hash_map<std::string, int> parameter_index_;
};

// The state of parameters in any order, as fp32 whatever form it was saved in: for writing it in another format, or for
// looking at it. Keeps a few chunks (16 MiB), so that runs of small reads cost one read of the file. Borrows the
// reader. One thread.
class CheckpointValues {
 public:
  explicit CheckpointValues(const CheckpointReader& reader);

  // Elements [begin, begin + out.size()) of a parameter. `part` is kFirstMoment, kSecondMoment, or kValue: masters
  // where there are any (put together if they were saved in halves), else weights. NotFound for an unknown name,
  // OutOfRange, DataLoss as in CheckpointReader.
  absl::Status Read(SavedPart part, absl::string_view parameter, int64_t begin, absl::Span<float> out);
  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return Read(SavedPart::kValue, parameter, begin, out);
  }

 private:
  struct Place {
    ElementRange range;
    int64_t rank = 0;
    int64_t offset_bytes = 0;
  };
  struct Chunk {
    int64_t rank = -1;
    int64_t index = -1;
    int64_t used = 0;  // When.
    std::unique_ptr<char[]> bytes;
  };
  // Where elements of a part lie, sorted.
  std::vector<Place>& Places(SavedPart part, int64_t parameter);
  absl::Status ReadPart(SavedPart part, int64_t parameter, int64_t begin, int64_t elements,
                        absl::FunctionRef<void(int64_t at, const char* bytes, int64_t count)> sink);
  absl::StatusOr<const char*> Fetch(int64_t rank, int64_t index);

  const CheckpointReader& reader_;
  std::vector<std::vector<Place>> places_;
  std::vector<Chunk> cache_;
  int64_t clock_ = 0;
};

}  // namespace shale
