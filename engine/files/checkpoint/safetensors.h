// Reads and writes safetensors files. They hold named tensors; Hugging Face and most others store weights in them.
//
//   u64 N | N bytes of JSON, padded with spaces | the data of all tensors, in order and without gaps
//
// All numbers are little-endian, like every machine that this builds for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/io/file.h"
#include "kernels/dtype.h"

namespace shale {

// The element types of the format. The name in files is what follows the k ("F8_E4M3").
enum class SafetensorsDType : uint8_t {
  kF4,
  kF6_E2M3,
  kF6_E3M2,
  kBOOL,
  kU8,
  kI8,
  kF8_E5M2,
  kF8_E4M3,
  kF8_E8M0,
  kF8_E5M2FNUZ,
  kF8_E4M3FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64,
};

absl::string_view ToString(SafetensorsDType dtype);
int BitsPerElement(SafetensorsDType dtype);
// Returns the element type that the format has for this dtype.
SafetensorsDType SafetensorsDTypeOf(DType dtype);

// A tensor and its place in the file's data.
struct SafetensorsTensor {
  std::string name;
  SafetensorsDType dtype = SafetensorsDType::kF32;
  std::vector<int64_t> shape;  // Empty: one element. With a dimension of 0: no elements.
  int64_t begin = 0;           // Bytes from the start of the data, as is `end`.
  int64_t end = 0;

  int64_t size_bytes() const { return end - begin; }
  int64_t elements() const;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// Reads a file, which need not be trusted. Open reads and checks only the header; tensors are read on demand, so that
// memory does not grow with the file. Safe for concurrent reads by any number of threads.
class SafetensorsReader {
 public:
  // Returns InvalidArgument, with the path and the reason, for everything that the format does not allow: a header that
  // is longer than the file or than 100,000,000 bytes, is not UTF-8, not JSON or not an object with the expected
  // members, or uses a name twice; tensors that overlap, leave gaps, differ in size from what shape and dtype require,
  // or do not fill the file exactly. Also returns it for a file that exceeds the limits below.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  // Returns the tensors in the order in which they lie in the data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Returns the tensor of that name, which lives as long as the reader, or null if there is none.
  const SafetensorsTensor* Find(absl::string_view name) const;

  // Fills `out` with bytes [begin, begin + out.size()) of a tensor. Returns OutOfRange if the tensor does not have that
  // many bytes.
  absl::Status Read(const SafetensorsTensor& tensor, int64_t begin, absl::Span<char> out) const;

  // Fills `out` with elements [begin, begin + out.size()) of an F32, F16 or BF16 tensor. The conversion to float is
  // exact. Returns InvalidArgument for another dtype, OutOfRange if the tensor does not have that many elements.
  absl::Status ReadFloat32(const SafetensorsTensor& tensor, int64_t begin, absl::Span<float> out) const;

 private:
  explicit SafetensorsReader(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
  SafetensorsMetadata metadata_;
};

// Writes a file that appears complete or not at all (see DurableFile). Create takes the list of tensors. Append then
// takes the bytes of each tensor in order, in pieces of any size; calls for different tensors may be interleaved. Used
// by one thread at a time.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;  // UTF-8, not "__metadata__".
    SafetensorsDType dtype = SafetensorsDType::kF32;
    std::vector<int64_t> shape;
  };

  // Lays the data out with the widest dtypes first, so that every tensor is aligned, and tensors of equal width by
  // name. Returns InvalidArgument for metadata or a name that is not UTF-8, a name that occurs twice or is not allowed,
  // a negative dimension, more than 64 dimensions, more bytes than can be counted, or a header that is too long.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   absl::Span<const Entry> entries,
                                                                   const SafetensorsMetadata& metadata);

  // Appends bytes to one tensor. Returns NotFound for an unknown name, OutOfRange for more bytes than the tensor has.
  absl::Status Append(absl::string_view name, absl::string_view bytes);
  // Appends elements to one tensor: unchanged as F32, or rounded to nearest even as BF16 or F16. Returns
  // InvalidArgument for another dtype, OutOfRange for a finite element that F16 cannot hold.
  absl::Status AppendFloat32(absl::string_view name, absl::Span<const float> values);

  // Flushes the file and makes it appear at its path. Returns FailedPrecondition, with names, if a tensor is
  // incomplete.
  absl::Status Finish();

 private:
  struct Tensor {
    SafetensorsTensor place;
    int64_t written_bytes = 0;
  };

  explicit SafetensorsWriter(DurableFile file) : file_(std::move(file)) {}
  absl::StatusOr<Tensor*> FindTensor(absl::string_view name);

  DurableFile file_;
  int64_t data_begin_ = 0;
  absl::flat_hash_map<std::string, Tensor> tensors_;
};

// The largest header size, N, that implementations agree to accept.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr int kMaxSafetensorsDimensions = 64;
// Limits of the entries of __metadata__, of which real files have a few, and of the tensors. They bound memory, because
// an entry or a tensor takes up to ten times as much in memory as in the file. A mixture of experts of 670B parameters
// with one tensor per expert has 90,000 tensors.
constexpr int kMaxSafetensorsMetadata = 1 << 16;
constexpr int kMaxSafetensorsTensors = 1 << 18;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // In the order in which they lie in the data.
  SafetensorsMetadata metadata;
};

// Parses and checks a header that `data_bytes` bytes of data follow. Accepts any bytes. Returns InvalidArgument,
// without the path, for every header that SafetensorsReader::Open refuses.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes);

// Returns the dtype of that name, or nothing if the format has none of that name.
std::optional<SafetensorsDType> FindSafetensorsDType(absl::string_view name);

// Returns the size of a tensor in bytes. Returns InvalidArgument if it is not a whole number of bytes, or too large to
// count.
absl::StatusOr<int64_t> SafetensorsBytes(SafetensorsDType dtype, absl::Span<const int64_t> shape);

// Returns the header as JSON, padded with spaces so that the data after it is aligned to 8 bytes.
std::string SafetensorsHeaderText(const SafetensorsHeader& header);

}  // namespace shale
