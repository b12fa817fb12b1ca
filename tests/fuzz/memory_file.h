// Presents bytes as a file, for parsers that take a path.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// A file in memory with a path under /proc/self/fd, invisible to other processes. The destructor removes it.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  const std::string& path() const { return path_; }

 private:
  int fd_ = -1;
  std::string path_;
};

}  // namespace shale
