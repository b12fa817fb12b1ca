#include "tools/bench/comm_group.h"

#include <algorithm>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/tensor.h"
#include "sharding/comm/all_to_all.h"

namespace shale {

absl::StatusOr<std::unique_ptr<CommGroup>> CommGroup::Create(const CommKind& kind, int n, int ranks_per_device,
                                                             int64_t largest_bytes, ControlPlane& control) {
  std::unique_ptr<CommGroup> group(new CommGroup(n, kind.thread_per_rank, control));
  SHALE_ASSIGN_OR_RETURN(group->ranks_, kind.create(n, ranks_per_device));
  const int here = static_cast<int>(group->ranks_.communicators.size());
  for (int rank = 0; rank < here; ++rank) {
    Device& device = *group->ranks_.devices[rank];
    // The vectors hold zeros, because sums of zeros stay the same call after call.
    SHALE_ASSIGN_OR_RETURN(auto arena, device.Allocate(2 * largest_bytes));
    // Writes every page once, because pages become resident when they are first written.
    if (kind.host_memory) std::fill_n(arena->base(), arena->size_bytes(), std::byte{0});
    group->arenas_.push_back(std::move(arena));
    SHALE_ASSIGN_OR_RETURN(auto stream, device.CreateStream(absl::StrCat("rank ", rank)));
    group->streams_.push_back(std::move(stream));
  }
  return group;
}

absl::StatusOr<double> CommGroup::Time(const CommCase& what, int64_t size_bytes, int64_t calls) {
  return TimeAll(calls, [&](int rank) { return Enqueue(what, size_bytes, rank); });
}

absl::StatusOr<double> CommGroup::TimeCopies(int64_t size_bytes, int64_t calls) {
  return TimeAll(calls, [&](int rank) {
    std::byte* from = arenas_[rank]->base();
    return streams_[rank]->Copy(from + size_bytes, from, size_bytes);
  });
}

absl::Status CommGroup::Enqueue(const CommCase& what, int64_t size_bytes, int rank) {
  const int64_t count = size_bytes / SizeOf(what.dtype), shard = count / size();
  std::byte* base = arenas_[rank]->base();
  const Tensor full = Tensor::Contiguous(what.dtype, {count}, base);
  const Tensor part = Tensor::Contiguous(what.dtype, {shard}, base + size_bytes);
  const auto rows = [&](std::byte* data) { return Tensor::Contiguous(what.dtype, {size(), shard}, data); };
  Communicator& communicator = *ranks_.communicators[rank];
  switch (what.kind) {
    case CollectiveKind::kAllGather: return communicator.AllGather(part, full, *streams_[rank]);
    case CollectiveKind::kReduceScatterSum: return communicator.ReduceScatterSum(full, part, *streams_[rank]);
    case CollectiveKind::kAllReduceSum: return communicator.AllReduceSum(full, *streams_[rank]);
    case CollectiveKind::kAllToAll:
      return AllToAllRows(communicator, rows(base), rows(base + size_bytes), *streams_[rank]);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CommGroup::TimeAll(int64_t calls, const Work& work) {
  std::vector<int64_t> begins(here()), ends(here());
  const auto begin = [&](int rank) { return streams_[rank]->RecordTime(&begins[rank]); };
  const auto end = [&](int rank) { return streams_[rank]->RecordTime(&ends[rank]); };
  if (thread_per_rank_) {
    SHALE_RETURN_IF_ERROR(OnThreads([&](int rank) {
      // Threads start one after another. The collective of Meet() lets the ranks begin at the same time.
      SHALE_RETURN_IF_ERROR(Meet(rank));
      SHALE_RETURN_IF_ERROR(begin(rank));
      for (int64_t i = 0; i < calls; ++i) SHALE_RETURN_IF_ERROR(work(rank));
      return end(rank);
    }));
  } else {
    // Neither do processes come here at the same time.
    for (int rank = 0; rank < here() && control_.processes() > 1; ++rank) SHALE_RETURN_IF_ERROR(Meet(rank));
    for (int rank = 0; rank < here(); ++rank) SHALE_RETURN_IF_ERROR(begin(rank));
    for (int64_t i = 0; i < calls; ++i) {
      for (int rank = 0; rank < here(); ++rank) SHALE_RETURN_IF_ERROR(work(rank));
    }
    for (int rank = 0; rank < here(); ++rank) SHALE_RETURN_IF_ERROR(end(rank));
  }
  for (const auto& stream : streams_) SHALE_RETURN_IF_ERROR(stream->Synchronize());
  SHALE_ASSIGN_OR_RETURN(const int64_t nanoseconds, Longest(*std::min_element(begins.begin(), begins.end()),
                                                            *std::max_element(ends.begin(), ends.end())));
  return 1e-9 * static_cast<double>(std::max<int64_t>(1, nanoseconds)) / static_cast<double>(calls);
}

absl::StatusOr<int64_t> CommGroup::Longest(int64_t begin, int64_t end) {
  if (control_.processes() == 1) return end - begin;
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         control_.Gather(ControlChannel::kSteps, absl::StrCat(begin, " ", end)));
  for (const std::string& each : all) {
    const std::pair<absl::string_view, absl::string_view> times = absl::StrSplit(each, ' ');
    int64_t its_begin = 0, its_end = 0;
    if (!absl::SimpleAtoi(times.first, &its_begin) || !absl::SimpleAtoi(times.second, &its_end)) {
      return absl::InternalError("a process sent no times");
    }
    begin = std::min(begin, its_begin);
    end = std::max(end, its_end);
  }
  return end - begin;
}

absl::Status CommGroup::Meet(int rank) {
  const Tensor word = Tensor::Contiguous(DType::kFloat32, {1}, arenas_[rank]->base());
  return ranks_.communicators[rank]->AllReduceSum(word, *streams_[rank]);
}

absl::Status CommGroup::OnThreads(const Work& work) {
  std::vector<absl::Status> statuses(here());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < here(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = work(rank);
      // Aborts, because otherwise the other ranks would wait for this one.
      if (!statuses[rank].ok()) ranks_.communicators[rank]->Abort(statuses[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) SHALE_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace shale
