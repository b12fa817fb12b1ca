#include "tests/kernels/cuda/cudnn/workspace_questions.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "engine/api/job.h"
#include "kernels/check.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"

namespace shale::testing {
namespace {

// Collects the questions, which are the same for all compute capabilities.
class Questions {
 public:
  // Adds a shape in both directions. Adds nothing that cuDNN does not take or that was added before.
  void Add(const AttentionShape& shape) {
    Add(/*backward=*/false, shape);
    Add(/*backward=*/true, shape);
    Add(/*backward=*/true, shape, /*deterministic=*/false);
  }

  void Add(bool backward, AttentionShape shape, bool deterministic = true) {
    const AttentionBackward op = SymbolicAttention(shape);
    if (!cuda::TakenByCudnn(op)) return;
    shape.window = cuda::AttentionKey::Of(op).window;
    const WorkspaceRow row = {.backward = backward, .deterministic = deterministic, .shape = shape};
    if (std::find(rows_.begin(), rows_.end(), row) == rows_.end()) rows_.push_back(row);
  }

  std::vector<WorkspaceRow> OfEveryCapability() const {
    std::vector<WorkspaceRow> all;
    std::set<std::pair<int, int>> asked;
    for (const DescribedGpu& gpu : kDescribedGpus) {
      if (!asked.emplace(gpu.major, gpu.minor).second) continue;
      for (WorkspaceRow row : rows_) {
        row.compute_major = gpu.major;
        row.compute_minor = gpu.minor;
        all.push_back(row);
      }
    }
    return all;
  }

 private:
  std::vector<WorkspaceRow> rows_;
};

// Adds the attention of a job in both directions, and the pieces of its backward op.
void AddJob(const Job& job, Questions& questions) {
  const auto* model = std::get_if<DecoderConfig>(&job.model);
  if (model == nullptr || job.precision.compute != ComputePrecision::kBFloat16) return;
  std::set<int64_t> windows;
  for (int64_t layer = 0; layer < model->layers; ++layer) {
    const BlockConfig block = model->Block(layer);
    if (block.attention_cap == 0) windows.insert(block.attention_window);  // cuDNN takes none with a cap.
  }
  for (const int64_t window : windows) {
    const AttentionShape whole = {.batch = job.batch.micro_batch,
                                  .length = job.batch.sequence_length,
                                  .heads = model->heads,
                                  .groups = model->kv_heads,
                                  .width = model->head_width,
                                  .window = window};
    questions.Add(whole);
    const AttentionBackward op = SymbolicAttention(whole);
    if (!cuda::TakenByCudnn(op)) continue;
    for (const cuda::AttentionPiece& piece :
         cuda::PiecesOf(cuda::AttentionKey::Of(op), cuda::CudnnAttentionOptions().workspace_bytes)) {
      AttentionShape part = whole;
      part.batch = piece.sequences;
      part.groups = piece.groups;
      part.heads = piece.groups * (whole.heads / whole.groups);
      questions.Add(/*backward=*/true, part);
    }
  }
}

// Adds lengths around the tiles of kernels and lengths of models, with each width and ratio of heads. The other sizes
// take turns.
void AddAwkward(Questions& questions) {
  constexpr int64_t kBatches[] = {1, 2, 3, 8}, kGroups[] = {1, 2, 4, 7, 1}, kWindows[] = {0, 1, 0, 17, 0, 128, 1024};
  size_t turn = 0;
  for (const int64_t width : {64, 96, 128}) {
    for (const int64_t heads_per_group : {1, 2, 7}) {
      for (const int64_t length : {4, 12, 60, 64, 68, 100, 128, 132, 192, 196, 256, 300, 1000, 1024, 2048, 4096}) {
        const int64_t groups = kGroups[turn % std::size(kGroups)];
        questions.Add({.batch = kBatches[turn % std::size(kBatches)],
                       .length = length,
                       .heads = heads_per_group * groups,
                       .groups = groups,
                       .width = width,
                       .window = kWindows[turn % std::size(kWindows)]});
        ++turn;
      }
      // The longest sequences that one key/value head can have.
      for (const int64_t length : {8192, 16384, 32768}) {
        questions.Add({.batch = 1, .length = length, .heads = heads_per_group, .groups = 1, .width = width});
      }
    }
    // One head alone, whose rows of lse may have any length.
    for (const int64_t length : {2, 3, 63, 65, 127, 129, 1001, 4095}) questions.Add({.length = length, .width = width});
  }
}

// Adds some of the same without a mask.
void AddUnmasked(Questions& questions) {
  for (const int64_t width : {64, 96, 128}) {
    for (const int64_t heads_per_group : {1, 2, 7}) {
      for (const int64_t length : {4, 60, 64, 100, 132, 196, 1024, 4096}) {
        const int64_t groups = length % 8 == 0 ? 2 : 3;
        questions.Add({.batch = length < 100 ? 3 : 2,
                       .length = length,
                       .heads = heads_per_group * groups,
                       .groups = groups,
                       .width = width,
                       .causal = false});
      }
      questions.Add(
          {.batch = 1, .length = 32768, .heads = heads_per_group, .groups = 1, .width = width, .causal = false});
    }
    for (const int64_t length : {2, 63, 129, 1001}) {
      questions.Add({.length = length, .width = width, .causal = false});
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<WorkspaceRow>> WorkspaceQuestions() {
  std::set<std::string> jobs;
  for (const char* folder : {"tools/jobs", "tools/bench/jobs/gpu"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".textproto") jobs.insert(entry.path());
    }
  }
  Questions questions;
  for (const std::string& path : jobs) {
    SHALE_ASSIGN_OR_RETURN(const Job job, LoadJob(path));
    AddJob(job, questions);
  }
  AddAwkward(questions);
  AddUnmasked(questions);
  return questions.OfEveryCapability();
}

}  // namespace shale::testing
