#include "kernels/device/cpu/cpu_stream.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/device/host_work.h"

namespace shale {
namespace {

constexpr size_t kMaxThreadNameBytes = 15;  // The limit of Linux.

absl::Status NotOfTheCpu(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a CPU stream was given ", what, " of another kind of device"));
}

absl::Status NegativeSize(int64_t size_bytes) {
  return absl::InvalidArgumentError(absl::StrCat("a copy of ", size_bytes, " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuStream>> CpuStream::Create(Options options, StreamProgress& progress) {
  SHALE_CHECK(options.queue_depth >= 1) << "queue depth " << options.queue_depth;
  std::unique_ptr<CpuStream> stream(new CpuStream(std::move(options), progress));
  if (!stream->options_.synchronous) {
    stream->ring_.resize(stream->options_.queue_depth);
    try {
      stream->thread_ = std::thread([s = stream.get()] { s->Loop(); });
    } catch (const std::system_error& e) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for stream ", stream->options_.name, ": ", e.what(),
                       "; raise the limit on threads (ulimit -u) or run fewer ranks in one process"));
    }
  }
  if (stream->options_.initialize) {
    stream->Push(Item{.work = [s = stream.get()] {
      s->options_.initialize();
      return absl::OkStatus();
    }});
  }
  return stream;
}

absl::StatusOr<CpuStream*> CpuStream::From(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  if (cpu == nullptr) return absl::InvalidArgumentError("wanted a CPU stream, found another device's");
  return cpu;
}

CpuStream::~CpuStream() {
  if (!thread_.joinable()) return;
  Push(Item{});
  thread_.join();
}

absl::Status CpuStream::Enqueue(std::function<absl::Status()> work) {
  SHALE_CHECK(work != nullptr) << "stream " << options_.name;
  if (progress_.failed()) return progress_.error();
  Push(Item{.work = std::move(work)});
  return options_.synchronous && progress_.failed() ? progress_.error() : absl::OkStatus();
}

absl::Status CpuStream::Record(Event& event) {
  auto* cpu_event = dynamic_cast<CpuEvent*>(&event);
  if (cpu_event == nullptr) return NotOfTheCpu("an event");
  cpu_event->progress_ = &progress_;
  cpu_event->items_ = enqueued_;
  return absl::OkStatus();
}

absl::Status CpuStream::Wait(const Event& event) {
  const auto* cpu_event = dynamic_cast<const CpuEvent*>(&event);
  if (cpu_event == nullptr) return NotOfTheCpu("an event");
  // FIFO order already waits for this stream's own records. A wait for another stream is enqueued even if the event has
  // been reached: checking that here would order later work on every stream, not on this one alone.
  if (cpu_event->progress_ == nullptr || cpu_event->progress_ == &progress_) return absl::OkStatus();
  Push(Item{.awaited = cpu_event->progress_, .awaited_items = cpu_event->items_});
  return absl::OkStatus();
}

absl::Status CpuStream::RecordTime(int64_t* nanoseconds) {
  return Enqueue([nanoseconds] {
    *nanoseconds = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    return absl::OkStatus();
  });
}

absl::Status CpuStream::Synchronize() {
  known_finished_ = progress_.Await(enqueued_);
  return progress_.ErrorOf(enqueued_);
}

absl::Status CpuStream::EnqueueCopy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes < 0) return NegativeSize(size_bytes);
  return Enqueue([to, from, size_bytes] {
    if (size_bytes > 0) CopyBytes(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size_bytes);
    return absl::OkStatus();
  });
}

absl::Status CpuStream::FinishCopy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes < 0) return NegativeSize(size_bytes);
  SHALE_RETURN_IF_ERROR(Synchronize());
  if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  return absl::OkStatus();
}

void CpuStream::Push(Item item) {
  if (options_.synchronous) {
    ++enqueued_;
    Run(std::move(item));
    return;
  }
  const uint64_t depth = ring_.size();
  // Waits until half of the ring is free, so that a launching thread that is far ahead is not woken for every item.
  if (enqueued_ - known_finished_ >= depth) known_finished_ = progress_.Await(enqueued_ - depth / 2);
  ring_[enqueued_ % depth] = std::move(item);
  ++enqueued_;
  published_.Advance();
}

void CpuStream::Loop() {
  const std::string name = options_.thread_name.substr(0, kMaxThreadNameBytes);
  pthread_setname_np(pthread_self(), name.c_str());
  uint64_t published = 0;
  for (uint64_t next = 0;; ++next) {
    if (published == next) published = published_.AwaitAtLeast(next + 1);
    Item item = std::move(ring_[next % ring_.size()]);
    if (item.work == nullptr && item.awaited == nullptr) return;
    Run(std::move(item));
  }
}

void CpuStream::Run(Item item) {
  absl::Status status;
  if (item.awaited != nullptr) {
    const auto before = std::chrono::steady_clock::now();
    item.awaited->Await(item.awaited_items);
    const std::chrono::nanoseconds blocked = std::chrono::steady_clock::now() - before;
    blocked_ns_.fetch_add(blocked.count(), std::memory_order_relaxed);
    status = item.awaited->ErrorOf(item.awaited_items);
  } else if (!progress_.failed()) {
    status = RunHostWork(item.work, options_.name);
  }
  item.work = nullptr;
  if (!status.ok()) progress_.Fail(std::move(status));
  progress_.Finish();
}

}  // namespace shale
