#include "engine/files/hugging_face/folder_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns whether `path`, with links resolved, is a regular file. Also returns true if that cannot be determined, so
// that whoever opens the file gets the error.
bool MayBeAFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return error || std::filesystem::is_regular_file(status);
}

// Returns whether a file belongs to a tokenizer or is generation_config.json.
bool IsCopiedHfFile(absl::string_view name) {
  constexpr absl::string_view kNames[] = {"added_tokens.json",
                                          "chat_template.json",
                                          "chat_template.jinja",
                                          "generation_config.json",
                                          "merges.txt",
                                          "spiece.model",
                                          "sentencepiece.bpe.model",
                                          "special_tokens_map.json",
                                          "tekken.json",
                                          "vocab.json",
                                          "vocab.txt"};
  return absl::StartsWith(name, "tokenizer") ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

absl::StatusOr<Json> Parse(absl::string_view text, const char* file) {
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", json.status().message()));
}

constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::vector<HfFile>> ListCopiedHfFiles(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(folder));
  std::vector<HfFile> files;
  for (std::string& name : names) {
    if (!IsCopiedHfFile(name) || !MayBeAFile(JoinPath(folder, name))) continue;
    SHALE_ASSIGN_OR_RETURN(std::string path, ResolveInFolder(folder, name));
    files.push_back({std::move(name), std::move(path)});
  }
  return files;
}

absl::StatusOr<std::optional<std::string>> CompletedGenerationConfig(const std::optional<std::string>& text,
                                                                     absl::string_view config,
                                                                     const std::vector<int32_t>& end_tokens) {
  Json json = Json::object();
  if (text.has_value()) {
    SHALE_ASSIGN_OR_RETURN(json, Parse(*text, "generation_config.json"));
  } else {
    SHALE_ASSIGN_OR_RETURN(const Json of_model, Parse(config, "config.json"));
    for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (const Json id = of_model.value(name, Json()); !id.is_null()) json[name] = id;
    }
  }
  const Json found = json.value("eos_token_id", Json());
  Json ends = found.is_array() ? found : found.is_null() ? Json::array() : Json::array({found});
  bool complete = true;
  for (const int32_t token : end_tokens) {
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) continue;
    complete = false;
    ends.push_back(token);
  }
  if (complete) return std::optional<std::string>();
  json["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  return std::optional<std::string>(json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

absl::StatusOr<std::string> TokenizerDigest(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<HfFile> files, ListCopiedHfFiles(folder));
  std::string digest;
  for (const absl::string_view name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}) {
    const auto file = std::find_if(files.begin(), files.end(), [&](const HfFile& f) { return f.name == name; });
    if (file == files.end()) continue;
    SHALE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file->path, kMaxTokenizerBytes));
    absl::StrAppendFormat(&digest, "%s%s %08x", digest.empty() ? "" : ", ", name, Crc32c(bytes));
  }
  return digest;
}

}  // namespace shale
