// Fuzzes the reader of complete safetensors files: header length, header, and the data of each tensor.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/safetensors.h"
#include "kernels/check.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/properties.h"

namespace shale {
namespace {

std::string FileBytes(const SafetensorsHeader& header, absl::string_view data) {
  std::string json = SafetensorsHeaderText(header);
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(json).append(data.data(), data.size());
}

// Returns the bytes of all tensors in file order. Together they are the file's whole data section.
std::string ReadData(const SafetensorsReader& reader) {
  std::string data;
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    SHALE_CHECK(reader.Find(tensor.name) == &tensor);
    std::string bytes(tensor.size_bytes(), '\0');
    SHALE_CHECK(reader.Read(tensor, 0, absl::MakeSpan(bytes)).ok());
    SHALE_CHECK(absl::IsOutOfRange(reader.Read(tensor, 1, absl::MakeSpan(bytes))));
    const bool is_float = tensor.dtype == SafetensorsDType::kF32 || tensor.dtype == SafetensorsDType::kF16 ||
                          tensor.dtype == SafetensorsDType::kBF16;
    std::vector<float> floats(is_float ? tensor.elements() : 0);
    SHALE_CHECK(reader.ReadFloat32(tensor, 0, absl::MakeSpan(floats)).ok() == is_float);
    data += bytes;
  }
  return data;
}

void CheckSafetensorsFile(absl::string_view bytes) {
  const MemoryFile file(bytes);
  const absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(file.path());
  if (!reader.ok()) return CheckRefusal(reader.status());
  const std::string data = ReadData(*reader);
  SHALE_CHECK(data.size() <= bytes.size());
  SHALE_CHECK(data == bytes.substr(bytes.size() - data.size()));
  // Writes the same tensors after a header that SafetensorsHeaderText prints, and reads them back.
  const MemoryFile written(FileBytes({reader->tensors(), reader->metadata()}, data));
  const absl::StatusOr<SafetensorsReader> again = SafetensorsReader::Open(written.path());
  SHALE_CHECK(again.ok()) << again.status();
  SHALE_CHECK(ReadData(*again) == data);
  SHALE_CHECK(again->metadata() == reader->metadata());
}

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::CheckSafetensorsFile({reinterpret_cast<const char*>(data), size});
  return 0;
}
