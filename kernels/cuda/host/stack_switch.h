// Changes stacks. swapcontext() does the same with a system call for the signal mask, which costs ten times as much.
#pragma once

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace shale::cuda_on_host {

// Where a stack goes on.
class StackPointer {
 public:
  // The beginning of `entry(argument)`, which must never return, on `stack`.
  void Prepare(std::byte* stack, size_t bytes, void (*entry)(void*), void* argument);

  // Leaves the running stack at `from` and goes on at `to`. Returns when something switches to `from`.
  static void Switch(StackPointer& from, StackPointer& to);

 private:
#ifdef __x86_64__
  void* top_ = nullptr;
#else
  ucontext_t context_ = {};
#endif
};

}  // namespace shale::cuda_on_host
