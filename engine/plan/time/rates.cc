#include "engine/plan/time/rates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/integers.h"
#include "kernels/op_backend.h"

namespace shale {
namespace {

// What ops reach of the peaks of a machine if nothing else is known of them.
constexpr double kShareOfPeakFlops = 0.6;
constexpr double kShareOfCopySpeed = 0.75;
// How far estimates may be off.
constexpr double kSpreadOfRates = 0.25, kSpreadOfPeaks = 0.5, kSpreadOfLikeKinds = 0.1;
// Peaks of a profile that has none: those of a slow machine.
constexpr double kSomeFlops = 1e10, kSomeBytes = 1e9;
// No work takes less or more, so that sums stay finite.
constexpr double kLeastTime = 1e-9, kMostTime = 1e9;

double Bounded(double seconds) {
  return std::isfinite(seconds) ? std::clamp(seconds, kLeastTime, kMostTime) : kMostTime;
}

// How much each size of an attention on a GPU counts, in the order of Work::sizes: batch and heads, query heads of a
// key head, tokens, head width, window. Figures 5 and 6 of FlashAttention-3 (Shah et al. 2024) have the rates of cuDNN
// on an H100 without a mask, in TFLOP/s, with 1,024 and with 16,384 tokens in a sequence. All sequences together always
// have 16,384 tokens, so batch and heads shrink as the sequence grows:
//   forward   width 64: 373, 413   width 128: 574, 595
//   backward  width 64: 348, 433   width 128: 408, 516
// A rate grows by 1 to 6 % when the tokens double, and by 17 to 54 % when the width does. In the logarithm that is 0.04
// as much forward and 0.34 backward: a quarter stands for both. A window is a number of tokens too. Query heads that
// share a key head change what is read, not what is computed. These numbers were fixed before they were tried on any
// step.
constexpr double kAttentionOnGpu[] = {0.25, 0.25, 0.25, 1, 0.25};

// Returns whether `kind` begins with the words of `words`.
bool BeginsWithWords(absl::string_view kind, absl::string_view words) {
  return absl::StartsWith(kind, words) && (kind.size() == words.size() || kind[words.size()] == ' ');
}

// Returns the words that like kinds share, the first two: "MatMul bf16". Where the second says whose kernels compute
// the op, they are three: "AttentionForward own bf16".
absl::string_view WordsOfLikeKinds(absl::string_view kind) {
  size_t end = kind.find(' ');
  if (end == kind.npos) return kind;
  const absl::string_view rest = kind.substr(end + 1);
  if (BeginsWithWords(rest, kOwnKernels) || BeginsWithWords(rest, kCudnnKernels)) end = kind.find(' ', end + 1);
  return end == kind.npos ? kind : kind.substr(0, kind.find(' ', end + 1));
}

// Returns the coordinates of a work among others of its kind: the logarithm of each size, times how much that counts.
std::vector<double> CoordinatesOf(absl::Span<const double> sizes, absl::string_view kind, bool on_gpu) {
  std::vector<double> coordinates;
  for (const double size : sizes) coordinates.push_back(std::log2(std::max(size, 1.0)));
  const bool weighed = on_gpu && absl::StartsWith(kind, "Attention") && sizes.size() == std::size(kAttentionOnGpu);
  for (size_t i = 0; weighed && i < sizes.size(); ++i) coordinates[i] *= kAttentionOnGpu[i];
  return coordinates;
}

}  // namespace

absl::string_view ToString(Knowledge knowledge) {
  switch (knowledge) {
    case Knowledge::kMeasured: return "measured";
    case Knowledge::kInterpolated: return "interpolated";
    case Knowledge::kExtrapolated: return "extrapolated";
    case Knowledge::kEstimated: return "estimated";
  }
  return "?";
}

Crossing CrossingOf(int64_t group_ranks, int64_t group_stride, const RankLayout& layout) {
  const int64_t size = std::max<int64_t>(1, group_ranks), stride = std::max<int64_t>(1, group_stride);
  const int64_t ranks = std::max(layout.ranks, size * stride);
  const int64_t hosts = CeilDivide(ranks, std::max<int64_t>(1, layout.ranks_on_host));
  const int64_t processes = std::clamp(layout.processes, hosts, ranks);
  // Process p begins at rank p * ranks / processes.
  const auto process_of = [&](int64_t rank) { return ((rank + 1) * processes - 1) / ranks; };
  struct OnHost {
    int64_t host = 0, ranks = 0, processes = 0;  // Of one group.
  };
  std::vector<OnHost> group;
  std::vector<double> gathered(hosts), reduced(hosts);
  Crossing crossing;
  for (int64_t first = 0; first < ranks; ++first) {
    if (first / stride % size != 0) continue;  // It is not the first of its group.
    group.clear();
    int64_t of_group = 0, members = 0, last_process = -1;
    for (int64_t rank = first; rank < std::min(ranks, first + size * stride); rank += stride, ++members) {
      const int64_t process = process_of(rank), host = process * hosts / processes;
      if (group.empty() || group.back().host != host) group.push_back({.host = host});
      ++group.back().ranks;
      if (process == last_process) continue;
      last_process = process;
      ++group.back().processes;
      ++of_group;
    }
    crossing.processes |= of_group > 1;
    crossing.hosts |= group.size() > 1;
    for (const OnHost& here : group) {
      const double share = static_cast<double>(here.ranks) / static_cast<double>(size);
      gathered[here.host] += share * static_cast<double>(of_group - here.processes);
      reduced[here.host] += share * static_cast<double>(members - here.ranks);
    }
  }
  crossing.gathered = *std::max_element(gathered.begin(), gathered.end());
  crossing.reduced = *std::max_element(reduced.begin(), reduced.end());
  return crossing;
}

Rates::Rates(const proto::MachineProfile& profile, const RankLayout& layout)
    : profile_(profile),
      layout_{.ranks_on_host = std::max<int64_t>(1, layout.ranks_on_host),
              .ranks = layout.ranks,
              .processes = layout.processes} {
  profile_.clear_works();
  // Works that were measured with as many ranks on a host come first, and then count alone.
  for (const bool alike : {true, false}) {
    std::map<std::string, std::vector<Point>, std::less<>> found;
    found.swap(points_);
    for (const proto::MeasuredWork& work : profile.works()) {
      const bool is_alike = std::max<int64_t>(1, work.ranks_on_host()) == layout_.ranks_on_host;
      if (is_alike == alike && found.find(work.kind()) == found.end()) Add(work);
    }
    points_.merge(found);
  }
}

void Rates::Add(const proto::MeasuredWork& measured) {
  double seconds = measured.seconds();
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const double ranks = static_cast<double>(std::max<int64_t>(1, measured.ranks_on_host()));
  // Ranks on CPUs divide the cores of their host.
  if (profile_.device() == "CPU") seconds *= static_cast<double>(layout_.ranks_on_host) / ranks;
  Point point{.flops = std::max(0.0, measured.flops()),
              .bytes = std::max(0.0, measured.bytes()),
              .log_seconds = std::log(Bounded(seconds)),
              .spread = std::isfinite(measured.spread()) ? std::clamp(measured.spread(), 0.0, 1.0) : 1.0,
              .count = static_cast<double>(std::max<int64_t>(1, measured.count())),
              .shared = ranks > 1 && static_cast<int64_t>(ranks) == layout_.ranks_on_host};
  point.coordinates = CoordinatesOf(measured.sizes(), measured.kind(), profile_.device() == "CUDA");
  std::vector<Point>& points = points_[measured.kind()];
  const auto equal =
      std::find_if(points.begin(), points.end(), [&](const Point& p) { return p.coordinates == point.coordinates; });
  if (equal == points.end()) {
    points.push_back(std::move(point));
    return;
  }
  // The same work took different times in different steps: takes the mean, and how far apart they are.
  const double apart = std::abs(equal->log_seconds - point.log_seconds) / 2;
  const double share = point.count / (equal->count + point.count);
  equal->log_seconds += share * (point.log_seconds - equal->log_seconds);
  equal->count += point.count;
  equal->spread = std::max({equal->spread, point.spread, std::min(apart, 1.0)});
}

Rates::Curve Rates::CurveOf(const Work& work) const {
  Curve curve;
  const auto add = [&](const std::vector<Point>& points) {
    for (const Point& point : points) {
      if (point.coordinates.size() == work.sizes.size()) curve.points.push_back(point);
    }
  };
  if (const auto found = points_.find(work.kind); found != points_.end()) add(found->second);
  if (!curve.points.empty()) return curve;
  curve.exact = false;
  const auto add_all = [&](absl::string_view alike) {
    for (const auto& [kind, points] : points_) {
      if (BeginsWithWords(kind, alike) && IsBetweenProcesses(kind) == IsBetweenProcesses(work.kind)) add(points);
    }
  };
  add_all(WordsOfLikeKinds(work.kind));
  if (curve.points.empty() && profile_.device() == "CPU" && MultipliesFloat8(work.kind)) add_all("MatMul bf16");
  return curve;
}

WorkTime Rates::Of(const Work& work) const {
  if (profile_.device() != "CPU" || work.work_class != WorkClass::kCollective) return WithinProcess(work);
  const Crossing crossing = CrossingOf(work.group_ranks, work.group_stride, layout_);
  if (!crossing.processes) return WithinProcess(work);
  WorkTime time = BetweenProcesses(work);
  if (!crossing.hosts) return time;
  time.copy_seconds = time.seconds;
  time.link_seconds = Bounded(HostLinkSecondsOf(work, profile_, crossing));
  time.seconds = std::max(time.copy_seconds, time.link_seconds);
  time.how = Knowledge::kEstimated;
  time.spread = std::max(time.spread, kSpreadOfRates);
  time.shared = false;
  return time;
}

WorkTime Rates::BetweenProcesses(const Work& work) const {
  Work between = work;
  between.kind = KindBetweenProcesses(work.kind);
  if (const Curve curve = CurveOf(between); !curve.points.empty()) return OfCurve(curve, between);
  if (RateOf(between) != RateOf(work)) return Estimate(between);
  WorkTime time = WithinProcess(work);  // Takes them for threads.
  time.how = Knowledge::kEstimated;
  time.spread += kSpreadOfLikeKinds;
  return time;
}

WorkTime Rates::WithinProcess(const Work& work) const {
  const Curve curve = CurveOf(work);
  return curve.points.empty() ? Estimate(work) : OfCurve(curve, work);
}

WorkTime Rates::OfCurve(const Curve& curve, const Work& work) const {
  const std::vector<double> at = CoordinatesOf(work.sizes, work.kind, profile_.device() == "CUDA");
  if (curve.exact) {
    for (const Point& point : curve.points) {
      if (point.coordinates != at) continue;
      return {std::exp(point.log_seconds), Knowledge::kMeasured, point.spread, point.shared};
    }
  }
  const CurveValue value = ValueOf(curve.points, work, at);
  return {.seconds = Bounded(value.seconds),
          .how = !curve.exact      ? Knowledge::kEstimated
                 : value.is_inside ? Knowledge::kInterpolated
                                   : Knowledge::kExtrapolated,
          .spread = value.spread + (curve.exact ? 0 : kSpreadOfLikeKinds),
          .shared = std::all_of(curve.points.begin(), curve.points.end(), [](const Point& p) { return p.shared; })};
}

const proto::KindRate* Rates::RateOf(const Work& work) const {
  const proto::KindRate* longest = nullptr;
  for (const proto::KindRate& rate : profile_.rates()) {
    if (!BeginsWithWords(work.kind, rate.kind())) continue;
    if (longest == nullptr || rate.kind().size() > longest->kind().size()) longest = &rate;
  }
  return longest;
}

WorkTime Rates::Estimate(const Work& work) const {
  const proto::KindRate* const rate = RateOf(work);
  const bool has_link = work.work_class == WorkClass::kCollective || work.work_class == WorkClass::kCopy;
  return {.seconds = Bounded(EstimatedSeconds(work)),
          .how = Knowledge::kEstimated,
          .spread = rate != nullptr || has_link ? kSpreadOfRates : kSpreadOfPeaks};
}

double Rates::EstimatedSeconds(const Work& work) const {
  const proto::KindRate* const rate = RateOf(work);
  const bool on_cpu = profile_.device() == "CPU";
  if (rate == nullptr && !on_cpu && work.work_class == WorkClass::kCollective) {
    return CollectiveSecondsOf(work, profile_, layout_.ranks_on_host);
  }
  if (rate == nullptr && !on_cpu && work.work_class != WorkClass::kArithmetic &&
      work.work_class != WorkClass::kMemory) {
    return HostCopySeconds(work.bytes(), profile_);
  }
  // The peaks of a CPU are those of its host, which the ranks on it divide.
  const double divided = on_cpu ? 1.0 / static_cast<double>(layout_.ranks_on_host) : 1.0;
  const bool is_float8 = MultipliesFloat8(work.kind);
  // What multiplies fp8 matrices, with whatever result, is no slower than in bf16 if its own peak is not known.
  const bool narrow = is_float8 || absl::StrContains(work.kind, "f16");
  double peak = PositiveOr(narrow ? profile_.peak_flops_bf16() : profile_.peak_flops_f32(), kSomeFlops);
  if (is_float8) peak = PositiveOr(profile_.peak_flops_fp8(), peak);
  const double copies = PositiveOr(profile_.copy_bytes_per_second(), kSomeBytes);
  const double flops_per_second =
      PositiveOr(rate == nullptr ? 0 : rate->flops_per_second(), kShareOfPeakFlops * peak) * divided;
  const double bytes_per_second =
      PositiveOr(rate == nullptr ? 0 : rate->bytes_per_second(), kShareOfCopySpeed * copies) * divided;
  const double latency = rate == nullptr ? 0 : PositiveOr(rate->latency_seconds(), 0);
  return latency + std::max(work.flops / flops_per_second, work.bytes() / bytes_per_second);
}

namespace {

// A link that a profile does not name: PCI Express between devices, 100 Gb/s Ethernet between hosts.
constexpr double kSomeLinkBytes = 1e10, kSomeLinkLatency = 2e-5;

struct LinkSpeed {
  double bytes_per_second = kSomeLinkBytes;
  double latency_seconds = kSomeLinkLatency;
};

LinkSpeed SpeedOf(const proto::MachineProfile& profile, proto::Link::Ends ends) {
  for (const proto::Link& link : profile.links()) {
    if (link.ends() != ends) continue;
    return {PositiveOr(link.bytes_per_second(), kSomeLinkBytes), PositiveOr(link.latency_seconds(), 0)};
  }
  return {};
}

// Each rank sends to each other one at the same time, over its own link to other hosts.
CollectiveTime ExchangeTimeOf(double sent_bytes, int64_t ranks, int64_t per_host, const LinkSpeed& device,
                              const LinkSpeed& host) {
  if (ranks < 2) return {};
  const double to_host = static_cast<double>(per_host - 1) / static_cast<double>(ranks - 1);
  CollectiveTime time;
  time.device_seconds = to_host * sent_bytes / device.bytes_per_second;
  time.host_seconds = (1 - to_host) * sent_bytes / host.bytes_per_second;
  time.latency_seconds = ranks > per_host ? host.latency_seconds : device.latency_seconds;
  return time;
}

}  // namespace

double PositiveOr(double value, double otherwise) { return std::isfinite(value) && value > 0 ? value : otherwise; }

double CollectiveTime::seconds() const { return latency_seconds + std::max(device_seconds, host_seconds); }

CollectiveTime CollectiveTimeOf(const Work& work, const proto::MachineProfile& profile, int64_t ranks_on_host) {
  const int64_t ranks = std::max<int64_t>(1, work.group_ranks);
  const int64_t per_host = std::clamp<int64_t>(ranks_on_host / std::max<int64_t>(1, work.group_stride), 1, ranks);
  const auto hosts = static_cast<double>((ranks + per_host - 1) / per_host);
  const LinkSpeed device = SpeedOf(profile, proto::Link::DEVICES_OF_HOST), host = SpeedOf(profile, proto::Link::HOSTS);
  CollectiveTime time;
  if (per_host > 1) time.device_seconds = work.sent_bytes / device.bytes_per_second;
  if (hosts > 1) time.host_seconds = work.sent_bytes / (host.bytes_per_second * static_cast<double>(per_host));
  if (work.kind.rfind("AllToAll", 0) == 0) return ExchangeTimeOf(work.sent_bytes, ranks, per_host, device, host);
  const double in_host = static_cast<double>(per_host - 1) * device.latency_seconds;
  const double around = hosts > 1 ? hosts * (in_host + host.latency_seconds) : in_host;
  time.latency_seconds = around;
  if (work.sizes.empty() || work.kind.rfind("AllReduceSum", 0) != 0) return time;
  const double down = std::ceil(std::log2(hosts)) * host.latency_seconds + in_host;
  time.latency_seconds = 2 * std::min(around, down);
  return time;
}

double HostLinkSecondsOf(const Work& work, const proto::MachineProfile& profile, const Crossing& crossing) {
  if (work.group_ranks < 2) return 0;
  const bool gathers = absl::StartsWith(work.kind, "AllGather"), all = absl::StartsWith(work.kind, "AllReduceSum");
  const double full_bytes =
      work.sent_bytes / (all ? 2 : 1) / (1 - 1 / static_cast<double>(work.group_ranks));  // See Work::sent_bytes.
  const double sent = (gathers || all ? crossing.gathered : 0) + (gathers ? 0 : crossing.reduced);
  const double messages = all || absl::StartsWith(work.kind, "AllToAll") ? 2 : 1;
  const LinkSpeed link = SpeedOf(profile, proto::Link::HOSTS);
  return messages * link.latency_seconds + sent * full_bytes / link.bytes_per_second;
}

double HostCopySeconds(double bytes, const proto::MachineProfile& profile) {
  const LinkSpeed link = SpeedOf(profile, proto::Link::DEVICE_AND_HOST);
  return link.latency_seconds + bytes / link.bytes_per_second;
}

}  // namespace shale
