// FolderStore: a Store whose values are files of a folder that all processes see.
#pragma once

#include <string>
#include <utility>

#include "sharding/comm/store.h"

namespace shale {

// The folder must exist, and must be empty before the first process of a job uses it. Keys become file names, in which
// every '/' is replaced by '_'.
class FolderStore : public Store {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, double timeout_seconds) override;

 private:
  std::string PathOf(const std::string& key) const;

  const std::string folder_;
};

}  // namespace shale
