// Checkpoints: reading one, finding the newest or the best, and writing its parameters to a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/manifest.h"

namespace shale {

class InputFile;         // engine/files/io/file.h
class StoredBaseValues;  // engine/files/checkpoint/base_values.h
struct ElementRange;     // kernels/element_range.h
struct ShardHeader;      // engine/files/checkpoint/shard_header.h, as is ShardPiece.
struct ShardPiece;

// Reads the manifest of the checkpoint in `folder`. Errors name the file: NotFound if the folder or its MANIFEST is
// missing, InvalidArgument if the MANIFEST is not a regular file, otherwise those of ParseManifest.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// A checkpoint of adapters leaves the parameters of their base, the frozen model, in its Hugging Face folder. This
// function reads elements [begin, begin + out.size()) of such a parameter, as that folder holds them.
using ReadBase = std::function<absl::Status(absl::string_view parameter, int64_t begin, absl::Span<float> out)>;

// A checkpoint whose manifest and shard headers have been verified. Tensor data is read and verified on demand.
// Immutable: any number of threads may read, each with a staging buffer of its own.
class CheckpointReader {
 public:
  // Reads the manifest and the header of every shard. Checks that the folder holds exactly the files in the manifest,
  // each a regular file (not a link) of the recorded size, and that every element of every part of every parameter is
  // present exactly once. Errors name the path: NotFound if the folder, its MANIFEST or a shard is missing;
  // InvalidArgument if something is damaged or does not belong there; Unimplemented for another version.
  static absl::StatusOr<CheckpointReader> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // Returns the size of all shard files together.
  int64_t size_bytes() const;
  // Returns the index into manifest().parameters, or -1 if there is no such parameter.
  int FindParameter(absl::string_view name) const;
  // Returns how many elements a part of a parameter has. A state that keeps one element per block has fewer than the
  // parameter, and states of a frozen parameter have none.
  int64_t ElementsOf(SavedPart part, const SavedParameter& parameter) const;

  // Verifies every byte. Returns DataLoss that names the first 20 problems, and says how many more there are.
  // VerifyCheckpoint in engine/files/checkpoint/store.h also examines checkpoints that Open refuses.
  absl::Status Verify(absl::Span<char> staging) const;

  // The functions below are for the engine. engine/files/checkpoint/shard_header.h completes their types.

  // Returns the headers of the shards, in rank order.
  const std::vector<ShardHeader>& shards() const { return *shards_; }
  // Reads the requested elements and passes them to `sink`. `wanted(piece)` returns the range of the part's elements to
  // read from that piece (empty: none). `sink` gets them with their bytes, in subranges of these pieces, each of which
  // lies within one chunk. Chunks without requested elements are not read; every other chunk is read once, and verified
  // before `sink` gets any of its bytes. `staging`, of at least kCheckpointChunkBytes, is the only buffer. Returns
  // DataLoss, with file and byte range, if a chunk is damaged, or the first error of `sink`.
  absl::Status Stream(absl::FunctionRef<ElementRange(const ShardPiece&)> wanted,
                      absl::FunctionRef<absl::Status(const ShardPiece&, const char*)> sink,
                      absl::Span<char> staging) const;

  // Reads a chunk of a shard file into `out` and verifies it. Returns the chunk's bytes, at the start of `out`.
  absl::StatusOr<absl::string_view> ReadChunk(int64_t rank, int64_t chunk, absl::Span<char> out) const;

 private:
  CheckpointReader() = default;
  absl::Status OpenFiles();
  absl::Status CheckCoverage() const;
  // Opens the shard file of a rank. Files are opened anew for each use, because a checkpoint may have more files than a
  // process may hold open.
  absl::StatusOr<InputFile> OpenShard(int64_t rank) const;

  std::string folder_;
  Manifest manifest_;
  std::shared_ptr<const std::vector<ShardHeader>> shards_;
  absl::flat_hash_map<std::string, int> parameter_index_;
};

// Reads the state of parameters in any order, converted to fp32 from the form in which it was saved. Meant for export
// to other formats and for inspection. Caches a few chunks (16 MiB), so that a sequence of small reads costs one read
// of the file. Borrows the reader. Used by one thread at a time.
class CheckpointValues {
 public:
  // `base` reads the parameters that the checkpoint leaves to its base. Without it, Read refuses these.
  explicit CheckpointValues(const CheckpointReader& reader, ReadBase base = nullptr);
  ~CheckpointValues();
  const CheckpointReader& reader() const { return reader_; }

