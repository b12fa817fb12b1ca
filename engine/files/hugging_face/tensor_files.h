// Opens the safetensors files of a folder as one set of tensors. model.safetensors.index.json maps tensors to files,
// and the names of files are resolved within the folder, because nobody trusts it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/safetensors.h"

namespace shale {

constexpr int64_t kMaxSafetensorsIndexBytes = int64_t{64} << 20;

struct SafetensorsIndex {
  std::map<std::string, std::string> files;  // File names, keyed by tensor name.
};

// Parses the text of an index. Accepts any bytes. Returns InvalidArgument, without a path, for text that
// ParseStrictJson refuses or that has more than kMaxSafetensorsIndexBytes, for a weight_map that does not map names to
// strings, and for a file name that CheckShardName refuses. Ignores `metadata`, which says nothing that the files do
// not say themselves.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text);

// Returns InvalidArgument unless `name` is the name of a safetensors file beside the index: not a path, not hidden, no
// control characters.
absl::Status CheckShardName(absl::string_view name);

// Returns the real path, with links resolved, of the file `name` (not a path) in `folder`. A link may lead to a file in
// the folder itself. If the folder is a snapshot in the cache of huggingface_hub (models--X/snapshots/REVISION, whose
// files are links into models--X/blobs), a link may also lead to one of those blobs. Returns InvalidArgument for a link
// that leads elsewhere, and NotFound if there is no such file.
absl::StatusOr<std::string> ResolveInFolder(const std::string& folder, absl::string_view name);

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
