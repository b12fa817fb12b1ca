// Opens the safetensors files of a folder as one set of tensors.
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

// Collects problems. The number of problems is not limited, but at most 20 are shown.
class HfProblems {
 public:
  void Add(std::string problem) { problems_.push_back(std::move(problem)); }
  bool empty() const { return problems_.empty(); }
  // Returns "`what`:" and a line for each problem that is shown.
  std::string ToString(absl::string_view what) const;

 private:
  std::vector<std::string> problems_;
};

// Returns a tensor's name in a form for messages. Names are untrusted, and may be very long or contain control
// characters for a terminal.
std::string ShownTensorName(absl::string_view name);

// A tensor and its file, both borrowed.
struct StoredTensor {
  const SafetensorsReader* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;

  absl::Status Read(int64_t begin, absl::Span<float> values) const { return file->ReadFloat32(*tensor, begin, values); }
};

struct TensorFiles {
  std::vector<std::unique_ptr<SafetensorsReader>> files;
  std::map<std::string, StoredTensor> tensors;  // Keyed by the name in the file.
};

// Opens one file of a folder. Returns NotFound if it does not exist, and errors as OpenTensorFiles does.
absl::StatusOr<TensorFiles> OpenTensorFile(const std::string& folder, absl::string_view name);

// Opens model.safetensors if it exists, else the files that model.safetensors.index.json names. If the index and the
// files disagree about a tensor, adds that to `problems` and leaves the tensor out of the result. Returns NotFound if
// there are no such files, and errors for an invalid file or index and for a link that leads out of the folder
// (ResolveInFolder).
absl::StatusOr<TensorFiles> OpenTensorFiles(const std::string& folder, HfProblems* problems);

}  // namespace shale
