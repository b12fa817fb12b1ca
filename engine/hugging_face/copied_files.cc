#include "engine/hugging_face/copied_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/hugging_face/folder_path.h"
#include "engine/io/file.h"
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

}  // namespace shale
