#include "tests/kernels/cuda/host/execution.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host/block_turns.h"
#include "tests/kernels/cuda/host/reports.h"

namespace shale::cuda_on_host {
namespace {

Index3 At(uint64_t number, const Dim3& dim) {
  return {static_cast<unsigned>(number % dim.x), static_cast<unsigned>(number / dim.x % dim.y),
          static_cast<unsigned>(number / dim.x / dim.y)};
}

}  // namespace

Execution& Execution::OfThisThread() {
  static thread_local Execution execution;
  return execution;
}

absl::Status Execution::Run(const char* kernel, const Shape& shape, Stream* stream, const std::function<void()>& body) {
  if (std::string wrong = WrongWithShape(shape); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(kernel, ": ", wrong));
  }
  Stream defaults;
  kernel_ = kernel;
  shape_ = shape;
  if (stream_of_this_thread != nullptr) stream = stream_of_this_thread;
  stream_ = stream != nullptr ? stream : &defaults;
  body_ = &body;
  random_ = Random(stream_->seed);
  failure_.clear();
  running_ = this;
  ForgetAccesses();
  static_arrays_.clear();
  if (shared_ == nullptr) shared_ = std::make_unique_for_overwrite<std::byte[]>(kMaxSharedBytes);
  shared_used_ = AlignShared(shape.shared_bytes);
  cuda::blockDim = shape.block;
  cuda::gridDim = shape.grid;

  thread_indices_.resize(threads());
  for (int t = 0; t < threads(); ++t) thread_indices_[t] = At(t, shape.block);

  const uint64_t count = shape.grid.count(), run = stream_->last_blocks == 0 ? count : stream_->last_blocks;
  blocks_.resize(std::min(count, run));
  std::iota(blocks_.begin(), blocks_.end(), static_cast<uint32_t>(count - blocks_.size()));
  Shuffle(blocks_.begin(), blocks_.end(), random_);
  launch_epoch_ = epoch_ + 1;
  first_epochs_.clear();
  BlockTurns::Launch turns(stream_->turns);
  for (const uint32_t block : blocks_) {
    turns.Await();
    cuda::blockIdx = At(block, shape.grid);
    RunBlock();
    Counts& counts = stream_->counts;
    ++counts.blocks;
    counts.warps += (threads() + kWarp - 1) / kWarp;
    counts.block_shared_bytes = std::max(counts.block_shared_bytes, shared_used_);
    if (failure_.empty()) continue;
    idle_.clear();
    fibers_.clear();        // Some are suspended in the middle of the kernel.
    shared_cells_.clear();  // Some tell of copies that will never be done.
    return absl::FailedPreconditionError(absl::StrCat(kernel, ": ", failure_));
  }
  return absl::OkStatus();
}

void Execution::RunBlock() {
  first_epoch_ = accessor_.first_epoch = ++epoch_;
  first_epochs_.push_back(first_epoch_);
  order_.resize(threads());
  std::iota(order_.begin(), order_.end(), 0);
  threads_.resize(std::max(threads_.size(), order_.size()));
  for (int t : order_) {
    threads_[t].state = State::kReady;
    threads_[t].fiber = nullptr;
    threads_[t].clock = 1;
    threads_[t].seen.fill(0);
    threads_[t].copies.clear();
  }
  PoisonShared(0, std::min(shared_used_, kMaxSharedBytes));
  while (stream_->order == ThreadOrder::kTurns ? RunTurns() : RunWarpsAhead()) {
    const auto returned = [&](int t) { return threads_[t].state == State::kReturned; };
    if (std::all_of(order_.begin(), order_.end(), returned)) return;
    if (!OpenBlockBarrier()) {
      failure_ = Deadlock();
      return;
    }
  }
}

bool Execution::RunTurns() {
  do {
    if (!RunReadyThreads(0, threads())) return false;
  } while (OpenWarpOperations(0, threads()));
  return failure_.empty();
}

bool Execution::RunWarpsAhead() {
  warps_.resize((threads() + kWarp - 1) / kWarp);
  std::iota(warps_.begin(), warps_.end(), 0);
  Shuffle(warps_.begin(), warps_.end(), random_);
  for (const int warp : warps_) {
    const int begin = warp * kWarp, end = std::min(begin + kWarp, threads());
    do {
      if (!RunReadyThreads(begin, end)) return false;
    } while (OpenWarpOperations(begin, end));
    if (!failure_.empty()) return false;
  }
  return true;
}

