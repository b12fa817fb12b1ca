#include "engine/hugging_face/tensor_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/hugging_face/folder_path.h"
#include "engine/hugging_face/index.h"
#include "engine/io/file.h"
#include "engine/text/quote.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kSingleFile = "model.safetensors";
constexpr absl::string_view kIndexFile = "model.safetensors.index.json";

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenFile(const std::string& folder, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, name));
  SHALE_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  return std::make_unique<SafetensorsReader>(std::move(reader));
}

absl::StatusOr<SafetensorsIndex> ReadIndex(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, kIndexFile));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxSafetensorsIndexBytes));
  absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(text);
  if (index.ok()) return index;
  return absl::InvalidArgumentError(absl::StrCat(JoinPath(folder, kIndexFile), ": ", index.status().message()));
}

}  // namespace

std::string ShownTensorName(absl::string_view name) {
  constexpr size_t kMaxShown = 120;
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (plain && name.size() <= kMaxShown) return std::string(name);
  return ShortJsonQuote(name, kMaxShown);
}

std::string HfProblems::ToString(absl::string_view what) const {
  constexpr size_t kMaxShown = 20;
  std::string text = absl::StrCat(what, ":");
  for (size_t i = 0; i < std::min(problems_.size(), kMaxShown); ++i) absl::StrAppend(&text, "\n  ", problems_[i]);
  if (problems_.size() > kMaxShown) absl::StrAppend(&text, "\n  and ", problems_.size() - kMaxShown, " more");
  return text;
}

absl::StatusOr<TensorFiles> OpenTensorFile(const std::string& folder, absl::string_view name) {
  TensorFiles result;
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> file, OpenFile(folder, name));
  for (const SafetensorsTensor& tensor : file->tensors()) result.tensors[tensor.name] = {file.get(), &tensor};
  result.files.push_back(std::move(file));
  return result;
}

absl::StatusOr<TensorFiles> OpenTensorFiles(const std::string& folder, HfProblems* problems) {
  absl::StatusOr<TensorFiles> single = OpenTensorFile(folder, kSingleFile);
  if (single.ok() || !absl::IsNotFound(single.status())) return single;

  TensorFiles result;
  absl::StatusOr<SafetensorsIndex> index = ReadIndex(folder);
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has neither ", kSingleFile, " nor ", kIndexFile, "; weights must be safetensors"));
  }
  SHALE_RETURN_IF_ERROR(index.status());
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->files) names.insert(file);
  for (const std::string& name : names) {
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> reader, OpenFile(folder, name));
    for (const SafetensorsTensor& tensor : reader->tensors()) {
      const auto complain = [&](const auto&... what) {
        problems->Add(absl::StrCat(ShownTensorName(tensor.name), ": lies in ", name, ", but the index ", what...));
      };
      const auto promised = index->files.find(tensor.name);
      if (promised == index->files.end()) {
        complain("does not name it");
      } else if (promised->second != name) {
        complain("says ", promised->second);
      } else {
        result.tensors[tensor.name] = {reader.get(), &tensor};
      }
    }
    result.files.push_back(std::move(reader));
  }
  for (const auto& [tensor, file] : index->files) {
    if (result.tensors.contains(tensor)) continue;
    problems->Add(absl::StrCat(ShownTensorName(tensor), ": the index places it in ", file, ", which does not have it"));
  }
  return result;
}

}  // namespace shale
