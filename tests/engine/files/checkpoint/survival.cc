#include "tests/engine/files/checkpoint/survival.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/files/io/folder_lock.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "tests/sanitizers.h"

namespace shale {

int FaultStride() {
  if (HasSanitizer()) return 7;
  return std::getenv("SHALE_TEST_EVERYTHING") != nullptr ? 1 : 3;
}

std::string TinyJobText(absl::string_view data_path) {
  return absl::StrCat(R"(
name: "tiny"
model { decoder { family: LLAMA width: 8 layers: 1 heads: 1 hidden: 8 } }
batch { global_batch: 4 micro_batch: 2 sequence_length: 8 }
sharding { ranks: 2 strategy: FULL_SHARD }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 6 }
checkpoint { every_steps: 2 }
runtime { threads_per_rank: 1 }
telemetry { peak_flops: 1e11 }
data { format: TEXT path: ")",
                      data_path, "\" }\n");
}

std::string TinyText() {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump over the dog.\n");
  return text;
}

absl::StatusOr<std::vector<int64_t>> WholeCheckpoints(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<CheckpointPath> checkpoints, ListCheckpoints(folder));
  const StagingBuffer staging(kReadStagingBytes);
  std::vector<int64_t> steps;
  for (const CheckpointPath& checkpoint : checkpoints) {
    SHALE_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(checkpoint.path));
    SHALE_RETURN_IF_ERROR(reader.Verify(staging.span()));
    if (reader.manifest().step != checkpoint.step) return absl::DataLossError(absl::StrCat(checkpoint.path, " lies"));
    steps.push_back(checkpoint.step);
  }
  return steps;
}

std::vector<std::string> Leftovers(const std::string& folder) {
  std::vector<std::string> hidden;
  for (const std::string& name : ListFolder(folder).value_or(std::vector<std::string>())) {
    if (absl::StartsWith(name, ".") && !FolderLock::IsLockFile(name)) hidden.push_back(name);
  }
  return hidden;
}

absl::Status SameFiles(const std::string& a, const std::string& b) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(a));
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> others, ListFolder(b));
  if (names != others) return absl::DataLossError(absl::StrCat(a, " and ", b, " hold files of other names"));
  for (const std::string& name : names) {
    SHALE_ASSIGN_OR_RETURN(const std::string first, ReadFile(JoinPath(a, name), kMaxBytes));
    SHALE_ASSIGN_OR_RETURN(const std::string second, ReadFile(JoinPath(b, name), kMaxBytes));
    if (first != second) return absl::DataLossError(absl::StrCat(name, " differs in ", a, " and ", b));
  }
  return absl::OkStatus();
}

int64_t MustBeSaved(int64_t step, int64_t interval, bool asynchronous) {
  // The save of a step begins after the step was reported, so the report of step k x interval says nothing about its
  // own save. An asynchronous save is waited for only before the next one.
  const int64_t begun = RoundDown(std::max<int64_t>(0, step - 1), interval);
  return asynchronous ? begun - interval : begun;
}

}  // namespace shale
