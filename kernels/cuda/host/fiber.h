// Fiber: a function on a stack of its own, which runs until it suspends itself. It tells the sanitizers of every
// switch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/cuda/host/stack_switch.h"

namespace shale::cuda_on_host {

// Belongs to one OS thread. Destroying a suspended fiber does not unwind its stack: destructors there do not run.
class Fiber {
 public:
  // `body` starts at the first Resume and must never return.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called from outside: runs the fiber until it suspends itself.
  void Resume();
  // Called from inside: returns to the caller of Resume.
  void Suspend();

 private:
  static void Enter(void* self);

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  StackPointer inside_, outside_;
  // The sanitizers' handles for both stacks.
  void* inside_fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
  void* inside_thread_ = nullptr;
  void* outside_thread_ = nullptr;
};

}  // namespace shale::cuda_on_host
