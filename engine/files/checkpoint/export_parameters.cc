#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "kernels/check.h"

namespace shale {

absl::Status ExportParameters(const CheckpointReader& checkpoint, SafetensorsDType dtype, const std::string& path,
                              ReadBase base) {
  constexpr int64_t kBufferElements = int64_t{1} << 19;
  const std::vector<SavedParameter>& parameters = checkpoint.manifest().parameters;
  std::vector<SafetensorsWriter::Entry> entries;
  for (const SavedParameter& parameter : parameters) entries.push_back({parameter.name, dtype, parameter.shape});
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
