#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/check.h"

namespace shale {
namespace {

static_assert(std::endian::native == std::endian::little, "data is read as it lies in the file");

constexpr int64_t kLengthBytes = 8;

// IEEE half precision: 1 sign bit, 5 exponent bits (bias 15), 10 bits of fraction.
float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F;
  const uint32_t fraction = half & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);  // Infinity or NaN.
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // Zero or subnormal.
  return sign != 0 ? -magnitude : magnitude;
}

float BFloat16ToFloat(uint16_t bits) { return ToFloat(BFloat16{bits}); }

absl::Status OutOfRange(const SafetensorsTensor& tensor, int64_t begin, size_t count, int64_t size, const char* unit) {
  return absl::OutOfRangeError(
      absl::StrCat("tensor ", tensor.name, " has ", size, " ", unit, "; asked for ", count, " from number ", begin));
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a valid safetensors file: ", what...));
  };
  if (file.size() < kLengthBytes) return refuse("it has ", file.size(), " bytes, too few for the length of a header");
  uint64_t header_bytes = 0;
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, &header_bytes, kLengthBytes));
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return refuse("its header claims ", header_bytes, " bytes; at most ", kMaxSafetensorsHeaderBytes, " are allowed");
  }
  if (header_bytes > static_cast<uint64_t>(file.size() - kLengthBytes)) {
    return refuse("its header claims ", header_bytes, " bytes, but only ", file.size() - kLengthBytes, " follow");
  }
  std::string json(header_bytes, '\0');
  SHALE_RETURN_IF_ERROR(file.ReadAt(kLengthBytes, json.data(), json.size()));

  SafetensorsReader reader(std::move(file));
  reader.data_begin_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, reader.file_.size() - reader.data_begin_);
  if (!header.ok()) return refuse(header.status().message());
  reader.tensors_ = std::move(header->tensors);
  reader.metadata_ = std::move(header->metadata);
  for (size_t i = 0; i < reader.tensors_.size(); ++i) reader.index_[reader.tensors_[i].name] = i;
  return reader;
}

const SafetensorsTensor* SafetensorsReader::Find(absl::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsReader::Read(const SafetensorsTensor& tensor, int64_t begin, absl::Span<char> out) const {
  const int64_t size = out.size();
  if (begin < 0 || size > tensor.size_bytes() || begin > tensor.size_bytes() - size) {
    return OutOfRange(tensor, begin, out.size(), tensor.size_bytes(), "bytes");
  }
  return file_.ReadAt(data_begin_ + tensor.begin + begin, out.data(), size);
}

absl::Status SafetensorsReader::ReadFloat32(const SafetensorsTensor& tensor, int64_t begin,
                                            absl::Span<float> out) const {
  const int64_t size = out.size();
  const int64_t elements = tensor.elements();
  if (begin < 0 || size > elements || begin > elements - size) {
    return OutOfRange(tensor, begin, out.size(), elements, "elements");
  }
  if (tensor.dtype == SafetensorsDType::kF32) {
    return Read(tensor, begin * 4, absl::MakeSpan(reinterpret_cast<char*>(out.data()), size * 4));
  }
  if (tensor.dtype != SafetensorsDType::kF16 && tensor.dtype != SafetensorsDType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor ", tensor.name, " is of dtype ",
                                                   ToString(tensor.dtype), "; expected F32, F16 or BF16"));
  }
  constexpr int64_t kChunk = 4096;
  uint16_t buffer[kChunk];
  for (int64_t at = 0; at < size; at += kChunk) {
    const int64_t count = std::min(kChunk, size - at);
    SHALE_RETURN_IF_ERROR(Read(tensor, (begin + at) * 2, absl::MakeSpan(reinterpret_cast<char*>(buffer), count * 2)));
    std::transform(buffer, buffer + count, out.data() + at,
                   tensor.dtype == SafetensorsDType::kF16 ? HalfToFloat : BFloat16ToFloat);
  }
  return absl::OkStatus();
}

}  // namespace shale
