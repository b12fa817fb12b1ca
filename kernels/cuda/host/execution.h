// Runs the blocks of a launch one after the other, the threads of a block as fibers that take turns at barriers and
// warp operations, and finds what a GPU would leave to chance. README.md lists what is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/host/fiber.h"
#include "kernels/cuda/host/shadow.h"
#include "kernels/cuda/host/stream.h"

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

// What kernels see; set whenever a thread gets its turn.
inline thread_local cuda_on_host::Index3 threadIdx, blockIdx;
inline thread_local cuda_on_host::Dim3 blockDim, gridDim;

}  // namespace shale::cuda

namespace shale::cuda_on_host {

// Limits of sm_80 and newer, but for shared memory, which is that of sm_90.
inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 << 10;
inline constexpr size_t kMaxStaticSharedBytes = 48 << 10;

struct Shape {
  Dim3 grid, block;
  size_t shared_bytes = 0;
};

// Shared arrays begin at multiples of 128 bytes.
size_t AlignShared(size_t bytes);

// One access of an array, as a kernel states it.
struct Access {
  const char* array;
  bool shared;
  bool write;
  int64_t index;  // Of the first element.
  int64_t count;
  int64_t size;  // Elements of the array.
  const void* data;
  int element_bytes;
};

enum class WarpKind : uint8_t { kBarrier, kShuffle, kBallot };

struct WarpOperation {
  WarpKind kind = WarpKind::kBarrier;
  unsigned mask = 0;
  uint64_t value = 0;
  int source_lane = 0;  // Of a shuffle.
  Site site;
};

// One per OS thread; keeps its fibers between launches.
class Execution {
 public:
  static Execution& OfThisThread();

  // Runs `body` in every thread. InvalidArgument for a launch that CUDA refuses; FailedPrecondition for the first thing
  // that a thread did wrong, after which nothing runs on. `stream` may be null.
  absl::Status Run(const char* kernel, const Shape& shape, Stream* stream, const std::function<void()>& body);

  // The rest is called by the threads of a launch.
  void BlockBarrier(Site site);
  // The value of a shuffle's source lane, or the bits of a vote.
  uint64_t WarpWide(const WarpOperation& operation);
  // The block's array that belongs to `key`.
  void* StaticShared(const void* key, const char* name, size_t bytes);
  void* DynamicShared() { return shared_.get(); }
  size_t dynamic_shared_bytes() const { return shape_.shared_bytes; }
  // Reports what is wrong with an access before it happens.
  void Check(const Access& access);

 private:
  enum class State : uint8_t { kReady, kAtBlockBarrier, kAtWarpOperation, kReturned };
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    State state = State::kReady;
    WarpOperation operation;  // Its site also serves block barriers.
    uint64_t result = 0;
    uint32_t clock = 1;
    LaneClocks seen = {};
  };
  struct StaticArray {
    const void* key;
    size_t offset;
  };

  int threads() const { return static_cast<int>(shape_.block.count()); }
  int warp_begin(int thread) const { return thread / kWarp * kWarp; }
  Moment Now() const;
  Index3 ThreadIndex(int thread) const;
  std::string Where() const;
  std::string NameOf(const Moment& other) const;
  std::string Doing(int thread) const;

  // Ends the launch; called by a thread, whose stack is never unwound: so `report` is called outside it, and whatever
  // is on the stack must own nothing.
  void Stop(std::function<std::string()> report);
  void Suspend(State state);
  // Notes a barrier; whether the stream has taken it out.
  bool Skip(Site site);
  // Makes bytes of shared memory unwritten NaNs.
  void PoisonShared(size_t begin, size_t end);

  void RunBlock();
  bool RunReadyThreads();
  bool OpenWarpOperations();
  void Complete(int begin, unsigned lanes);
  bool OpenBlockBarrier();
  std::string Deadlock() const;

  const char* kernel_ = "";
  Shape shape_;
  Stream* stream_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::mt19937_64 random_;

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<int> order_;
  int current_ = 0;
  uint32_t block_ = 0;
  uint32_t epoch_ = 0;
  std::function<std::string()> report_;
  std::string failure_;

  std::unique_ptr<std::byte[]> shared_;
  size_t shared_used_ = 0;
  std::vector<StaticArray> static_arrays_;
  std::vector<Cell> shared_cells_;
  ShadowMemory global_cells_;
};

}  // namespace shale::cuda_on_host
