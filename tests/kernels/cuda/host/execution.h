// Execution: runs a kernel on the host and finds errors that a GPU would leave to chance. It runs the blocks of a
// launch one after the other, and the threads of a block as fibers that switch at barriers and warp operations.
// README.md lists what is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/kernels/cuda/host/fiber.h"
#include "tests/kernels/cuda/host/shadow.h"
#include "tests/kernels/cuda/host/shuffle.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::cuda_on_host {

// CUDA's uint3 and dim3.
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr uint64_t count() const { return uint64_t{x} * y * z; }
};

}  // namespace shale::cuda_on_host

namespace shale::cuda {

// CUDA's built-in variables, as kernels read them. Execution sets them before a thread of the kernel runs.
inline thread_local cuda_on_host::Index3 threadIdx, blockIdx;
inline thread_local cuda_on_host::Dim3 blockDim, gridDim;

}  // namespace shale::cuda

namespace shale::cuda_on_host {

// Limits of sm_80 and newer. The limit of shared memory is that of sm_90.
inline constexpr int kMaxThreads = 1024;
static_assert(kMaxThreads <= 1 << Moment::kThreadBits);
inline constexpr size_t kMaxSharedBytes = 227 << 10;
inline constexpr size_t kMaxStaticSharedBytes = 48 << 10;

struct Shape {
  Dim3 grid, block;
  size_t shared_bytes = 0;
};

// Rounds up to a multiple of 128 bytes, at which every shared array begins.
size_t AlignShared(size_t bytes);

// One access of a kernel to an array.
struct Access {
  const char* array;
  bool shared;
  bool write;
  int64_t index;  // The first element.
  int64_t count;
  int64_t size;  // Elements in the array.
  const void* data;
  int element_bytes;  // Times `count`, a power of two.
};

enum class WarpKind : uint8_t { kBarrier, kShuffle, kBallot };

struct WarpOperation {
  WarpKind kind = WarpKind::kBarrier;
  unsigned mask = 0;
  uint64_t value = 0;
  int source_lane = 0;  // Used by shuffles only.
  Site site;
  bool counts = true;  // As a warp operation. False for lanes that meet within an instruction of tensor cores.
};

// Runs launches on one OS thread. Keeps its fibers from launch to launch.
class Execution {
 public:
  // Returns the calling OS thread's execution, which lives until that thread ends.
  static Execution& OfThisThread();

  // Runs `body` in every thread of the launch, to the end. Returns InvalidArgument for a launch that CUDA refuses, and
  // FailedPrecondition for the first error of a thread, at which the launch stops. `stream` may be null.
  absl::Status Run(const char* kernel, const Shape& shape, Stream* stream, const std::function<void()>& body);

  // Returns the execution whose launch the calling thread of a kernel belongs to.
  static Execution& Running() { return *running_; }

  // The following are called by the threads of a launch.
  void BlockBarrier(Site site);
  // Takes part in a warp operation. Returns the value of a shuffle's source lane, or the bits of a vote.
  uint64_t WarpWide(const WarpOperation& operation);
  // Returns the block's static shared array that `key` stands for, and allocates it at the first call in a launch.
  void* StaticShared(const void* key, const char* name, size_t bytes);
  void* DynamicShared() { return shared_.get(); }
  size_t dynamic_shared_bytes() const { return shape_.shared_bytes; }
  // Begins a copy to shared memory: of `from` in global memory, or of zeros. The bytes are copied at the last moment,
  // by WaitForCopies, and until then it is an error to access `to`. A thread must not return before its copies are
  // done.
  void BeginCopy(const Access& to, const Access& from, bool zeros);
  void WaitForCopies(Site site);
  // Checks an access before it happens. Stops the launch if it is wrong. Inline, so that an access is put together only
  // if it is wrong.
  [[gnu::always_inline]] void Check(const Access& a) {
    const int64_t bytes = a.count * a.element_bytes;
    const auto data = reinterpret_cast<uintptr_t>(a.data);
    if (a.data == nullptr || a.index < 0 || a.index + a.count > a.size ||
        ((data + a.index * a.element_bytes) & (bytes - 1)) != 0) [[unlikely]] {
      StopAtOperand(a);
    }
    Counts& counts = stream_->counts;
    ++counts.accesses;
    (a.shared ? counts.shared_accessed_bytes : a.write ? counts.written_bytes : counts.read_bytes) += bytes;
    if (stream_->counts_arrays && !a.shared) [[unlikely]]
      CountArray(a, bytes);
    const Conflict conflict = Note(data + a.index * a.element_bytes, bytes, SpaceOf(a), a.write);
    if (conflict.kind != Conflict::kNone) [[unlikely]]
      StopAtConflict(a, conflict);
  }
  void CountMultiplyAdds(int64_t count) { stream_->counts.multiply_adds += count; }