bool Execution::RunReadyThreads(int begin, int end) {
  Shuffle(order_.begin() + begin, order_.begin() + end, random_);
  next_ = begin;
  turn_end_ = end;
  if (Advance()) CurrentFiber().Resume();
  if (report_ == nullptr) return true;
  failure_ = std::exchange(report_, nullptr)();
  return false;
}

bool Execution::Advance() {
  while (next_ < turn_end_) {
    const int t = order_[next_++];
    if (threads_[t].state != State::kReady) continue;
    current_ = t;
    accessor_.now = Moment(epoch_, threads_[t].clock, t);
    accessor_.clocks = &threads_[t].seen;
    cuda::threadIdx = ThreadIndex(t);
    return true;
  }
  return false;
}

Fiber& Execution::CurrentFiber() {
  if (threads_[current_].fiber != nullptr) return *threads_[current_].fiber;
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(outside_, [this](Fiber& self) { RunThreads(self); }));
    return *fibers_.back();
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

void Execution::RunThreads(Fiber& self) {
  for (;;) {
    threads_[current_].fiber = &self;
    (*body_)();
    if (!threads_[current_].copies.empty()) {
      Stop([this] { return absl::StrCat(Where(), " returns without WaitForCopies() after it has begun a copy"); });
    }
    threads_[current_].state = State::kReturned;
    const bool more = Advance();
    if (more && threads_[current_].fiber == nullptr) continue;
    idle_.push_back(&self);
    if (more) {
      self.Continue(*threads_[current_].fiber);
    } else {
      self.Suspend();
    }
  }
}

// A warp operation is complete when every thread that its mask names waits at an operation of the same kind and mask,
// or has returned.
bool Execution::OpenWarpOperations(int first, int end) {
  bool opened = false;
  for (int begin = first; begin < end; begin += kWarp) {
    const int lanes = std::min(kWarp, end - begin);
    for (int lane = 0; lane < lanes; ++lane) {
      const Thread& first = threads_[begin + lane];
      if (first.state != State::kAtWarpOperation) continue;
      unsigned taking_part = 0;
      bool complete = true;
      for (int other = 0; other < lanes && complete; ++other) {
        const Thread& thread = threads_[begin + other];
        if ((first.operation.mask >> other & 1) == 0 || thread.state == State::kReturned) continue;
        complete = complete && thread.state == State::kAtWarpOperation &&
                   thread.operation.kind == first.operation.kind && thread.operation.mask == first.operation.mask;
        taking_part |= 1u << other;
      }
      if (!complete) continue;
      Complete(begin, taking_part);
      if (!failure_.empty()) return false;
      opened = true;
    }
  }
  return opened;
}

void Execution::Complete(int begin, unsigned lanes) {
  if (threads_[begin + std::countr_zero(lanes)].operation.counts) ++stream_->counts.warp_operations;
  LaneClocks joined = {};
  uint64_t ballot = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Thread& thread = threads_[begin + lane];
    if (thread.operation.value != 0) ballot |= uint64_t{1} << lane;
    if (thread.operation.kind != WarpKind::kBarrier) continue;
    joined[lane] = thread.clock;  // Nobody has seen more of this lane.
    for (unsigned others = ~lanes; others != 0; others &= others - 1) {
      const int other = std::countr_zero(others);
      joined[other] = std::max(joined[other], thread.seen[other]);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Thread& thread = threads_[begin + lane];
    thread.state = State::kReady;
    switch (thread.operation.kind) {
      case WarpKind::kBarrier:
        thread.seen = joined;
        if (++thread.clock > Moment::kMaxClock) {
          failure_ = absl::StrCat("a thread comes to more than ", Moment::kMaxClock - 1, " warp barriers in a block");
          return;
        }
        break;
      case WarpKind::kBallot: thread.result = ballot; break;
      case WarpKind::kShuffle: {
        const int source = thread.operation.source_lane;
        if ((lanes >> source & 1) == 0) {
          current_ = begin + lane;
          failure_ = absl::StrCat(Where(), " shuffles at ", Text(thread.operation.site), " from lane ", source,
                                  ", which takes no part");
          return;
        }
        thread.result = threads_[begin + source].operation.value;
        break;
      }
    }
  }
}

