// Tests what the library itself is told about an op's tensors, by recording the calls on their way to it.
#include <cudnn.h>
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"
#include "tests/kernels/cuda/cudnn/recording_cudnn.h"

namespace shale::testing {
namespace {

namespace fs = std::filesystem;

// The axes of a tensor, as a set of (size, stride), because the library may order axes as it likes. TensorsOf returns
// the dtype and the axes of each tensor of an op, by uid.
using Axes = std::multiset<std::pair<int64_t, int64_t>>;

template <class OpType>
std::map<int64_t, std::pair<int, Axes>> TensorsOf(const OpType& op) {
  std::map<int64_t, std::pair<int, Axes>> tensors;
  int64_t uid = 0;
  OpType::Visit(op, [&](absl::string_view, const Tensor& t, Access) {
    if (!t.present()) return;
    Axes axes;
    for (int axis = 0; axis < t.rank; ++axis) axes.emplace(t.dim(axis), t.stride(axis));
    if (t.rank == 3) axes.emplace(1, 1);  // For lse.
    tensors[++uid] = {t.dtype == DType::kBFloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT, axes};
  });
  return tensors;
}

TEST(CudnnDescriptorsTest, EveryOperandLiesWhereTheOpSays) {
  const fs::path here = fs::absolute("tests/kernels/cuda/cudnn");
  ASSERT_NE(dlopen((here / "libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  const auto real = SharedLibrary::Open({"cuDNN", "libcudnn.so.9", "cuDNN"}, LibrarySearch::FromEnvironment());
  if (!real.ok()) GTEST_SKIP() << real.status();
  void* recording = dlopen((here / "recording/libcudnn.so.9").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(recording, nullptr) << dlerror();
  auto* record = reinterpret_cast<RecordCudnn*>(dlsym(recording, "shale_record_cudnn"));
  ASSERT_NE(record, nullptr);
  std::vector<RecordedTensor>& recorded = *record(dlopen(real->path().c_str(), RTLD_NOW | RTLD_LOCAL));

  cuda::CudnnOptions options = {.search = LibrarySearch::FromEnvironment(),
                                .compute_major = kH200.major,
                                .compute_minor = kH200.minor,
                                .device_json = JsonOf(kH200)};
  options.search.folders.insert(options.search.folders.begin(), (here / "recording").string());
  const auto graphs = cuda::LoadCudnn(options);
  ASSERT_TRUE(graphs.ok()) << graphs.status();

  const auto expect_recorded = [&](const auto& op) {
    const cuda::AttentionKey key = cuda::AttentionKey::Of(op);
    SCOPED_TRACE(key.ToString());
    recorded.clear();
    const absl::Status status = (*graphs)->Supports(key, cuda::WorkspaceBytes(key));
    ASSERT_TRUE(status.ok()) << status;
    const std::map<int64_t, std::pair<int, Axes>> want = TensorsOf(op);
    std::map<int64_t, std::pair<int, Axes>> seen;
    for (const RecordedTensor& tensor : recorded) {
      if (want.count(tensor.uid) == 0) continue;  // A tensor of the frontend.
      Axes axes;
      for (size_t axis = 0; axis < tensor.dims.size(); ++axis) axes.emplace(tensor.dims[axis], tensor.strides[axis]);
      seen[tensor.uid] = {tensor.type, axes};
    }
    EXPECT_EQ(seen, want);
  };
  // No two sizes are equal. In the second step every tensor has strides of its own.
  for (const auto& [window, causal] : {std::pair(0, true), std::pair(17, true), std::pair(0, false)}) {
    AttentionBackward op = SymbolicAttention({.batch = 2,
                                              .length = 132,
                                              .heads = 6,
                                              .groups = 3,
                                              .width = 64,
                                              .window = window,
                                              .gap = 8,
                                              .causal = causal});
    for (const int64_t step : {0, 8}) {
      int64_t more = 0;
      AttentionBackward::Visit(op, [&](absl::string_view, Tensor& t, Access) {
        if (t.rank < 4) return;
        t.strides = {t.stride(0) + 132 * (more += step) + step, t.stride(1) + more, t.stride(2), 1};
      });
      expect_recorded(op);
      expect_recorded(ForwardOf(op));
    }
  }
}

}  // namespace
}  // namespace shale::testing
