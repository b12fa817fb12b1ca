#include "tests/kernels/cuda_on_host_ops.h"

#include <atomic>
#include <type_traits>

#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/host_ops.h"
#include "kernels/reference/reference_ops.h"

namespace shale::testing {
namespace {

class CudaOnHostOps : public HostOps {
 public:
  int64_t ScratchBytes(const Op& op) const override {
    return std::visit([](const auto& o) { return cuda::ScratchBytesOf(o); }, op);
  }

  absl::Status Run(const Op& op, Scratch scratch) const override {
    cuda_on_host::Stream stream{.seed = ++launches_};
    return std::visit(
        [&](const auto& o) {
          if constexpr (std::is_same_v<std::decay_t<decltype(o)>, MatMul>) {
            return RunReference(op);
          } else {
            return cuda::Run(o, scratch, &stream);
          }
        },
        op);
  }

 private:
  mutable std::atomic<uint64_t> launches_ = 0;
};

}  // namespace

std::unique_ptr<Ops> CreateCudaOnHostOps() { return std::make_unique<CudaOnHostOps>(); }

}  // namespace shale::testing