// Opens the barrier if all threads wait at the same one. Called when no thread can continue otherwise.
bool Execution::OpenBlockBarrier() {
  const Site& site = threads_[0].operation.site;
  for (const int t : order_) {
    const Thread& thread = threads_[t];
    if (thread.state != State::kAtBlockBarrier || !(thread.operation.site == site)) return false;
  }
  for (const int t : order_) threads_[t].state = State::kReady;
  ++stream_->counts.block_barriers;
  ++epoch_;
  return true;
}

std::string Execution::Doing(int thread) const {
  const Thread& t = threads_[thread];
  const std::string name = absl::StrCat("thread ", Text(ThreadIndex(thread)));
  switch (t.state) {
    case State::kReturned: return absl::StrCat(name, " has returned");
    case State::kAtBlockBarrier: return absl::StrCat(name, " is at the __syncthreads() of ", Text(t.operation.site));
    default: break;
  }
  constexpr const char* kNames[] = {"__syncwarp", "shuffle", "vote"};
  return absl::StrCat(name, " is at the ", kNames[static_cast<int>(t.operation.kind)], " of ", Text(t.operation.site),
                      " with mask 0x", absl::Hex(t.operation.mask));
}

// Describes a deadlock: names the first thread that waits, and the first thread that it waits for in vain.
std::string Execution::Deadlock() const {
  int waiting = 0;
  while (threads_[waiting].state == State::kReturned) ++waiting;
  const Thread& first = threads_[waiting];
  const bool block = first.state == State::kAtBlockBarrier;
  const int begin = block ? 0 : warp_begin(waiting);
  const int end = block ? threads() : std::min(begin + kWarp, threads());
  int other = waiting;
  for (int t = begin; t < end && other == waiting; ++t) {
    const Thread& thread = threads_[t];
    const bool like_it = thread.state == first.state && (block ? thread.operation.site == first.operation.site
                                                               : thread.operation.kind == first.operation.kind &&
                                                                     thread.operation.mask == first.operation.mask);
    const bool awaited = block || ((first.operation.mask >> (t - begin) & 1) != 0 && thread.state != State::kReturned);
    if (awaited && !like_it) other = t;
  }
  return absl::StrCat("block ", Text(cuda::blockIdx), ": ", Doing(waiting), ", and ", Doing(other),
                      "; wanted all threads ", block ? "of the block" : "that the mask names", " at one place");
}

void Execution::Suspend(State state) {
  Fiber& self = *threads_[current_].fiber;
  threads_[current_].state = state;
  if (Advance()) {
    self.Continue(CurrentFiber());
  } else {
    self.Suspend();
  }
}

void Execution::Stop(std::function<std::string()> report) {
  report_ = std::move(report);
  threads_[current_].state = State::kReturned;
  threads_[current_].fiber->Suspend();
}

bool Execution::Skip(Site site) {
  std::vector<Site>& seen = stream_->barriers;
  if (std::find(seen.begin(), seen.end(), site) == seen.end()) seen.push_back(site);
  return stream_->without_barrier == site;
}

void Execution::BlockBarrier(Site site) {
  if (Skip(site)) return;
  threads_[current_].operation.site = site;
  Suspend(State::kAtBlockBarrier);
}

uint64_t Execution::WarpWide(const WarpOperation& operation) {
  if (operation.kind == WarpKind::kBarrier && Skip(operation.site)) return 0;
  const int self = current_;
  if ((operation.mask >> (self % kWarp) & 1) == 0) {
    Stop([this, operation, self] {
      return absl::StrCat(Where(), " calls a warp operation at ", Text(operation.site), " with mask 0x",
                          absl::Hex(operation.mask), ", which lacks its own lane ", self % kWarp);
    });
  }
  threads_[self].operation = operation;
  Suspend(State::kAtWarpOperation);
  return threads_[self].result;
}

Index3 Execution::ThreadIndex(int thread) const { return thread_indices_[thread]; }

std::string Execution::Where() const {
  return absl::StrCat("block ", Text(cuda::blockIdx), " thread ", Text(ThreadIndex(current_)));
}

std::string Execution::NameOf(const Moment& other) const {
  const std::string thread = absl::StrCat("thread ", Text(ThreadIndex(other.thread())));
  if (other.epoch() >= first_epoch_) return thread;
  const auto after = std::upper_bound(first_epochs_.begin(), first_epochs_.end(), other.epoch());
  return absl::StrCat("block ", Text(At(blocks_[after - first_epochs_.begin() - 1], shape_.grid)), " ", thread);
}

}  // namespace shale::cuda_on_host
