#include "engine/api/export.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/folder_files.h"
#include "engine/files/hugging_face/layout.h"
#include "engine/files/hugging_face/staged_folder.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kCopyBytes = int64_t{1} << 20;

int64_t Elements(const HfTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  return elements;
}

// Distributes the tensors over files, in order. Starts a new file whenever the next tensor does not fit any more.
std::vector<std::vector<const HfTensor*>> CutIntoFiles(const HfLayout& layout, int64_t element_bytes,
                                                       int64_t max_bytes) {
  std::vector<std::vector<const HfTensor*>> files(1);
  int64_t bytes = 0;
  for (const HfTensor& tensor : layout.tensors) {
    const int64_t size = Elements(tensor) * element_bytes;
    if (!files.back().empty() && size > max_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(&tensor);
    bytes += size;
  }
  return files;
}

absl::Status WriteWeights(const HfLayout& layout, const HfExportOptions& options, const HfParameterReader& reader,
                          const std::string& folder) {
  const int64_t element_bytes = SizeOf(options.dtype);
  const auto files = CutIntoFiles(layout, element_bytes, options.max_file_bytes);
  Json weight_map = Json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1 ? "model.safetensors"
                                               : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    for (const HfTensor* tensor : files[i]) {
      weight_map[layout.FullName(*tensor)] = name;
      total_bytes += Elements(*tensor) * element_bytes;
    }
    SHALE_RETURN_IF_ERROR(
        WriteHfTensors(layout, files[i], SafetensorsDTypeOf(options.dtype), reader, JoinPath(folder, name)));
  }
  if (files.size() == 1) return absl::OkStatus();
  Json index = Json::object();
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = std::move(weight_map);
  return WriteFileDurably(JoinPath(folder, "model.safetensors.index.json"), index.dump(2) + "\n");
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  SHALE_ASSIGN_OR_RETURN(const InputFile input, InputFile::Open(from));
  SHALE_ASSIGN_OR_RETURN(DurableFile output, DurableFile::Create(to));
  std::string bytes;
  for (int64_t at = 0; at < input.size(); at += kCopyBytes) {
    bytes.resize(std::min(kCopyBytes, input.size() - at));
    SHALE_RETURN_IF_ERROR(input.ReadAt(at, bytes.data(), bytes.size()));
    SHALE_RETURN_IF_ERROR(output.WriteAt(at, bytes));
  }
  return output.Commit();
}

absl::Status CopyFiles(const std::string& base, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<HfFile> files, ListCopiedHfFiles(base));
  for (const HfFile& file : files) SHALE_RETURN_IF_ERROR(CopyFile(file.path, JoinPath(folder, file.name)));
  return absl::OkStatus();
}

// Adds the tokens that end a text to generation_config.json in `folder`, which has the copied files already.
absl::Status CompleteEnds(const std::string& folder, const std::string& config,
                          const std::vector<int32_t>& end_tokens) {
  if (end_tokens.empty()) return absl::OkStatus();
  const std::string path = JoinPath(folder, "generation_config.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxHfConfigBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  SHALE_ASSIGN_OR_RETURN(
      const std::optional<std::string> completed,
      CompletedGenerationConfig(text.ok() ? std::optional<std::string>(*text) : std::nullopt, config, end_tokens));
  return completed ? WriteFileDurably(path, *completed) : absl::OkStatus();
}

}  // namespace

absl::Status CheckLayers(const DecoderConfig& config, int64_t parameters) {
  int64_t counts[2] = {};  // Of a decoder with one layer, and with two.
  for (int64_t layers : {1, 2}) {
    DecoderConfig small = config;
    small.layers = layers;
    SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfLayout(small));
    counts[layers - 1] = std::ssize(layout.parameters);
  }
  const int64_t wanted = counts[0] + (config.layers - 1) * (counts[1] - counts[0]);
  if (wanted <= parameters) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the job describes a model of ", config.layers, " layers with ",
                                                    wanted, " parameters, and the checkpoint has ", parameters,
                                                    ": they do not belong to each other"));
}

