// Fiber: a function on a stack of its own, which runs until it suspends itself or continues another fiber. It tells the
// sanitizers of every switch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tests/kernels/cuda/host/stack_switch.h"

namespace shale::cuda_on_host {

// Belongs to one OS thread. Destroying a suspended fiber does not unwind its stack: destructors there do not run.
class Fiber {
 public:
  // The OS thread's own stack, from which its fibers are resumed.
  class Outside {
   private:
    friend class Fiber;
    StackPointer top_;
    // The sanitizers' handles.
    bool leaving_ = false;
    const void* stack_ = nullptr;
    size_t stack_bytes_ = 0;
    void* thread_ = nullptr;
  };

  // `body` starts when the fiber first runs and must never return. `outside` must outlive the fiber.
  Fiber(Outside& outside, std::function<void(Fiber& self)> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called from outside: runs the fiber, and those that it continues, until one suspends itself.
  void Resume();
  // Called from inside: returns to the caller of Resume.
  void Suspend();
  // Called from inside: as if this suspended itself and `next` were resumed, in one switch instead of two.
  void Continue(Fiber& next);

 private:
  static void Enter(void* self);
  // Called from inside after each switch to this fiber.
  void Arrive();

  Outside& outside_;
  std::function<void(Fiber&)> body_;
  std::unique_ptr<std::byte[]> stack_;
  StackPointer top_;
  // The sanitizers' handles.
  void* fake_stack_ = nullptr;
  void* thread_ = nullptr;
};

}  // namespace shale::cuda_on_host
