// StackPointer: switches between stacks. swapcontext() does the same but makes a system call for the signal mask, which
// makes it ten times as slow.
#pragma once

#include <cstddef>

#ifdef __x86_64__
extern "C" void shale_switch_stack(void** from, void* to);
#else
#include <ucontext.h>
#endif

namespace shale::cuda_on_host {

// The point at which a stack continues.
class StackPointer {
 public:
  // Points this to the beginning of `entry(argument)`, which runs on `stack` and must never return.
  void Prepare(std::byte* stack, size_t bytes, void (*entry)(void*), void* argument);

  // Saves the running stack in `from` and continues at `to`. Returns when something switches to `from`.
#ifdef __x86_64__
  static void Switch(StackPointer& from, StackPointer& to) { shale_switch_stack(&from.top_, to.top_); }
#else
  static void Switch(StackPointer& from, StackPointer& to) { swapcontext(&from.context_, &to.context_); }
#endif

 private:
#ifdef __x86_64__
  void* top_ = nullptr;
#else
  ucontext_t context_ = {};
#endif
};

}  // namespace shale::cuda_on_host
