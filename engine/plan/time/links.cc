#include "engine/plan/time/links.h"

#include <algorithm>
#include <cmath>

namespace shale {
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

double HostCopySeconds(double bytes, const proto::MachineProfile& profile) {
  const LinkSpeed link = SpeedOf(profile, proto::Link::DEVICE_AND_HOST);
  return link.latency_seconds + bytes / link.bytes_per_second;
}

}  // namespace shale