  // Fills `out` with elements [begin, begin + out.size()) of a part of a parameter. `part` must be kValue or a state of
  // the optimizer. kValue means the master weights if there are any (joined from kHigh and kLow if they were saved in
  // that form), and otherwise the weights, dequantized if they were saved in 4 bits. Values of the base are those that
  // the run computes with (StoredBaseValues). 8-bit states are read as their codes, 0 to 255. Returns NotFound for an
  // unknown name, OutOfRange for elements that the part does not have, DataLoss for a damaged chunk, FailedPrecondition
  // for a value of a base that is not given.
  absl::Status Read(SavedPart part, absl::string_view parameter, int64_t begin, absl::Span<float> out);
  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return Read(SavedPart::kValue, parameter, begin, out);
  }

 private:
  struct StoredRange;  // A range of elements, and its place in a file.
  struct Chunk {
    int64_t rank = -1;
    int64_t index = -1;
    int64_t used = 0;  // Value of clock_ when last used.
    std::unique_ptr<char[]> bytes;
  };
  // Returns where the elements of a part of a parameter lie, sorted by range.
  std::vector<StoredRange>& StoredRanges(SavedPart part, int64_t parameter);
  // Passes elements [begin, begin + elements) of a part of a parameter to `sink`, as they lie in the file. `at` counts
  // from `begin`.
  absl::Status ReadPart(SavedPart part, int64_t parameter, int64_t begin, int64_t elements,
                        absl::FunctionRef<void(int64_t at, const char* bytes, int64_t count)> sink);
  // Reads the values of a parameter of the base.
  absl::Status ReadFromBase(const SavedParameter& parameter, int64_t begin, absl::Span<float> out);
  // Reads the values of a parameter that was saved in 4 bits.
  absl::Status ReadNf4(int64_t parameter, int64_t begin, absl::Span<float> out);
  // Returns the bytes of a chunk, which are valid until the next call. Reads the chunk if it is not cached.
  absl::StatusOr<const char*> Fetch(int64_t rank, int64_t index);

  const CheckpointReader& reader_;
  const ReadBase base_;
  std::unique_ptr<StoredBaseValues> of_base_;     // The values of the base's parameter that was read last.
  const int64_t parts_;                           // Number of parts that a checkpoint with these states may have.
  std::vector<std::vector<StoredRange>> stored_;  // By parameter, then by part.
  std::vector<Chunk> cache_;
  int64_t clock_ = 0;
};

// Which checkpoint of a run was used.
struct NewestCheckpoint {
  std::string path;                      // Empty if there is no checkpoint at all.
  std::vector<std::string> passed_over;  // One message per newer, or better, checkpoint that is damaged.
};

// Calls `use` with the checkpoints in `folder`, newest first, until a call succeeds. Skips a checkpoint if opening it
// or `use` fails with an error that means damage (DataLoss, InvalidArgument, NotFound), or if it holds another step
// than its folder's name says. Returns any other error. Returns DataLoss with all reasons if there are checkpoints and
// every one is damaged.
absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

// Which checkpoint of a run is meant. The best one has the lowest loss of an evaluation (checkpoint.keep_best).
enum class WhichCheckpoint { kNewest, kBest };
// Parses "newest" or "best". Returns InvalidArgument, with the allowed values, for any other text.
absl::StatusOr<WhichCheckpoint> ParseWhichCheckpoint(absl::string_view text);

// Does what UseNewestCheckpoint does, with the newest or the best checkpoint first. Returns NotFound if the best is
// wanted, and there are checkpoints but none with the loss of an evaluation.
absl::StatusOr<NewestCheckpoint> UseCheckpoint(WhichCheckpoint which, const std::string& folder,
                                               absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

// Writes every parameter of a checkpoint, of any model, to a safetensors file at `path`: under the engine's name, in
// fp32, or rounded to nearest even to bf16 or fp16. Takes the master weights if the checkpoint has any. The file
// appears complete or not at all. Streams: memory does not grow with the model. Returns InvalidArgument for another
// dtype, DataLoss for a damaged checkpoint, and the errors of SafetensorsWriter. `base` is as for CheckpointValues.
absl::Status ExportParameters(const CheckpointReader& checkpoint, DType dtype, const std::string& path,
                              ReadBase base = nullptr);

}  // namespace shale
