#include "engine/launch/slurm_lists.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/text/quote.h"

namespace shale {
namespace {

constexpr int64_t kMostNodes = 1'000'000;

absl::Status Malformed(absl::string_view what, absl::string_view example, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("wanted a list of ", what, " as Slurm writes it, such as ", example, ", found ", Quoted(found)));
}

}  // namespace

absl::StatusOr<std::string> FirstHost(absl::string_view nodes) {
  const auto malformed = [&] { return Malformed("nodes", "gpu[07-09,12]", nodes); };
  std::string host;
  for (size_t at = 0; at < nodes.size() && nodes[at] != ',';) {
    if (nodes[at] != '[') {
      if (nodes[at] == ']' || !absl::ascii_isgraph(nodes[at])) return malformed();
      host += nodes[at++];
      continue;
    }
    const size_t end = nodes.find(']', at);
    if (end == absl::string_view::npos) return malformed();
    const absl::string_view ranges = nodes.substr(at + 1, end - at - 1);
    const absl::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != absl::string_view::npos) return malformed();
    absl::StrAppend(&host, first);  // With its leading zeros.
    at = end + 1;
  }
  if (host.empty()) return malformed();
  return host;
}

absl::StatusOr<std::vector<int>> TasksOnNodes(absl::string_view tasks) {
  const auto malformed = [&] { return Malformed("tasks", "2(x3),1", tasks); };
  std::vector<int> all;
  for (const absl::string_view part : absl::StrSplit(tasks, ',')) {
    const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits("(x", 1));
    absl::string_view repeat = sides.second;
    int on_node = 0, nodes = 1;
    if (!absl::SimpleAtoi(sides.first, &on_node) || on_node < 0) return malformed();
    if (sides.first.size() < part.size()) {
      if (!absl::ConsumeSuffix(&repeat, ")") || !absl::SimpleAtoi(repeat, &nodes) || nodes < 1) return malformed();
    }
    if (static_cast<int64_t>(all.size()) + nodes > kMostNodes) return malformed();
    all.insert(all.end(), nodes, on_node);
  }
  return all;
}

}  // namespace shale
