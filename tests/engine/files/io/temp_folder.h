// A folder for one test, removed with everything in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace shale {

class TempFolder {
 public:
  TempFolder() : path_(::testing::TempDir() + "/shale-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string Path(absl::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file with these bytes and returns its path.
  std::string Write(absl::string_view name, absl::string_view bytes) const {
    const std::string path = Path(name);
    std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
    return path;
  }

  // Returns how many names the folder holds, hidden ones included.
  int CountEntries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

}  // namespace shale
