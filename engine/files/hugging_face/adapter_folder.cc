#include <vector>

#include "engine/api/export.h"
#include "engine/files/hugging_face/adapter_config.h"
#include "engine/files/hugging_face/layout.h"
#include "engine/files/hugging_face/staged_folder.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {

absl::Status ExportHfAdapter(const DecoderConfig& config, SafetensorsDType dtype, const std::string& base,
                             const HfParameterReader& reader, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfAdapterLayout(config));
  SHALE_ASSIGN_OR_RETURN(const std::string text, HfAdapterConfigText(config, base));
  SHALE_ASSIGN_OR_RETURN(StagedFolder staged, StagedFolder::Create(folder));
  std::vector<const HfTensor*> tensors;
  for (const HfTensor& tensor : layout.tensors) tensors.push_back(&tensor);
  SHALE_RETURN_IF_ERROR(
      WriteHfTensors(layout, tensors, dtype, reader, JoinPath(staged.path(), "adapter_model.safetensors")));
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(staged.path(), "adapter_config.json"), text));
  return staged.Commit();
}

}  // namespace shale
