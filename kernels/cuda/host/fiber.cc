#include "kernels/cuda/host/fiber.h"

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
  inside_.Prepare(stack_.get(), kStackBytes, &Fiber::Enter, this);
#ifdef __SANITIZE_THREAD__
  inside_thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(inside_thread_);
#endif
}

void Fiber::Enter(void* argument) {
  Fiber* self = static_cast<Fiber*>(argument);
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
  StackPointer::Switch(outside_, inside_);
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
  StackPointer::Switch(inside_, outside_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(inside_fake_stack_, &outside_stack_, &outside_stack_bytes_);
#endif
}

}  // namespace shale::cuda_on_host
