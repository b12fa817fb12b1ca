#include "engine/files/hugging_face/tensor_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  if (real == nullptr) return FileError(errno, "find", path);
  return std::string(real.get());
}

// Splits "a/b/c" into {"a/b", "c"}.
std::pair<std::string, std::string> Split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

bool IsIn(const std::string& path, const std::string& folder) {
  return absl::StartsWith(path, absl::EndsWith(folder, "/") ? folder : folder + "/");
}

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

absl::Status CheckShardName(absl::string_view name) {
  constexpr size_t kMaxNameBytes = 255;  // The limit of common file systems.
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the file name ", ShortJsonQuote(name, kMaxNameBytes), " ", why,
                                                   "; a shard is a .safetensors file beside its index"));
  };
  if (name.size() > kMaxNameBytes) return refuse("is too long");
  for (const unsigned char c : name) {
    if (c < 0x20 || c == 0x7F) return refuse("has control characters");
    if (c == '/' || c == '\\') return refuse("is a path");
  }
  if (absl::StartsWith(name, ".")) return refuse("begins with a dot");
  if (!absl::EndsWith(name, ".safetensors")) return refuse("does not end in .safetensors");
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text) {
  if (text.size() > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes; at most ", kMaxSafetensorsIndexBytes, " are read"));
  }
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(text));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    return absl::InvalidArgumentError("it has no weight_map that maps tensor names to file names");
  }
  SafetensorsIndex index;
  for (const auto& item : map->items()) {
    const std::string& tensor = item.key();
    const Json& file = item.value();
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map of ", ShownJson(Json(tensor)), ": ", what));
    };
    if (!file.is_string()) return fail(absl::StrCat("found ", ShownJson(file), "; expected a file name"));
    const std::string& name = file.get_ref<const std::string&>();
    if (absl::Status status = CheckShardName(name); !status.ok()) return fail(status.message());
    index.files.emplace(tensor, name);
  }
  return index;
}

absl::StatusOr<std::string> ResolveInFolder(const std::string& folder, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const std::string root, RealPath(folder));
  const std::string path = JoinPath(folder, name);
  SHALE_ASSIGN_OR_RETURN(std::string real, RealPath(path));
  if (IsIn(real, root)) return real;
  const auto [snapshots, revision] = Split(root);
  const auto [model, snapshots_name] = Split(snapshots);
  if (snapshots_name == "snapshots" && IsIn(real, model + "/blobs")) return real;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is a link that leads out of its folder, to ", real, "; put the file itself there"));
}

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
