#include "kernels/cuda/cudnn/cudnn_attention.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

// What to do if a version of cuDNN has no kernel for an op, or none within the planned workspace.
constexpr absl::string_view kWaysOut =
    "Set runtime.cudnn_attention=false (Shale's own kernels then compute attention), or install another version of "
    "cuDNN, 9.16 or newer";

class CudnnAttention final : public AttentionBackend {
 public:
  CudnnAttention(std::function<absl::StatusOr<std::unique_ptr<AttentionGraphs>>()> load, CudnnAttentionOptions options)
      : load_(std::move(load)), options_(std::move(options)) {}

  bool Takes(const AttentionForward& op) const override { return TakenByCudnn(op) && !OwnIsFaster(op); }
  bool Takes(const AttentionBackward& op) const override { return TakenByCudnn(op) && !OwnIsFaster(op); }

  int64_t ScratchBytes(const AttentionForward& op) const override { return WorkspaceBytes(KeyOf(op)); }
  int64_t ScratchBytes(const AttentionBackward& op) const override { return Most(op, options_.workspace_bytes); }
  int64_t AmpleScratchBytes(const AttentionBackward& op, int64_t most_bytes) const override {
    return options_.grows ? Most(op, std::max(most_bytes, options_.workspace_bytes)) : ScratchBytes(op);
  }

  absl::Status Prepare(const AttentionForward& op, int64_t scratch_bytes) override {
    return PrepareParts(op, scratch_bytes);
  }
  absl::Status Prepare(const AttentionBackward& op, int64_t scratch_bytes) override {
    return PrepareParts(op, scratch_bytes);
  }

  absl::Status Enqueue(const AttentionForward& op, Scratch scratch, StreamHandle stream) override {
    return EnqueueParts(op, scratch, stream);
  }
  absl::Status Enqueue(const AttentionBackward& op, Scratch scratch, StreamHandle stream) override {
    return EnqueueParts(op, scratch, stream);
  }

 private:
  static AttentionKey KeyOf(const AttentionForward& op) { return AttentionKey::Of(op); }
  AttentionKey KeyOf(const AttentionBackward& op) const {
    AttentionKey key = AttentionKey::Of(op);
    key.deterministic = options_.deterministic;
    return key;
  }

  template <class OpType>
  bool OwnIsFaster(const OpType& op) const {
    return options_.rates.size() > 0 && options_.rates.OwnIsFaster(KeyOf(op));
  }

  // Calls visit(part) for each part of an op that has so much workspace, until one fails. In as much as the largest of
  // these parts needs, the op has the same parts.
  template <class Visit>
  absl::Status VisitParts(const AttentionForward& op, int64_t workspace_bytes, const Visit& visit) const {
    return visit(op);
  }
  template <class Visit>
  absl::Status VisitParts(const AttentionBackward& op, int64_t workspace_bytes, const Visit& visit) const {
    for (const AttentionPiece& piece : PiecesOf(KeyOf(op), workspace_bytes)) {
      SHALE_RETURN_IF_ERROR(visit(OpOf(op, piece)));
    }
    return absl::OkStatus();
  }

  int64_t Most(const AttentionBackward& op, int64_t workspace_bytes) const {
    int64_t most = 0;
    (void)VisitParts(op, workspace_bytes, [&](const AttentionBackward& part) {
      most = std::max(most, WorkspaceBytes(KeyOf(part)));
      return absl::OkStatus();
    });
    return most;
  }

  template <class OpType>
  absl::Status PrepareParts(const OpType& op, int64_t workspace_bytes) {
    return VisitParts(op, workspace_bytes, [&](const OpType& part) { return Find(KeyOf(part)).status(); });
  }

  template <class OpType>
  absl::Status EnqueueParts(const OpType& op, Scratch scratch, StreamHandle stream) {
    return VisitParts(op, scratch.size_bytes, [&](const OpType& part) -> absl::Status {
      SHALE_ASSIGN_OR_RETURN(AttentionGraph * graph, Find(KeyOf(part)));
      SHALE_CHECK(scratch.size_bytes >= graph->workspace_bytes()) << scratch.size_bytes;
      return graph->Enqueue(AddressesOf(part), scratch.data, stream);
    });
  }

  absl::StatusOr<AttentionGraph*> Find(const AttentionKey& key) {
    if (const auto found = built_.find(key); found != built_.end()) return found->second.get();
    if (graphs_ == nullptr) {
      SHALE_ASSIGN_OR_RETURN(graphs_, load_());
    }
    const int64_t planned = WorkspaceBytes(key);
    absl::StatusOr<std::unique_ptr<AttentionGraph>> graph = graphs_->Build(key, planned);
    if (absl::IsUnimplemented(graph.status())) {
      return absl::UnimplementedError(
          absl::StrCat(graph.status().message(), "; ", planned, " bytes of workspace are planned. ", kWaysOut));
    }
    SHALE_RETURN_IF_ERROR(graph.status());
    if ((*graph)->workspace_bytes() > planned) {
      return absl::FailedPreconditionError(absl::StrCat(key.ToString(), ": this version of cuDNN needs ",
                                                        (*graph)->workspace_bytes(), " bytes of workspace, but ",
                                                        planned, " are planned. ", kWaysOut));
    }
    return built_.emplace(key, *std::move(graph)).first->second.get();
  }

  const std::function<absl::StatusOr<std::unique_ptr<AttentionGraphs>>()> load_;
  const CudnnAttentionOptions options_;
  std::unique_ptr<AttentionGraphs> graphs_;  // Declared first: must outlive the graphs in built_.
  std::map<AttentionKey, std::unique_ptr<AttentionGraph>> built_;
};

}  // namespace

std::unique_ptr<AttentionBackend> CreateCudnnAttention(
    std::function<absl::StatusOr<std::unique_ptr<AttentionGraphs>>()> load, CudnnAttentionOptions options) {
  SHALE_CHECK(load != nullptr);
  SHALE_CHECK(options.workspace_bytes >= 0) << options.workspace_bytes;
  return std::make_unique<CudnnAttention>(std::move(load), std::move(options));
}

}  // namespace shale::cuda
