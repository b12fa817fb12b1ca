#include "tests/sharding/comm/folder_store.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "sharding/comm/deadline.h"

namespace shale {

std::string FolderStore::PathOf(const std::string& key) const {
  return absl::StrCat(folder_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
}

absl::Status FolderStore::Put(const std::string& key, const std::string& value) {
  // The rename makes the value appear complete. Another process may write another key at the same time.
  const std::string path = PathOf(key), temporary = absl::StrCat(path, ".", getpid(), ".writing");
  std::ofstream file(temporary, std::ios::binary);
  file << value;
  file.close();
  if (!file || rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, "; the folder must exist and be writable"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FolderStore::Get(const std::string& key, double timeout_seconds) {
  const std::string path = PathOf(key);
  Deadline deadline(std::max(timeout_seconds, 1e-3));
  for (;;) {
    if (std::ifstream file(path, std::ios::binary); file) {
      std::ostringstream value;
      value << file.rdbuf();
      return value.str();
    }
    if (deadline.Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", timeout_seconds, " s for ", path, ", which no process has written"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace shale
