#include "tools/bench/comm.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/files/io/json_lines.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "tools/bench/comm_group.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string device;
  std::string ranks;
  int64_t ranks_per_device = 0;
  int64_t smallest_kib = 64;
  int64_t largest_kib = 64 * 1024;
  int64_t factor = 4;
  int64_t rounds = 15;
  double seconds = 0.2;
  std::string json;
};

constexpr CommCase kCases[] = {{CollectiveKind::kAllGather, DType::kFloat32},
                               {CollectiveKind::kAllGather, DType::kBFloat16},
                               {CollectiveKind::kReduceScatterSum, DType::kFloat32},
                               {CollectiveKind::kAllReduceSum, DType::kFloat32},
                               {CollectiveKind::kAllToAll, DType::kBFloat16}};

// Return bytes per byte of `size`: BusFactor those through each rank's link, as nccl-tests defines it; MemoryFactor
// those that all ranks together read and write in memory.
double BusFactor(CollectiveKind kind, double n) {
  return (kind == CollectiveKind::kAllReduceSum ? 2 : 1) * (n - 1) / n;
}
double MemoryFactor(CollectiveKind kind, double n) {
  switch (kind) {
    case CollectiveKind::kAllGather: return 2 * n;
    case CollectiveKind::kReduceScatterSum: return n + 1;
    case CollectiveKind::kAllReduceSum: return n + 1 + 2 * (n - 1);
    case CollectiveKind::kAllToAll: return 2 * n;
  }
  return 0;
}

struct Result {
  int ranks = 0;
  int64_t size_bytes = 0;
  CommCase what;
  double seconds = 0;         // Median of the rounds.
  double copy_bandwidth = 0;  // Bytes per second that all ranks read and write when each copies.
  double algbw() const { return static_cast<double>(size_bytes) / seconds; }
  double busbw() const { return algbw() * BusFactor(what.kind, ranks); }
  double memory() const { return algbw() * MemoryFactor(what.kind, ranks); }
};

absl::StatusOr<std::vector<int>> ParseRanks(const std::string& text, int processes) {
  std::vector<int> ranks;
  if (text.empty() && processes > 1) return std::vector<int>{processes};
  for (const absl::string_view word : absl::StrSplit(text.empty() ? "2,3,4,8" : text, ',')) {
    int value = 0;
    if (!absl::SimpleAtoi(word, &value) || value < 2 || value > 64) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks: found \"", word, "\"; a list of numbers from 2 to 64, as 2,4,8"));
    }
    if (processes > 1 && value != processes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks=", text, ": each of the ", processes, " processes is a rank; leave it out"));
    }
    ranks.push_back(value);
  }
  return ranks;
}

// Rounds `bytes` up so that each of n shards is a multiple of a cache line.
int64_t Divisible(int64_t bytes, int n) { return RoundUp(bytes, 64 * n); }

absl::StatusOr<Result> Measure(const Flags& flags, CommGroup& group, const CommCase& what, int64_t size_bytes) {
  // The stream can take this many calls without blocking the caller.
  const int64_t most = 200;
  SHALE_RETURN_IF_ERROR(group.Time(what, size_bytes, 1).status());
  SHALE_ASSIGN_OR_RETURN(const double first, group.Time(what, size_bytes, 2));
  const double share = flags.seconds / 2 / static_cast<double>(flags.rounds);
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(share / first), 1, most);
  std::vector<double> seconds, copies;
  for (int64_t i = 0; i < flags.rounds; ++i) {
    SHALE_ASSIGN_OR_RETURN(const double collective, group.Time(what, size_bytes, calls));
    SHALE_ASSIGN_OR_RETURN(const double copy, group.TimeCopies(size_bytes, calls));
    seconds.push_back(collective);
    copies.push_back(copy);
  }
  const double copied = 2.0 * static_cast<double>(size_bytes) * group.size();
  return Result{.ranks = group.size(),
                .size_bytes = size_bytes,
                .what = what,
                .seconds = Median(seconds),
                .copy_bandwidth = copied / Median(copies)};
}

std::string SizeName(int64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? absl::StrCat(Digits(kib), " KiB") : absl::StrCat(Digits(kib / 1024), " MiB");
}

std::string Name(CollectiveKind kind) { return std::string(ToString(kind).data(), ToString(kind).size()); }
std::string Name(DType dtype) { return std::string(ToString(dtype).data(), ToString(dtype).size()); }

std::string ResultJson(const Result& r) {
  return JsonObject()
      .Add("collective", Name(r.what.kind))
      .Add("dtype", Name(r.what.dtype))
      .Add("ranks", r.ranks)
      .Add("size_bytes", r.size_bytes)
      .Add("seconds", r.seconds)
      .Add("algbw_bytes_per_second", r.algbw())
      .Add("busbw_bytes_per_second", r.busbw())
      .Add("memory_bytes_per_second", r.memory())
      .Add("copy_bytes_per_second", r.copy_bandwidth)
      .ToString();
}

