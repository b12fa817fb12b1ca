// Presents bytes as files, for parsers that take paths.
#pragma once

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {

// A file in memory with a path under /proc/self/fd, invisible to other processes. The destructor removes it.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view bytes);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  // Overwrites the file.
  void Write(absl::string_view bytes) const;
  const std::string& path() const { return path_; }

 private:
  int fd_ = -1;
  std::string path_;
};

// A folder of files with names, in memory where there is /dev/shm. The destructor removes it.
class MemoryFolder {
 public:
  MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  ~MemoryFolder();

  std::string Path(absl::string_view name) const { return absl::StrCat(path_, "/", name); }
  // Writes a file with these bytes. Overwrites a file with this name in place, which is faster than to make it anew.
  void Write(absl::string_view name, absl::string_view bytes) const;

 private:
  std::string path_;
  mutable std::map<std::string, int> open_;  // Files by name.
};

}  // namespace shale
