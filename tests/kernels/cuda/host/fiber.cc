#include "tests/kernels/cuda/host/fiber.h"

#include <cstdlib>
#include <utility>

#ifdef SHALE_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace shale::cuda_on_host {
namespace {

// No multiple of a page, so that the places at which the stacks are used differ in their sets of the caches.
constexpr size_t kStackBytes = (68 << 10) + 448;

}  // namespace

Fiber::Fiber(Outside& outside, std::function<void(Fiber&)> body)
    : outside_(outside), body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
  top_.Prepare(stack_.get(), kStackBytes, &Fiber::Enter, this);
#ifdef __SANITIZE_THREAD__
  thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(thread_);
#endif
}

void Fiber::Enter(void* argument) {
  Fiber* self = static_cast<Fiber*>(argument);
  self->Arrive();
  self->body_(*self);
  std::abort();
}

void Fiber::Arrive() {
#ifdef SHALE_ADDRESS_SANITIZER
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &stack, &stack_bytes);
  if (!std::exchange(outside_.leaving_, false)) return;
  outside_.stack_ = stack;
  outside_.stack_bytes_ = stack_bytes;
#endif
}

void Fiber::Resume() {
#ifdef SHALE_ADDRESS_SANITIZER
  void* fake_stack = nullptr;
  outside_.leaving_ = true;
  __sanitizer_start_switch_fiber(&fake_stack, stack_.get(), kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  outside_.thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_, 0);
#endif
  StackPointer::Switch(outside_.top_, top_);
#ifdef SHALE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#ifdef SHALE_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&fake_stack_, outside_.stack_, outside_.stack_bytes_);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(outside_.thread_, 0);
#endif
  StackPointer::Switch(top_, outside_.top_);
  Arrive();
}

void Fiber::Continue(Fiber& next) {
#ifdef SHALE_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&fake_stack_, next.stack_.get(), kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(next.thread_, 0);
#endif
  StackPointer::Switch(top_, next.top_);
  Arrive();
}

}  // namespace shale::cuda_on_host
