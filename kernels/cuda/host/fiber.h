// A stack of its own that runs until it suspends itself. The sanitizers are told of every switch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/cuda/host/stack_switch.h"

namespace shale::cuda_on_host {

// Belongs to one OS thread. A fiber that is destroyed while suspended is not unwound: its frames just go.
class Fiber {
 public:
  // `body` starts at the first Resume and must never return.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From outside: runs the fiber until it suspends itself.
  void Resume();
  // From inside: back to whoever resumed it.
  void Suspend();

 private:
  static void Enter(void* self);

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  StackPointer inside_, outside_;
  // The sanitizers' names for both sides.
  void* inside_fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
  void* inside_thread_ = nullptr;
  void* outside_thread_ = nullptr;
};

}  // namespace shale::cuda_on_host
