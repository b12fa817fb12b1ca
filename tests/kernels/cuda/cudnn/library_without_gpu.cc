#include "tests/kernels/cuda/cudnn/library_without_gpu.h"

#include <dlfcn.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale::testing {

absl::StatusOr<std::unique_ptr<cuda::CudnnGraphs>> LoadCudnnFor(const DescribedGpu& gpu) {
  // Loads the stand-in driver first, so that cuDNN gets it when it asks for a library of this name.
  if (dlopen("tests/kernels/cuda/cudnn/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::InternalError(absl::StrCat("the driver that stands in: ", dlerror()));
  }
  return cuda::LoadCudnn({.search = LibrarySearch::FromEnvironment(),
                          .compute_major = gpu.major,
                          .compute_minor = gpu.minor,
                          .device_json = JsonOf(gpu)});
}

absl::StatusOr<int64_t> NeededBytes(cuda::CudnnGraphs& graphs, const cuda::AttentionKey& key) {
  // If it may have no workspace at all, cuDNN answers "Requires <bytes>" for each kernel in turn. The frontend adds
  // rowsum(d_out * out) to that.
  constexpr absl::string_view kRequires = "Requires ";
  const absl::Status status = graphs.Supports(key, /*workspace_bytes=*/-1);
  const absl::string_view answer = status.message();
  const size_t at = answer.find(kRequires);
  int64_t bytes = 0;
  if (at == absl::string_view::npos) return absl::InternalError(absl::StrCat("no kernel: ", answer));
  const absl::string_view rest = answer.substr(at + kRequires.size());
  if (!absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &bytes)) {
    return absl::InternalError(absl::StrCat("not understood: ", answer));
  }
  return bytes + (key.backward ? 4 * key.batch * key.heads * key.length : 0);
}

}  // namespace shale::testing