absl::Status ExportHf(const DecoderConfig& config, const HfExportOptions& options, const HfParameterReader& reader,
                      const std::string& folder) {
  if (options.max_file_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_file_bytes: found ", options.max_file_bytes, ", wanted 1 or more"));
  }
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfLayout(config));
  HfConfigOptions config_options{.dtype = SafetensorsDTypeOf(options.dtype), .eos_token = options.eos_token};
  if (!options.base_folder.empty()) {
    const absl::StatusOr<std::string> path = ResolveInFolder(options.base_folder, "config.json");
    if (!path.ok() && !absl::IsNotFound(path.status())) return path.status();
    if (path.ok()) {
      SHALE_ASSIGN_OR_RETURN(config_options.base, ReadFile(*path, kMaxHfConfigBytes));
    }
  }
  SHALE_ASSIGN_OR_RETURN(const std::string text, HfConfigText(config, config_options));
  SHALE_ASSIGN_OR_RETURN(StagedFolder staged, StagedFolder::Create(folder));
  if (!options.base_folder.empty()) SHALE_RETURN_IF_ERROR(CopyFiles(options.base_folder, staged.path()));
  SHALE_RETURN_IF_ERROR(CompleteEnds(staged.path(), text, options.end_tokens));
  SHALE_RETURN_IF_ERROR(WriteWeights(layout, options, reader, staged.path()));
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(staged.path(), "config.json"), text));
  return staged.Commit();
}

absl::Status ExportHfAdapter(const DecoderConfig& config, DType dtype, const std::string& base,
                             const HfParameterReader& reader, const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const HfLayout layout, MakeHfAdapterLayout(config));
  SHALE_ASSIGN_OR_RETURN(const std::string text, HfAdapterConfigText(config, base));
  SHALE_ASSIGN_OR_RETURN(StagedFolder staged, StagedFolder::Create(folder));
  std::vector<const HfTensor*> tensors;
  for (const HfTensor& tensor : layout.tensors) tensors.push_back(&tensor);
  SHALE_RETURN_IF_ERROR(WriteHfTensors(layout, tensors, SafetensorsDTypeOf(dtype), reader,
                                       JoinPath(staged.path(), "adapter_model.safetensors")));
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(staged.path(), "adapter_config.json"), text));
  return staged.Commit();
}

absl::StatusOr<OpenedBase> OpenBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                    const std::string& folder) {
  const Manifest& manifest = checkpoint.manifest();
  if (!manifest.base) {
    if (folder.empty()) return OpenedBase{};
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.folder(), " holds all weights of its model; leave ", kBaseFlag, " out"));
  }
  const auto* decoder = std::get_if<DecoderConfig>(&model);
  if (decoder == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(), " has a base, which only a decoder with adapters can have"));
  }
  DecoderConfig config = *decoder;
  config.adapter.reset();
  OpenedBase base{.folder = folder.empty() ? manifest.base->folder : folder};
  absl::StatusOr<HfWeights> opened = HfWeights::Open(base.folder, config);
  SHALE_RETURN_IF_ERROR(WithBase(opened.status(), manifest, checkpoint.folder(), kBaseFlag));
  const auto weights = std::make_shared<HfWeights>(*std::move(opened));
  base.read = [weights](absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return weights->Read(parameter, begin, out);
  };
  return base;
}

absl::StatusOr<OpenedBase> OpenVerifiedBase(const CheckpointReader& checkpoint, const ModelConfig& model,
                                            const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(OpenedBase base, OpenBase(checkpoint, model, folder));
  if (base.read == nullptr) return base;
  const Manifest& manifest = checkpoint.manifest();
  const absl::StatusOr<uint64_t> digest = DigestOfBase(manifest, base.read);
  SHALE_RETURN_IF_ERROR(WithBase(digest.status(), manifest, checkpoint.folder(), kBaseFlag));
  SHALE_RETURN_IF_ERROR(CheckBaseDigest(manifest, checkpoint.folder(), base.folder, *digest, kBaseFlag));
  return base;
}

}  // namespace shale
