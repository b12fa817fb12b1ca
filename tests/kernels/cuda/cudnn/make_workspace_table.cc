// Prints the table of workspaces (workspace_table.h) with the answers of the installed cuDNN. Needs no GPU.
#include <cstdlib>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/kernels/cuda/cudnn/library_without_gpu.h"
#include "tests/kernels/cuda/cudnn/workspace_questions.h"
#include "tests/kernels/cuda/cudnn/workspace_table.h"

namespace shale::testing {
namespace {

constexpr int64_t kNotAsked = -1;

// Asks for every GPU. Fails if two GPUs of one compute capability need different workspaces.
absl::StatusOr<WorkspaceTable> Ask() {
  WorkspaceTable table;
  SHALE_ASSIGN_OR_RETURN(table.rows, WorkspaceQuestions());
  for (WorkspaceRow& row : table.rows) row.bytes = kNotAsked;
  for (const DescribedGpu& gpu : kDescribedGpus) {
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::CudnnGraphs> graphs, LoadCudnnFor(gpu));
    table.version = graphs->version();
    for (WorkspaceRow& row : table.rows) {
      if (row.compute_major != gpu.major || row.compute_minor != gpu.minor) continue;
      const absl::StatusOr<int64_t> bytes = NeededBytes(*graphs, KeyOf(row));
      if (!bytes.ok()) return absl::InternalError(absl::StrCat(row.Question(), ": ", bytes.status().message()));
      if (row.bytes != kNotAsked && row.bytes != *bytes) {
        return absl::InternalError(absl::StrCat(row.Question(), ": ", *bytes, " bytes on ", gpu.name, ", but ",
                                                row.bytes, " on another GPU of this compute capability"));
      }
      row.bytes = *bytes;
    }
  }
  return table;
}

}  // namespace
}  // namespace shale::testing

int main() {
  const absl::StatusOr<shale::testing::WorkspaceTable> table = shale::testing::Ask();
  if (!table.ok()) {
    std::cerr << table.status() << '\n';
    return EXIT_FAILURE;
  }
  std::cout << table->Print() << std::flush;
  return std::cout ? EXIT_SUCCESS : EXIT_FAILURE;
}
