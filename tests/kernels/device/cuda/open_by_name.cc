// open_by_name FOLDER FILE NAME...: loads FILE from FOLDER, and lets it open each NAME by itself. Prints the names that
// it does not find, or why FILE does not load. With --alone as the first argument, FILE is loaded by dlopen alone.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "kernels/device/cuda/shared_library.h"

namespace {

using OpensByName = bool(const char* file);

OpensByName* Load(const std::string& folder, const std::string& file, bool alone) {
  OpensByName* opens = nullptr;
  if (alone) {
    void* handle = dlopen((folder + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) opens = reinterpret_cast<OpensByName*>(dlsym(handle, "ShaleOpensByName"));
    return opens;
  }
  const auto library = shale::SharedLibrary::Open({.title = "Library", .file = file, .source = "it"},
                                                  {.folders = {folder}, .cuda_home = "", .loader_path = false});
  const absl::Status status = library.ok() ? library->Bind("ShaleOpensByName", opens) : library.status();
  if (!status.ok()) std::cout << status.message();
  return opens;
}

}  // namespace

int main(int argc, char** argv) {
  const bool alone = argc > 1 && std::strcmp(argv[1], "--alone") == 0;
  char** const arguments = argv + (alone ? 2 : 1);
  if (argv + argc - arguments < 3) return EXIT_FAILURE;
  OpensByName* const opens = Load(arguments[0], arguments[1], alone);
  if (opens == nullptr) return EXIT_FAILURE;
  for (char** name = arguments + 2; *name != nullptr; ++name) {
    if (!opens(*name)) std::cout << *name << "\n";
  }
  return EXIT_SUCCESS;
}
