#include "kernels/device/cuda/library_companions.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cuda/open_library.h"

namespace shale {
namespace {

namespace fs = std::filesystem;

struct Companion {
  absl::string_view library, name;  // Without versions. `library` opens `name`.
  bool needed;                      // Whether every version of the library has it and fails without it.
};

// Not listed, because nothing can or needs to be opened for them: libcuda.so.1 and libnvidia-ml.so.1 come with the
// driver, which puts them on the loader's path; the plug-ins of NCCL (libnccl-net.so) are optional and have settings of
// their own; libcudnn_adv, libcudnn_cnn and libcudnn_ext have no part in attention; none of our libraries opens
// nvJitLink.
constexpr Companion kCompanions[] = {
    // NVRTC opens it at the first compilation, and fails without it. NVRTC 13.0 has no RUNPATH.
    {"libnvrtc.so", "libnvrtc-builtins.so", /*needed=*/true},
    // libcudnn.so.9 itself only passes calls on. It opens graph and ops; graph opens the others when it plans. Each of
    // the others needs graph. NVIDIA's packages have a RUNPATH, but a copy of them may lack it. tensor_ir exists only
    // in newer versions.
    {"libcudnn.so", "libcudnn_graph.so", /*needed=*/false},
    {"libcudnn.so", "libcudnn_ops.so", /*needed=*/false},
    {"libcudnn.so", "libcudnn_heuristic.so", /*needed=*/false},
    {"libcudnn.so", "libcudnn_engines_precompiled.so", /*needed=*/false},
    {"libcudnn.so", "libcudnn_engines_runtime_compiled.so", /*needed=*/false},
    {"libcudnn.so", "libcudnn_engines_tensor_ir.so", /*needed=*/false},
    // cuBLASLt 13 knows NVRTC by name. NVIDIA does not say which matmuls it compiles, so it may be missing.
    {"libcublasLt.so", "libnvrtc.so", /*needed=*/false},
};

// Returns the path of the file in `folder` that begins with `wanted`, a name with its version, or an empty path. Of
// several, the shortest name wins: it is the one that libraries ask for.
fs::path FindIn(const fs::path& folder, const std::string& wanted) {
  std::string best;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename();
    if (file != wanted && !absl::StartsWith(file, wanted + ".")) continue;
    if (best.empty() || file.size() < best.size()) best = file;
  }
  return best.empty() ? fs::path() : folder / best;
}

}  // namespace

absl::Status OpenCompanions(const std::string& path) {
  const std::string file = fs::path(path).filename();
  for (const Companion& companion : kCompanions) {
    if (!absl::StartsWith(file, absl::StrCat(companion.library, "."))) continue;
    const std::string wanted = absl::StrCat(companion.name, file.substr(companion.library.size()));
    std::error_code ignored;
    fs::path found = FindIn(fs::path(path).parent_path(), wanted);
    if (found.empty()) found = FindIn(fs::canonical(path, ignored).parent_path(), wanted);
    if (found.empty()) {
      if (!companion.needed) continue;
      return absl::NotFoundError(absl::StrCat(path, " opens ", wanted, ".* by itself, and that is not in its folder"));
    }
    if (OpenLibrary(found) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(path, " opens ", found.string(), " by itself, and that does not load: ", LoaderError()));
    }
    const absl::Status status = OpenCompanions(found);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace shale
