#include "tests/kernels/cuda/host/stack_switch.h"

#include <cstdint>

#ifdef __x86_64__

// shale_switch_stack pushes the registers that a function must preserve (System V ABI) on the stack that it leaves,
// stores that stack's pointer in *rdi, and continues on the stack in rsi. A new stack begins in shale_begin_stack, with
// the function to call in r13 and its argument in r12.
asm(R"(
  .text
  .p2align 4
  .type shale_switch_stack, @function
shale_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size shale_switch_stack, . - shale_switch_stack

  .p2align 4
  .type shale_begin_stack, @function
shale_begin_stack:
  movq %r12, %rdi
  callq *%r13
  ud2
  .size shale_begin_stack, . - shale_begin_stack
)");

extern "C" void shale_begin_stack();

namespace shale::cuda_on_host {

void StackPointer::Prepare(std::byte* stack, size_t bytes, void (*entry)(void*), void* argument) {
  // From the lowest address: r15, r14, r13, r12, rbx, rbp, return address. Then the stack is at a multiple of 16.
  auto** end = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16);
  void** top = end - 9;
  for (int i = 0; i < 9; ++i) top[i] = nullptr;
  top[2] = reinterpret_cast<void*>(entry);
  top[3] = argument;
  top[6] = reinterpret_cast<void*>(&shale_begin_stack);
  top_ = top;
}

}  // namespace shale::cuda_on_host

#else

namespace shale::cuda_on_host {
namespace {

// makecontext passes ints only.
void Begin(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
  const auto join = [](unsigned high, unsigned low) { return static_cast<uintptr_t>(high) << 32 | low; };
  reinterpret_cast<void (*)(void*)>(join(entry_high, entry_low))(
      reinterpret_cast<void*>(join(argument_high, argument_low)));
}

}  // namespace

void StackPointer::Prepare(std::byte* stack, size_t bytes, void (*entry)(void*), void* argument) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  const auto e = reinterpret_cast<uintptr_t>(entry), a = reinterpret_cast<uintptr_t>(argument);
  makecontext(&context_, reinterpret_cast<void (*)()>(&Begin), 4, static_cast<unsigned>(e >> 32),
              static_cast<unsigned>(e), static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
}

}  // namespace shale::cuda_on_host

#endif
