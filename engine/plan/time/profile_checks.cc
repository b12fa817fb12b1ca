#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/config/errors.h"
#include "engine/plan/time/profile.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"

namespace shale {
namespace {

// No machine of the next decades reaches these, so what is above them has a wrong unit.
constexpr double kMostFlops = 1e18, kMostBytesPerSecond = 1e15, kMostBytes = 1e15, kMostSeconds = 1e5, kMostCount = 1e6,
                 kMostElements = 1e18;
// Nor is any so slow. A rate of 0 is not known.
constexpr double kLeastPerSecond = 1e3;
constexpr int kMostWorks = 20'000, kMostSizes = 8;
constexpr size_t kMostLetters = 200;
// How much faster than the peak a work may be: a peak that a program measured is not the highest.
constexpr double kMostOfPeak = 4;

class Checker {
 public:
  explicit Checker(SpecErrors& errors) : errors_(errors) {}

  void Check(const proto::MachineProfile& profile) {
    Name("name", profile.name());
    Name("processor", profile.processor());
    if (profile.device() != "CPU" && profile.device() != "CUDA") {
      errors_.Add("device", absl::StrCat("found ", Quoted(profile.device()), "; wanted \"CPU\" or \"CUDA\""));
    }
    CheckOrigin("origin", profile.origin(), /*required=*/true);
    CheckNumbers(profile);
    CheckRates(profile);
    CheckWorks(profile);
    CheckLinks(profile);
  }

 private:
  void Name(const std::string& path, const std::string& name) {
    if (name.empty() || name.size() > kMostLetters || FindNonText(name) != absl::string_view::npos ||
        name.find('\n') != std::string::npos) {
      errors_.Add(path, absl::StrCat("found ", Quoted(name), "; wanted 1 to ", kMostLetters, " bytes in one line"));
    }
  }

  void Number(const std::string& path, double value, double most, bool required = false) {
    if (std::isnan(value) || value < 0 || value > most) {
      errors_.Add(path, absl::StrFormat("found %g; wanted a number from 0 to %g", value, most));
    } else if (required && value == 0) {
      errors_.Add(path, "is missing; wanted a number above 0");
    }
  }

  void Rate(const std::string& path, double value, double most, bool required = false) {
    if (value > 0 && value < kLeastPerSecond) {
      errors_.Add(path, absl::StrFormat("found %g; wanted a number from %g to %g", value, kLeastPerSecond, most));
    } else {
      Number(path, value, most, required);
    }
  }

  void CheckOrigin(const std::string& path, const proto::Origin& origin, bool required) {
    if (required && origin.source() == proto::Origin::SOURCE_UNKNOWN) {
      errors_.Add(path, "is missing; say whether the numbers are MEASURED, PUBLISHED, of a DATA_SHEET or ESTIMATED");
    }
    if (!origin.by().empty()) Name(absl::StrCat(path, ".by"), origin.by());
    if (!origin.date().empty()) Name(absl::StrCat(path, ".date"), origin.date());
  }

  void CheckNumbers(const proto::MachineProfile& profile) {
    Number("devices_per_host", static_cast<double>(profile.devices_per_host()), kMostCount, /*required=*/true);
    Number("threads", static_cast<double>(profile.threads()), kMostCount, /*required=*/true);
    Number("device_bytes", static_cast<double>(profile.device_bytes()), kMostBytes, profile.device() == "CUDA");
    Number("host_bytes", static_cast<double>(profile.host_bytes()), kMostBytes);
    Rate("peak_flops_f32", profile.peak_flops_f32(), kMostFlops, /*required=*/true);
    Rate("peak_flops_bf16", profile.peak_flops_bf16(), kMostFlops, /*required=*/true);
    Rate("peak_flops_fp8", profile.peak_flops_fp8(), kMostFlops);
    Rate("copy_bytes_per_second", profile.copy_bytes_per_second(), kMostBytesPerSecond, /*required=*/true);
    Number("compute_major", static_cast<double>(profile.compute_major()), kMostCount);
    Number("compute_minor", static_cast<double>(profile.compute_minor()), kMostCount);
    Rate("disk_bytes_per_second", profile.disk_bytes_per_second(), kMostBytesPerSecond);
    Number("issue_seconds", profile.issue_seconds(), kMostSeconds);
    Number("between_steps_seconds", profile.between_steps_seconds(), kMostSeconds);
    Number("rank_spread", profile.rank_spread(), 1);
  }