 private:
  enum class Space : uint8_t { kShared, kGlobal, kGlobalBytes };  // The last one is for elements of single bytes.
  enum class State : uint8_t { kReady, kAtBlockBarrier, kAtWarpOperation, kReturned };
  struct Copy {
    Access to, from;
    bool zeros;
  };
  struct alignas(64) Thread {
    State state = State::kReady;
    uint32_t clock = 1;
    Fiber* fiber = nullptr;  // Null until the thread begins.
    uint64_t result = 0;
    WarpOperation operation;  // Its site also serves block barriers.
    LaneClocks seen = {};
    std::vector<Copy> copies;  // That it has begun and not waited for.
  };
  struct StaticArray {
    const void* key;
    size_t offset;
  };

  int threads() const { return static_cast<int>(shape_.block.count()); }
  int warp_begin(int thread) const { return thread / kWarp * kWarp; }
  Index3 ThreadIndex(int thread) const;
  std::string Where() const;
  std::string NameOf(const Moment& other) const;
  std::string Doing(int thread) const;

  // Ends the launch. Called by a thread of the kernel, whose stack is never unwound: objects on it must own nothing.
  // `report`, which words the error, is called outside that stack.
  void Stop(std::function<std::string()> report);
  // Lets the next ready thread run, in the order of this turn. Returns when it is this thread's turn again.
  void Suspend(State state);
  // Makes the next ready thread of this turn the current one. Returns false if there is none.
  bool Advance();
  // Returns the current thread's fiber, an idle one if the thread has not begun.
  Fiber& CurrentFiber();
  // What every fiber runs: the current thread, and after its end each next one that has not begun either. So threads
  // that never wait share a stack, and no switch lies between them.
  void RunThreads(Fiber& self);
  // Notes a barrier or a wait for copies in the stream. Returns whether threads must pass it without waiting
  // (Stream::without_barrier).
  bool Skip(Site site);
  // Fills bytes [begin, end) of shared memory with NaNs. The current block has not accessed them.
  void PoisonShared(size_t begin, size_t end);
  // Begins a launch: no access so far matters to it.
  void ForgetAccesses();
  static Space SpaceOf(const Access& a) {
    return a.shared ? Space::kShared : a.element_bytes < kCellBytes ? Space::kGlobalBytes : Space::kGlobal;
  }
  Cell* SharedCells(uintptr_t address) {
    return &shared_cells_[(address - reinterpret_cast<uintptr_t>(shared_.get())) / kCellBytes];
  }
  // Adds an access of the current thread to the shadow memory.
  Conflict Note(uintptr_t address, int64_t bytes, Space space, bool write);
  [[gnu::cold]] void CountArray(const Access& access, int64_t bytes);
  // Stop the launch because of an access: to no operand or to a place outside of it, or one that conflicts with
  // another.
  [[gnu::cold]] void StopAtOperand(const Access& access);
  [[gnu::cold]] void StopAtConflict(const Access& access, const Conflict& conflict);
  void StopAt(const Access& access, std::function<std::string()> what);

  void RunBlock();
  // Run threads up to their next wait, until none can continue or one fails. Return false if one fails.
  bool RunTurns();
  bool RunWarpsAhead();
  // Runs each ready thread among order_[begin, end) up to its next wait, in a new order: a turn. Returns false if one
  // fails.
  bool RunReadyThreads(int begin, int end);
  // Completes warp operations of the threads [first, end), whole warps. Returns whether one was complete.
  bool OpenWarpOperations(int first, int end);
  void Complete(int begin, unsigned lanes);
  bool OpenBlockBarrier();
  std::string Deadlock() const;

  static inline constinit thread_local Execution* running_ = nullptr;

  const char* kernel_ = "";
  Shape shape_;
  Stream* stream_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  Random random_;

  Fiber::Outside outside_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;  // Those that no thread uses.
  std::vector<Thread> threads_;
  std::vector<int> order_;  // The threads of the block. In kWarpsAhead each warp stays in its place.
  std::vector<int> warps_;  // Used by RunWarpsAhead only.
  std::vector<Index3> thread_indices_;
  int current_ = 0;
  int next_ = 0, turn_end_ = 0;         // The threads at order_[next_, turn_end_) have not had their turn.
  uint32_t epoch_ = 0;                  // See Moment. It goes on from launch to launch.
  uint32_t launch_epoch_ = 0;           // The first one of the launch.
  uint32_t first_epoch_ = 0;            // The first one of the block.
  Accessor accessor_;                   // The current thread. `since` is set at each access.
  std::vector<uint32_t> first_epochs_;  // Of the launch's blocks so far, in the order in which they ran.
  std::vector<uint32_t> blocks_;        // The launch's blocks in that order.
  std::function<std::string()> report_;
  std::string failure_;

  std::unique_ptr<std::byte[]> shared_;
  size_t shared_used_ = 0;
  std::vector<StaticArray> static_arrays_;
  std::vector<Cell> shared_cells_;  // Grows with the shared memory that launches have used.
  ShadowMemory global_cells_;
  ShadowMemory byte_cells_;  // Of global arrays whose elements are single bytes.
};

}  // namespace shale::cuda_on_host
