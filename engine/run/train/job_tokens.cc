#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/folder_files.h"
#include "engine/plan/config/job_files.h"
#include "engine/run/train/job_data.h"
#include "engine/text/documents/prepared_text.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the folder that keeps the tokens of text.
std::string CacheOf(const Job& job) {
  if (!job.data.cache.empty()) return job.data.cache;
  std::filesystem::path run = std::filesystem::path(job.telemetry.run_folder).lexically_normal();
  if (!run.has_filename()) run = run.parent_path();  // It ends with a slash.
  return (run.parent_path() / "tokens").string();
}

// Refuses the bytes of text as tokens of a model whose folder has a tokenizer in another form than tokenizer.json: the
// model does not know them. A job that wants them says so (data.tokenizer=bytes).
absl::Status CheckModelKnowsBytes(const Job& job) {
  if (job.hf_folder.empty() || !job.data.tokenizer.empty()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::string files, TokenizerDigest(job.hf_folder));
  if (files.empty() || absl::StartsWith(files, "tokenizer.json ")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.tokenizer: missing, and ", job.hf_folder, " has a tokenizer (", files,
                   "), but no tokenizer.json, the only form that is read; write it with transformers "
                   "(AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)), or set data.tokenizer=bytes to "
                   "train the model on the bytes of the text"));
}

absl::StatusOr<TokenSource> OpenTokens(const Job& job, const std::string& path, const DataFilesOptions& files,
                                       const TextProgress& progress) {
  bool text = false;
  if (job.data.has_tokenizer()) {
    SHALE_ASSIGN_OR_RETURN(text, IsText(path, files));
  }
  if (!text) {
    SHALE_ASSIGN_OR_RETURN(TokenSource tokens, TokenSource::Open(path, files));
    if (tokens.is_text()) SHALE_RETURN_IF_ERROR(CheckModelKnowsBytes(job));
    return tokens;
  }
  SHALE_ASSIGN_OR_RETURN(PreparedText prepared,
                         PrepareText({.path = path,
                                      .files = files,
                                      .tokenizer = job.data.tokenizer,
                                      .loss_on = job.data.loss_on,
                                      .bad_lines = job.data.bad_lines,
                                      .bad_bytes = job.data.bad_bytes,
                                      .spelled_tokens = job.data.spelled_tokens,
                                      .allow_dropped_text = job.data.allow_dropped_text,
                                      .date = job.data.date},
                                     {.cache = CacheOf(job),
                                      .threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
                                      .progress = progress}));
  return std::move(prepared.tokens);
}

}  // namespace

absl::StatusOr<TokenSource> OpenJobTokens(const Job& job, absl::string_view field, const std::string& path,
                                          const TextProgress& progress) {
  SHALE_RETURN_IF_ERROR(CheckTokenizerExists(job.data));
  absl::StatusOr<TokenSource> tokens =
      OpenTokens(job, path, job.data.files(absl::StartsWith(field, "data.evaluation")), progress);
  if (!tokens.ok()) {
    const std::string cache = CacheOf(job);
    return InField({{field, path}, {"data.tokenizer", job.data.tokenizer}, {"data.cache", cache}}, tokens.status());
  }
  return tokens;
}

}  // namespace shale
