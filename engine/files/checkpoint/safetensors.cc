#include "engine/files/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "kernels/dtype.h"

namespace shale {
namespace {

struct DTypeRow {
  SafetensorsDType dtype;
  absl::string_view name;
  int bits;
};

constexpr DTypeRow kDTypes[] = {
    {SafetensorsDType::kF4, "F4", 4},
    {SafetensorsDType::kF6_E2M3, "F6_E2M3", 6},
    {SafetensorsDType::kF6_E3M2, "F6_E3M2", 6},
    {SafetensorsDType::kBOOL, "BOOL", 8},
    {SafetensorsDType::kU8, "U8", 8},
    {SafetensorsDType::kI8, "I8", 8},
    {SafetensorsDType::kF8_E5M2, "F8_E5M2", 8},
    {SafetensorsDType::kF8_E4M3, "F8_E4M3", 8},
    {SafetensorsDType::kF8_E8M0, "F8_E8M0", 8},
    {SafetensorsDType::kF8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {SafetensorsDType::kF8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {SafetensorsDType::kI16, "I16", 16},
    {SafetensorsDType::kU16, "U16", 16},
    {SafetensorsDType::kF16, "F16", 16},
    {SafetensorsDType::kBF16, "BF16", 16},
    {SafetensorsDType::kI32, "I32", 32},
    {SafetensorsDType::kU32, "U32", 32},
    {SafetensorsDType::kF32, "F32", 32},
    {SafetensorsDType::kI64, "I64", 64},
    {SafetensorsDType::kU64, "U64", 64},
    {SafetensorsDType::kF64, "F64", 64},
    {SafetensorsDType::kC64, "C64", 64},
};

static_assert(std::endian::native == std::endian::little, "data is read as it lies in the file");

constexpr int64_t kLengthBytes = 8;

float Float16ToFloat(uint16_t bits) { return ToFloat(Float16{bits}); }
float BFloat16ToFloat(uint16_t bits) { return ToFloat(BFloat16{bits}); }

absl::Status OutOfRange(const SafetensorsTensor& tensor, int64_t begin, size_t count, int64_t size, const char* unit) {
  return absl::OutOfRangeError(
      absl::StrCat("tensor ", tensor.name, " has ", size, " ", unit, "; asked for ", count, " from number ", begin));
}

absl::StatusOr<SafetensorsHeader> LayOut(absl::Span<const SafetensorsWriter::Entry> entries,
                                         const SafetensorsMetadata& metadata) {
  SafetensorsHeader header{.metadata = metadata};
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) return absl::InvalidArgumentError("the metadata is not UTF-8");
  }
  for (const SafetensorsWriter::Entry& entry : entries) {
    if (!IsUtf8(entry.name) || entry.name == "__metadata__") {
      return absl::InvalidArgumentError(
          absl::StrCat("a tensor cannot be named \"", entry.name, "\": it must be UTF-8 and not __metadata__"));
    }
    if (entry.shape.size() > kMaxSafetensorsDimensions) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", entry.name, " has ", entry.shape.size(),
                                                     " dimensions; at most ", kMaxSafetensorsDimensions, " fit"));
    }
    header.tensors.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::tuple(-BitsPerElement(a.dtype), a.name) < std::tuple(-BitsPerElement(b.dtype), b.name);
  });
  int64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    const absl::StatusOr<int64_t> bytes = SafetensorsBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", bytes.status().message()));
    }
    tensor.begin = end;
    // The sizes must leave room for the header.
    if (*bytes > std::numeric_limits<int64_t>::max() - 2 * kMaxSafetensorsHeaderBytes - end) {
      return absl::InvalidArgumentError("the tensors have more bytes than can be counted");
    }
    tensor.end = end += *bytes;
  }
  return header;
}

}  // namespace

absl::string_view ToString(SafetensorsDType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

int BitsPerElement(SafetensorsDType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.bits;
  }
  SHALE_CHECK(false) << "no such dtype";
  return 8;
}

SafetensorsDType SafetensorsDTypeOf(DType dtype) {
  using enum SafetensorsDType;
  switch (dtype) {
    case DType::kFloat32: return kF32;
    case DType::kBFloat16: return kBF16;
    case DType::kFloat64: return kF64;
    case DType::kInt16: return kI16;
    case DType::kInt32: return kI32;
    case DType::kInt64: return kI64;
    case DType::kUInt8: return kU8;
    case DType::kFloat16: return kF16;
    case DType::kFloat8E4M3: return kF8_E4M3;
    case DType::kFloat8E5M2: return kF8_E5M2;
  }
  SHALE_CHECK(false) << "no such dtype";
  return kF32;
}