  void CheckRates(const proto::MachineProfile& profile) {
    std::set<std::string> kinds;
    for (int i = 0; i < profile.rates_size(); ++i) {
      const proto::KindRate& rate = profile.rates(i);
      const std::string path = absl::StrCat("rates[", i, "].");
      Name(path + "kind", rate.kind());
      if (!kinds.insert(rate.kind()).second) errors_.Add(path + "kind", Twice(rate.kind()));
      Rate(path + "flops_per_second", rate.flops_per_second(), kMostFlops);
      Rate(path + "bytes_per_second", rate.bytes_per_second(), kMostBytesPerSecond);
      Number(path + "latency_seconds", rate.latency_seconds(), kMostSeconds);
      if (rate.flops_per_second() == 0 && rate.bytes_per_second() == 0) {
        errors_.Add(path + "bytes_per_second", "is missing, and so is flops_per_second; wanted one of them");
      }
      CheckOrigin(path + "origin", rate.origin(), /*required=*/false);
    }
  }

  void CheckWorks(const proto::MachineProfile& profile) {
    if (profile.works_size() > kMostWorks) {
      errors_.Add("works", absl::StrCat("found ", profile.works_size(), "; wanted at most ", kMostWorks));
      return;
    }
    const double most_flops =
        kMostOfPeak * std::max({profile.peak_flops_f32(), profile.peak_flops_bf16(), profile.peak_flops_fp8()});
    std::set<std::string> works;
    for (int i = 0; i < profile.works_size(); ++i) {
      const proto::MeasuredWork& work = profile.works(i);
      const std::string path = absl::StrCat("works[", i, "].");
      CheckWork(path, work);
      if (work.flops() > most_flops * work.seconds()) {
        errors_.Add(path + "seconds", absl::StrFormat("found %g for %g FLOPs, more than %g times the peak of a device",
                                                      work.seconds(), work.flops(), kMostOfPeak));
      }
      const std::string text =
          absl::StrCat(work.kind(), " ", absl::StrJoin(work.sizes(), " x "), " of ", work.ranks_on_host(), " ranks");
      if (!works.insert(text).second) errors_.Add(path + "kind", Twice(text));
    }
  }

  void CheckWork(const std::string& path, const proto::MeasuredWork& work) {
    Name(path + "kind", work.kind());
    if (work.sizes().empty() || work.sizes_size() > kMostSizes) {
      errors_.Add(path + "sizes", absl::StrCat("found ", work.sizes_size(), "; wanted 1 to ", kMostSizes));
    }
    for (const double size : work.sizes()) Number(path + "sizes", size, kMostElements);
    Number(path + "flops", work.flops(), kMostFlops * kMostSeconds);
    Number(path + "bytes", work.bytes(), kMostBytes);
    Number(path + "seconds", work.seconds(), kMostSeconds, /*required=*/true);
    Number(path + "spread", work.spread(), kMostCount);
    Number(path + "count", static_cast<double>(work.count()), kMostElements);
    Number(path + "ranks_on_host", static_cast<double>(work.ranks_on_host()), kMostCount, /*required=*/true);
    CheckOrigin(path + "origin", work.origin(), /*required=*/false);
  }

  void CheckLinks(const proto::MachineProfile& profile) {
    std::set<int> ends;
    for (int i = 0; i < profile.links_size(); ++i) {
      const proto::Link& link = profile.links(i);
      const std::string path = absl::StrCat("links[", i, "].");
      if (link.ends() == proto::Link::ENDS_UNKNOWN) errors_.Add(path + "ends", "is missing");
      if (!ends.insert(link.ends()).second) errors_.Add(path + "ends", Twice(proto::Link::Ends_Name(link.ends())));
      Rate(path + "bytes_per_second", link.bytes_per_second(), kMostBytesPerSecond, /*required=*/true);
      Number(path + "latency_seconds", link.latency_seconds(), kMostSeconds);
      CheckOrigin(path + "origin", link.origin(), /*required=*/false);
    }
  }

  static std::string Twice(const std::string& what) { return absl::StrCat(Quoted(what), " stands there twice"); }

  SpecErrors& errors_;
};

}  // namespace

void CheckProfile(const proto::MachineProfile& profile, SpecErrors* errors) { Checker(*errors).Check(profile); }

absl::Status CheckProfile(const proto::MachineProfile& profile, absl::string_view file) {
  SpecErrors errors{std::string(file)};
  CheckProfile(profile, &errors);
  return errors.ToStatus();
}

}  // namespace shale
