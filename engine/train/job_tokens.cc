#include "engine/train/job_tokens.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "engine/tokenize/prepared_text.h"
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

}  // namespace

absl::StatusOr<TokenSource> OpenJobTokens(const Job& job, const std::string& path, const TextProgress& progress) {
  bool text = false;
  if (job.data.has_tokenizer()) {
    SHALE_ASSIGN_OR_RETURN(text, IsText(path, job.data.format));
  }
  if (!text) return TokenSource::Open(path, job.data.format);
  SHALE_ASSIGN_OR_RETURN(PreparedText prepared,
                         PrepareText({.path = path,
                                      .all_rows = job.data.format == DataFormat::kJsonLines,
                                      .tokenizer = job.data.tokenizer,
                                      .loss_on = job.data.loss_on,
                                      .bad_lines = job.data.bad_lines},
                                     {.cache = CacheOf(job),
                                      .threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
                                      .progress = progress}));
  return std::move(prepared.tokens);
}

}  // namespace shale
