// compile_with_nvrtc FOLDER FILE: compiles a small kernel with the NVRTC in FOLDER. Prints what went wrong.
#include <cstdlib>
#include <iostream>
#include <string>

#include "kernels/check.h"
#include "kernels/device/cuda/shared_library.h"

namespace {

using CreateProgram = int(void** program, const char* source, const char* name, int, const char**, const char**);
using CompileProgram = int(void* program, int options, const char** option);
using GetText = int(void* program, char* text);
using GetSize = int(void* program, size_t* size);

absl::Status Compile(const char* folder, const char* file) {
  SHALE_ASSIGN_OR_RETURN(const shale::SharedLibrary nvrtc,
                         shale::SharedLibrary::Open({.title = "NVRTC", .file = file, .source = "it"},
                                                    {.folders = {folder}, .cuda_home = "", .loader_path = false}));
  CreateProgram* create = nullptr;
  CompileProgram* compile = nullptr;
  GetSize* log_size = nullptr;
  GetText* get_log = nullptr;
  SHALE_RETURN_IF_ERROR(nvrtc.Bind("nvrtcCreateProgram", create));
  SHALE_RETURN_IF_ERROR(nvrtc.Bind("nvrtcCompileProgram", compile));
  SHALE_RETURN_IF_ERROR(nvrtc.Bind("nvrtcGetProgramLogSize", log_size));
  SHALE_RETURN_IF_ERROR(nvrtc.Bind("nvrtcGetProgramLog", get_log));
  void* program = nullptr;
  const char* option = "--gpu-architecture=sm_90a";
  if (create(&program, "__global__ void One(float* x) { *x = 1; }", "one.cu", 0, nullptr, nullptr) != 0) {
    return absl::InternalError("nvrtcCreateProgram failed");
  }
  if (compile(program, 1, &option) == 0) return absl::OkStatus();
  size_t size = 0;
  std::string log;
  if (log_size(program, &size) == 0) log.resize(size);
  if (size > 0) (void)get_log(program, log.data());
  return absl::InternalError(log);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  const absl::Status status = Compile(argv[1], argv[2]);
  std::cout << status.message();
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
