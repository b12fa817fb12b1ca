#include "tests/kernels/cuda/host/reports.h"

#include "absl/strings/str_cat.h"

namespace shale::cuda_on_host {
namespace {

std::string Text(const Dim3& dim) { return absl::StrCat(dim.x, " x ", dim.y, " x ", dim.z); }

}  // namespace

std::string Text(const Index3& index) { return absl::StrCat("(", index.x, ", ", index.y, ", ", index.z, ")"); }

std::string Text(const Site& site) { return absl::StrCat(site.file, ":", site.line); }

std::string WrongWithShape(const Shape& shape) {
  const Dim3 &grid = shape.grid, &block = shape.block;
  if (grid.count() == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return absl::StrCat("a grid of ", Text(grid), " blocks; wanted 1 to 2147483647 x 65535 x 65535");
  }
  // Execution numbers blocks in 32 bits.
  if (grid.count() > 0xffffffffu) return absl::StrCat("a grid of ", Text(grid), " blocks is too large to run here");
  if (block.count() == 0 || block.count() > kMaxThreads || block.z > 64) {
    return absl::StrCat("blocks of ", Text(block), " threads; wanted 1 to ", kMaxThreads, " in all, z up to 64");
  }
  if (shape.shared_bytes > kMaxSharedBytes) {
    return absl::StrCat(shape.shared_bytes, " bytes of shared memory; a block has up to ", kMaxSharedBytes);
  }
  return "";
}

}  // namespace shale::cuda_on_host
