#include "tests/kernels/cuda/cudnn/attention_stand_in.h"

#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/ops/attention.h"
#include "kernels/reference/host_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::testing {
namespace {

using cuda::AttentionAddresses;
using cuda::AttentionKey;

const HostOps& Reference() {
  static const auto& ops = *dynamic_cast<const HostOps*>(CreateReferenceOps().release());
  return ops;
}

// Returns the op that a graph of `key` computes.
template <class OpType>
OpType OpOf(const AttentionKey& key, const AttentionAddresses& addresses) {
  OpType op;
  op.scale = key.scale;
  op.window = key.window;
  op.causal = key.causal;
  int operand = 0;
  OpType::Visit(op, [&](absl::string_view, Tensor& t, Access) {
    if (&t == &op.position_ids_BS) return;  // cuDNN takes none.
    t.data = cuda_on_host::HostViewOf(addresses[operand]);
    if (operand == cuda::kLse) {
      t = Tensor::Contiguous(DType::kFloat32, {key.batch, key.heads, key.length}, t.data);
    } else {
      const bool grouped = &t == &op.k_BSGD || &t == &op.v_BSGD || operand == cuda::kDK || operand == cuda::kDV;
      const AttentionKey::Strides& strides = key.strides[operand];
      t.dtype = key.dtype;
      t.rank = 4;
      t.shape = {key.batch, key.length, grouped ? key.groups : key.heads, key.width};
      t.strides = {strides.sequence, strides.position, strides.head, 1};
    }
    ++operand;
  });
  return op;
}

class Graph final : public cuda::AttentionGraph {
 public:
  Graph(AttentionStandIn& library, const AttentionKey& key, int64_t workspace_bytes)
      : library_(library), key_(key), workspace_bytes_(workspace_bytes) {
    ++library_.alive;
  }
  ~Graph() override { --library_.alive; }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Enqueue(const AttentionAddresses& operands, std::byte* workspace, cuda::StreamHandle stream) override {
    SHALE_RETURN_IF_ERROR(library_.enqueue_status);
    library_.calls.push_back({.key = key_, .operands = operands, .workspace = workspace});
    const Op op =
        key_.backward ? Op(OpOf<AttentionBackward>(key_, operands)) : Op(OpOf<AttentionForward>(key_, operands));
    auto run = [op, workspace = cuda_on_host::HostViewOf(workspace), bytes = workspace_bytes_] {
      std::memset(workspace, 0xAB, bytes);
      return Reference().Run(op, {});
    };
    auto* host_stream = static_cast<cuda_on_host::Stream*>(stream);
    return host_stream != nullptr && host_stream->submit ? host_stream->submit(std::move(run)) : run();
  }

 private:
  AttentionStandIn& library_;
  const AttentionKey key_;
  const int64_t workspace_bytes_;
};

class StandInGraphs final : public cuda::AttentionGraphs {
 public:
  explicit StandInGraphs(AttentionStandIn& library) : library_(library) { ++library_.alive; }
  ~StandInGraphs() override {
    --library_.alive;
    SHALE_CHECK(library_.alive == 0) << "graphs outlive what built them";
  }

  absl::StatusOr<std::unique_ptr<cuda::AttentionGraph>> Build(const AttentionKey& key,
                                                              int64_t workspace_bytes) override {
    SHALE_RETURN_IF_ERROR(library_.build_status);
    const int64_t needed = cuda::WorkspaceBytes(key) + library_.more_bytes;
    if (needed > workspace_bytes) {
      return absl::UnimplementedError(absl::StrCat("check_support with ", workspace_bytes, " bytes of workspace: ",
                                                   "Requires ", needed, ", for ", key.ToString()));
    }
    if (library_.load_module) SHALE_RETURN_IF_ERROR(library_.load_module());
    library_.built.push_back(key);
    return std::make_unique<Graph>(library_, key, library_.workspace_bytes.value_or(workspace_bytes));
  }

 private:
  AttentionStandIn& library_;
};

}  // namespace

std::unique_ptr<cuda::AttentionGraphs> AttentionStandIn::Graphs() { return std::make_unique<StandInGraphs>(*this); }

}  // namespace shale::testing
