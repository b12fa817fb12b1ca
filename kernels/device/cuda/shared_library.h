// SharedLibrary: loads one of CUDA's libraries (cuBLASLt, cuDNN, NCCL, NVRTC) when it is first needed. A program never
// links them, so that it starts, and runs on the CPU, on machines without them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// The places in which to search for a library, in this order: `folders`, CUDA_HOME/lib64, the loader's own path
// (LD_LIBRARY_PATH, ldconfig).
struct LibrarySearch {
  // Folders of libraries. In a Python environment's site-packages, Open also searches nvidia/*/lib, where the nvidia-*
  // packages of PyPI put their libraries.
  std::vector<std::string> folders;
  std::string cuda_home = "/usr/local/cuda";  // Empty: none.
  bool loader_path = true;

  // Reads SHALE_CUDA_LIBRARIES (folders, separated by colons) and CUDA_HOME.
  static LibrarySearch FromEnvironment();
};

struct LibraryName {
  std::string title;   // For error messages: "cuBLASLt".
  std::string file;    // With the version of its binary interface: "libcublasLt.so.13".
  std::string source;  // What to install: "the CUDA toolkit 13 or the Python package nvidia-cublas".
};

// A loaded library. It stays loaded to the end of the process, as CUDA's libraries require (they own threads and
// contexts). So this object may be copied, and the library's functions outlive it. Thread-safe.
class SharedLibrary {
 public:
  // Loads the first library found, with those that it opens by itself (library_companions.h). NotFound names the places
  // that were searched, and says why a file that exists cannot be loaded.
  static absl::StatusOr<SharedLibrary> Open(const LibraryName& name, const LibrarySearch& search);

  // Sets `function` to the library's function of this name. Returns NotFound if there is none: then the library has the
  // wrong version.
  template <class Function>
  absl::Status Bind(const char* symbol, Function*& function) const {
    void* address = nullptr;
    absl::Status status = Find(symbol, address);
    if (status.ok()) function = reinterpret_cast<Function*>(address);
    return status;
  }

  // Returns the file that was loaded, with its folder unless the loader's own path found it.
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
