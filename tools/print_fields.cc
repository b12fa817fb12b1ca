// print_fields: writes the manual's pages of the fields of a job into a folder.
//
//   bazel run //tools:print_fields -- $PWD/tools/manual
#include <cstdio>
#include <fstream>

#include "engine/plan/config/fields.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: bazel run //tools:print_fields -- $PWD/tools/manual\n", stderr);
    return 2;
  }
  for (const auto& [name, page] : shale::FieldsPages()) {
    const std::string path = std::string(argv[1]) + "/" + name;
    if (std::ofstream(path, std::ios::binary) << page << std::flush) continue;
    std::fprintf(stderr, "print_fields: cannot write %s\n", path.c_str());
    return 1;
  }
}
