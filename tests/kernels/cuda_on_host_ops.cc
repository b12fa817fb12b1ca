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
          if constexpr (requires { cuda::Run(o, scratch, &stream); }) {
            return cuda::Run(o, scratch, &stream);
          } else {
            return RunReference(op);
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
