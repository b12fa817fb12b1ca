// The safetensors files of a folder, as one set of tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/safetensors.h"

namespace shale {

// A list of what is wrong, which grows without bound but is shown up to 20 entries.
class HfProblems {
 public:
  void Add(std::string problem) { problems_.push_back(std::move(problem)); }
  bool empty() const { return problems_.empty(); }
  // "`what`:" and a line for each.
  std::string ToString(absl::string_view what) const;

 private:
  std::vector<std::string> problems_;
};

// A tensor's name as messages show it: names come from strangers, and may be endless or move a terminal's cursor.
std::string ShownTensorName(absl::string_view name);

// A tensor and the file that it lies in. Borrows both.
struct StoredTensor {
  const SafetensorsReader* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;

  absl::Status Read(int64_t begin, absl::Span<float> values) const { return file->ReadFloat32(*tensor, begin, values); }
};

struct TensorFiles {
  std::vector<std::unique_ptr<SafetensorsReader>> files;
  std::map<std::string, StoredTensor> tensors;  // By the name in the file.
};

// Opens model.safetensors, or what model.safetensors.index.json names. Where index and files disagree, `problems` says
// so and the rest is still there. Errors: no such files (NotFound), a file or index that is no valid one, links that
// lead out of the folder (ResolveInFolder).
absl::StatusOr<TensorFiles> OpenTensorFiles(const std::string& folder, HfProblems* problems);

}  // namespace shale
