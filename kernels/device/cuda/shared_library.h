// CUDA's libraries (cuBLASLt, cuDNN, NCCL, NVRTC), loaded when they are first needed and never linked: a program then
// starts, and runs on the CPU, where they are missing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// Where to look, in this order: `folders`, CUDA_HOME/lib64, the loader's own path (LD_LIBRARY_PATH, ldconfig).
struct LibrarySearch {
  // Folders of libraries, or a Python environment's site-packages: then its nvidia/*/lib, where the packages nvidia-*
  // of PyPI put theirs.
  std::vector<std::string> folders;
  std::string cuda_home = "/usr/local/cuda";  // Empty: none.
  bool loader_path = true;

  // SHALE_CUDA_LIBRARIES (folders, separated by colons) and CUDA_HOME.
  static LibrarySearch FromEnvironment();
};

struct LibraryName {
  std::string title;   // For errors: "cuBLASLt".
  std::string file;    // With the version that its binary interface has: "libcublasLt.so.13".
  std::string source;  // What to install: "the CUDA toolkit 13 or the Python package nvidia-cublas".
};

// A loaded library. It stays loaded to the end of the process, as CUDA's libraries want (they own threads and
// contexts), so that this may be copied and its functions outlive it. Thread-safe.
class SharedLibrary {
 public:
  // NotFound names the places that were looked at, and what stands in the way of a file that is there but cannot be
  // loaded.
  static absl::StatusOr<SharedLibrary> Open(const LibraryName& name, const LibrarySearch& search);

  // Sets `function` to the library's function of this name, or says that the library is too old for us (NotFound).
  template <class Function>
  absl::Status Bind(const char* symbol, Function*& function) const {
    void* address = nullptr;
    absl::Status status = Find(symbol, address);
    if (status.ok()) function = reinterpret_cast<Function*>(address);
    return status;
  }

  // The file, with its folder unless the loader's path led there.
  const std::string& path() const { return path_; }

 private:
  SharedLibrary(LibraryName name, std::string path, void* handle)
      : name_(std::move(name)), path_(std::move(path)), handle_(handle) {}
  absl::Status Find(const char* symbol, void*& address) const;

  LibraryName name_;
  std::string path_;
  void* handle_;
};

}  // namespace shale
