#include "sharding/comm/gloo/gloo.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/gloo/communicator.h"
#include "sharding/comm/gloo/group.h"
#include "sharding/comm/gloo/hello.h"
#include "sharding/comm/gloo/layout.h"
#include "sharding/comm/gloo/links.h"
#include "sharding/comm/gloo/memory.h"

namespace shale {
namespace {

// The sizes of the messages of sums. A rank has room for two messages of each remote rank.
constexpr int64_t kLeastChunkBytes = 2048, kMostChunkBytes = int64_t{512} << 10;

// All processes must get the same size, so it does not depend on how many ranks are remote.
int64_t ChunkBytes(int64_t staging_bytes, int ranks) {
  return std::clamp(staging_bytes / (2 * ranks) / 64 * 64, kLeastChunkBytes, kMostChunkBytes);
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGlooGroup(Store& store, const GlooMembers& members,
                                                                           const GlooOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckTimeout(options.timeout_seconds));
  SHALE_RETURN_IF_ERROR(CheckTimeout(options.connect_timeout_seconds));
  if (options.connect_timeout_seconds == 0 || options.staging_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("connect_timeout_seconds must be above 0 and staging_bytes at ",
                                                   "least 0, found ", options.connect_timeout_seconds, " and ",
                                                   options.staging_bytes));
  }
  SHALE_ASSIGN_OR_RETURN(GlooLayout layout, GlooLayout::Create(members));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<GlooLinks> links, GlooLinks::Connect(store, layout, members, options));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<GlooMemory> memory, GlooMemory::Create(store, layout, members, options));
  const NoBrokenPipes no_broken_pipes;
  auto group =
      std::make_shared<GlooGroup>(std::move(layout), std::move(links), std::move(memory), options.timeout_seconds);
  auto hello = std::make_shared<GlooHello>(*group);
  SHALE_RETURN_IF_ERROR(hello->Begin());
  const int64_t chunk_bytes = ChunkBytes(options.staging_bytes, group->layout().ranks());
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const int rank : group->layout().local_ranks()) {
    communicators.push_back(std::make_unique<GlooCommunicator>(group, hello, rank, chunk_bytes));
  }
  return communicators;
}

}  // namespace shale