std::optional<SafetensorsDType> FindSafetensorsDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

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
                   tensor.dtype == SafetensorsDType::kF16 ? Float16ToFloat : BFloat16ToFloat);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path,
                                                                             absl::Span<const Entry> entries,
                                                                             const SafetensorsMetadata& metadata) {
  SHALE_ASSIGN_OR_RETURN(const SafetensorsHeader header, LayOut(entries, metadata));
  const std::string text = SafetensorsHeaderText(header);
  if (text.size() > static_cast<size_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", path, " would have ", text.size(),
                                                   " bytes; at most ", kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  SHALE_ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  auto writer = absl::WrapUnique(new SafetensorsWriter(std::move(file)));
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (!writer->tensors_.try_emplace(tensor.name, Tensor{.place = tensor}).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " is given twice"));
    }
  }
  const uint64_t length = text.size();
  SHALE_RETURN_IF_ERROR(
      writer->file_.WriteAt(0, absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length))));
  SHALE_RETURN_IF_ERROR(writer->file_.WriteAt(sizeof(length), text));
  writer->data_begin_ = static_cast<int64_t>(sizeof(length) + length);
  return writer;
}

absl::StatusOr<SafetensorsWriter::Tensor*> SafetensorsWriter::FindTensor(absl::string_view name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(file_.path(), " has no tensor ", name, " in the list given to Create"));
  }
  return &found->second;
}

absl::Status SafetensorsWriter::Append(absl::string_view name, absl::string_view bytes) {
  SHALE_ASSIGN_OR_RETURN(Tensor * tensor, FindTensor(name));
  const int64_t missing = tensor->place.size_bytes() - tensor->written_bytes;
  if (static_cast<int64_t>(bytes.size()) > missing) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", name, " has ", tensor->place.size_bytes(), " bytes, of which ",
                                              missing, " are missing; ", bytes.size(), " more do not fit"));
  }
  SHALE_RETURN_IF_ERROR(file_.WriteAt(data_begin_ + tensor->place.begin + tensor->written_bytes, bytes));
  tensor->written_bytes += bytes.size();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AppendFloat32(absl::string_view name, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(const Tensor* tensor, FindTensor(name));
  if (tensor->place.dtype == SafetensorsDType::kF32) {
    return Append(name, absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
  const bool half = tensor->place.dtype == SafetensorsDType::kF16;
  if (!half && tensor->place.dtype != SafetensorsDType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is of dtype ", ToString(tensor->place.dtype),
                                                   "; floats are written as F32, F16 or BF16"));
  }
  constexpr size_t kChunk = 4096;
  uint16_t buffer[kChunk];
  while (!values.empty()) {
    const absl::Span<const float> chunk = values.subspan(0, kChunk);
    for (size_t i = 0; i < chunk.size(); ++i) {
      if (half && std::isfinite(chunk[i]) && std::isinf(ToFloat(RoundToFloat16(chunk[i])))) {
        return absl::OutOfRangeError(
            absl::StrCat("tensor ", name, " holds ", chunk[i], ", which F16 cannot hold; write BF16 or F32"));
      }
      buffer[i] = half ? RoundToFloat16(chunk[i]).bits : RoundToBFloat16(chunk[i]).bits;
    }
    SHALE_RETURN_IF_ERROR(
        Append(name, absl::string_view(reinterpret_cast<const char*>(buffer), chunk.size() * sizeof(uint16_t))));
    values.remove_prefix(chunk.size());
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  constexpr size_t kMaxNamed = 5;
  std::vector<std::string> incomplete;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.written_bytes == tensor.place.size_bytes()) continue;
    incomplete.push_back(absl::StrCat(name, " (", tensor.written_bytes, " of ", tensor.place.size_bytes(), " bytes)"));
  }
  if (incomplete.empty()) return file_.Commit();
  std::sort(incomplete.begin(), incomplete.end());
  const size_t named = std::min(incomplete.size(), kMaxNamed);
  return absl::FailedPreconditionError(absl::StrCat(
      file_.path(), " is not complete: ", absl::StrJoin(incomplete.begin(), incomplete.begin() + named, ", "),
      named < incomplete.size() ? absl::StrCat(" and ", incomplete.size() - named, " more") : ""));
}

absl::Status ExportParameters(const CheckpointReader& checkpoint, DType dtype, const std::string& path, ReadBase base) {
  constexpr int64_t kBufferElements = int64_t{1} << 19;
  const SafetensorsDType type = SafetensorsDTypeOf(dtype);
  const std::vector<SavedParameter>& parameters = checkpoint.manifest().parameters;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const SavedParameter& parameter : parameters) entries.push_back({parameter.name, type, parameter.shape});
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                         SafetensorsWriter::Create(path, entries, {{"format", "pt"}}));
  CheckpointValues values(checkpoint, std::move(base));
  std::vector<float> buffer(kBufferElements);
  for (const SavedParameter& parameter : parameters) {
    for (int64_t begin = 0; begin < parameter.elements(); begin += kBufferElements) {
      const absl::Span<float> part =
          absl::MakeSpan(buffer.data(), std::min(kBufferElements, parameter.elements() - begin));
      SHALE_RETURN_IF_ERROR(values.Read(parameter.name, begin, part));
      SHALE_RETURN_IF_ERROR(writer->AppendFloat32(parameter.name, part));
    }
  }
  return writer->Finish();
}

}  // namespace shale