absl::Status Bench(const Flags& flags, const CommKind& kind, const std::vector<int>& ranks, ControlPlane& control) {
  const bool prints = control.process() == 0;
  std::vector<std::string> groups, results;
  for (const int n : ranks) {
    const int asked = static_cast<int>(flags.ranks_per_device);
    const int on_each = asked > 0 ? asked : kind.usual_ranks_per_device;
    const int64_t largest = Divisible(flags.largest_kib * 1024, n);
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<CommGroup> group,
                           CommGroup::Create(kind, n, on_each == 0 ? n : on_each, largest, control));
    if (prints && groups.empty()) std::printf("## Collectives, %s, %s\n", flags.device.c_str(), Today().c_str());
    groups.push_back(JsonObject().Add("ranks", n).Add("about", group->about()).ToString());
    MarkdownTable table({{"collective", true},
                         {"type", true},
                         {"size"},
                         {"time"},
                         {"algbw GB/s"},
                         {"busbw GB/s"},
                         {"memory GB/s"},
                         {"memcpy GB/s"},
                         {"of memcpy"}});
    for (const CommCase& what : kCases) {
      for (int64_t kib = flags.smallest_kib; kib <= flags.largest_kib; kib *= flags.factor) {
        SHALE_ASSIGN_OR_RETURN(const Result r, Measure(flags, *group, what, Divisible(kib * 1024, n)));
        table.Add({Name(what.kind), Name(what.dtype), SizeName(r.size_bytes), Time(r.seconds), Digits(r.algbw() * 1e-9),
                   Digits(r.busbw() * 1e-9), Digits(r.memory() * 1e-9), Digits(r.copy_bandwidth * 1e-9),
                   Digits(r.memory() / r.copy_bandwidth)});
        results.push_back(ResultJson(r));
      }
    }
    if (prints) std::printf("\n### %d ranks: %s\n\n%s", n, group->about().c_str(), table.ToString().c_str());
  }
  if (flags.json.empty() || !prints) return absl::OkStatus();
  std::string head = JsonObject()
                         .Add("bench", "comm")
                         .Add("date", Today())
                         .Add("device", flags.device)
                         .Add("processor", ProcessorName())
                         .Add("processors", ProcessorCount())
                         .ToString();
  head.pop_back();
  const auto list = [](const char* name, const std::vector<std::string>& rows) {
    return absl::StrCat(",\n \"", name, "\": [\n  ", absl::StrJoin(rows, ",\n  "), "\n]");
  };
  return WriteJson(flags.json, absl::StrCat(head, list("groups", groups), list("results", results), "}"));
}

std::string DeviceNames(const std::vector<CommKind>& kinds) {
  return absl::StrJoin(kinds, ", ", [](std::string* out, const CommKind& kind) { out->append(kind.device); });
}

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "comm: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(const Flags& flags, const std::vector<CommKind>& kinds, ControlPlane& control) {
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.device == flags.device; });
  if (kind == kinds.end()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--device: found \"", flags.device,
                                                        "\"; this program was built for ", DeviceNames(kinds))),
                kExitUsage);
  }
  if (flags.ranks_per_device > 0 && !kind->shares_devices) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("--ranks_per_device=", flags.ranks_per_device, ": ranks of --device=", flags.device,
                                 " share no GPU unless each is a process (tools/launch); leave it out")),
                kExitUsage);
  }
  const absl::StatusOr<std::vector<int>> ranks = ParseRanks(flags.ranks, control.processes());
  if (!ranks.ok()) return Fail(ranks.status(), kExitUsage);
  if (flags.largest_kib < flags.smallest_kib) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("--largest_kib=", flags.largest_kib, " is below --smallest_kib=", flags.smallest_kib)),
                kExitUsage);
  }
  const absl::Status status = Bench(flags, *kind, *ranks, control);
  return status.ok() ? kExitOk : Fail(status, kExitFailed);
}

}  // namespace

int BenchComm(int argc, char** argv, const std::vector<CommKind>& kinds, ControlPlane& control) {
  Flags flags{.device = kinds.front().device};
  CommandLine line("comm",
                   "Times the collectives between ranks: threads of one process, or the processes that a launcher "
                   "started. Prints Markdown tables.");
  const int64_t most_kib = int64_t{16} << 20;
  line.Text("device", "NAME", absl::StrCat("One of: ", DeviceNames(kinds), "."), &flags.device);
  line.Text("ranks", "LIST", "Numbers of ranks, from 2 to 64 (default: 2,3,4,8, or the number of processes).",
            &flags.ranks);
  line.Integer("ranks_per_device",
               "Ranks that share a GPU: threads of --device=cuda (0: all), or processes of --device=nccl (0: none).", 0,
               64, &flags.ranks_per_device);
  line.Integer("smallest_kib", "KiB of the smallest vector.", 1, most_kib, &flags.smallest_kib);
  line.Integer("largest_kib", "KiB of the largest vector; every rank holds two.", 1, most_kib, &flags.largest_kib);
  line.Integer("factor", "Factor from one size to the next.", 2, 1024, &flags.factor);
  line.Integer("rounds", "Rounds, of which the median is taken.", 1, 1000, &flags.rounds);
  line.Number("seconds", "Time for each line, copies in between included.", 0, 3600, &flags.seconds);
  line.Text("json", "FILE", "Also write all results as JSON to this file.", &flags.json);
  line.Footer(
      "As nccl-tests counts: size is the whole vector, that is what AllGather leaves on every rank and what "
      "ReduceScatterSum\n"
      "takes from it; algbw = size / time; busbw = algbw (n - 1) / n, twice that for AllReduceSum. Memory is what all "
      "ranks\n"
      "read and write together, memcpy the same of n ranks that each copy a vector of this size: past the caches where "
      "it\n"
      "is large, as collectives of the CPU copy, too.\n"
      "\n"
      "Exit codes: 0 measured; 1 failed; 2 wrong command line.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return Run(flags, kinds, control);
}

}  // namespace shale
