#include "sharding/comm/nccl/nccl_environment.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {
namespace {

constexpr int kSharesGpus = 23000;  // NCCL 2.30, in its own encoding.

// Returns what no other process of any host has: the process numbers of two containers may be equal.
std::string NameOfThisProcess() {
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat("shale-", host, "-", getpid());
}

}  // namespace

void SetNcclEnvironment() {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
}

std::string SetNcclSharingEnvironment(int version) {
  std::string text;
  const auto set = [&](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/0);
    const absl::string_view found = std::getenv(name);
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", found, found == value ? "" : " (kept)");
  };
  set("NCCL_SOCKET_IFNAME", "lo");
  if (version >= kSharesGpus) {
    set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  } else {
    set("NCCL_HOSTID", NameOfThisProcess());
    set("NCCL_NET", "Socket");
  }
  return text;
}

}  // namespace shale
