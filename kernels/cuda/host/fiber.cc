#include "kernels/cuda/host/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace shale::cuda_on_host {
namespace {

constexpr size_t kStackBytes = 64 << 10;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  // makecontext passes ints only.
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
#ifdef __SANITIZE_THREAD__
  inside_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(inside_thread_);
#endif
}

void Fiber::Enter(unsigned high, unsigned low) {
  Fiber* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack_, &self->outside_stack_bytes_);
#endif
  self->body_();
  std::abort();
}

void Fiber::Resume() {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_.get(), kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  outside_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(inside_thread_, 0);
#endif
  swapcontext(&outside_, &inside_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&inside_fake_stack_, outside_stack_, outside_stack_bytes_);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(outside_thread_, 0);
#endif
  swapcontext(&inside_, &outside_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(inside_fake_stack_, &outside_stack_, &outside_stack_bytes_);
#endif
}

}  // namespace shale::cuda_on_host
