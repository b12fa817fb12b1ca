// Handles: the numbers by which the C interface names its objects.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace shale::c {

// The kinds of handles, so that a handle of one kind is never taken for one of another.
enum class HandleKind : uint8_t { kJob = 1, kPlan, kTrainer, kGenerator, kBuilder, kStop, kAdmission, kVerification };

// Returns how often the processes from which this one was forked had forked before, since the first call.
inline int64_t Forks() {
  static std::atomic<int64_t> forks = 0;
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks;
}

// Owns objects of one kind, and finds them by their handles. A handle has the kind (8 bits), a number that no other
// handle of the kind has (40 bits), and the slot of the object (16 bits). So a freed handle never becomes valid again,
// and a wrong one is an error. Thread-safe.
//
// Objects of some kinds have threads, and so have the libraries that they use. A process that was forked after the
// first use has none of these threads, and would wait for them forever. There every call returns FailedPrecondition,
// also Free.
template <class T>
class Handles {
 public:
  Handles(HandleKind kind, const char* name)
      : kind_(kind),
        name_(name),
        has_threads_(kind == HandleKind::kTrainer || kind == HandleKind::kGenerator),
        forks_(Forks()) {}
  Handles(const Handles&) = delete;

  // Returns the handle of a new object, which these handles own until Free.
  absl::StatusOr<uint64_t> Add(std::shared_ptr<T> object) {
    if (absl::Status status = CheckProcess(); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t slot = 0;
    while (slot < slots_.size() && slots_[slot].object != nullptr) ++slot;
    if (slot == kMostSlots) {
      return absl::ResourceExhaustedError(absl::StrCat("there are ", kMostSlots, " handles of ", name_,
                                                       "s already; free those that are no longer needed"));
    }
    if (slot == slots_.size()) slots_.emplace_back();
    slots_[slot] = {.object = std::move(object), .number = ++last_number_};
    return (uint64_t{static_cast<uint8_t>(kind_)} << 56) | (slots_[slot].number << 16) | slot;
  }

  // Returns the object, which stays alive as long as the result, also if another thread frees the handle.
  absl::StatusOr<std::shared_ptr<T>> Share(uint64_t handle) {
    if (absl::Status status = CheckProcess(); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<Slot*> slot = Find(handle);
    if (!slot.ok()) return slot.status();
    return (*slot)->object;
  }

  // The use of an object by one call.
  class Use {
   public:
    Use(Use&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), slot_(other.slot_), object_(other.object_) {}
    ~Use() {
      if (owner_ != nullptr) owner_->End(slot_);
    }
    T* operator->() const { return object_; }
    T& operator*() const { return *object_; }

   private:
    friend class Handles;
    Use(Handles* owner, size_t slot, T* object) : owner_(owner), slot_(slot), object_(object) {}
    Handles* owner_;
    size_t slot_;
    T* object_;
  };

  // Returns the object for the caller alone. Returns Unavailable while another Use of it exists.
  absl::StatusOr<Use> Take(uint64_t handle) {
    if (absl::Status status = CheckProcess(); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<Slot*> slot = Find(handle);
    if (!slot.ok()) return slot.status();
    if ((*slot)->used) return InUse();
    (*slot)->used = true;
    return Use(this, static_cast<size_t>(handle & kSlotMask), (*slot)->object.get());
  }

  // Returns OK unless this process lacks the threads, because it was forked after the first use. Takes no lock, which
  // another thread may have held at the fork.
  absl::Status CheckProcess() const {
    if (!has_threads_ || Forks() == forks_) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "this process was forked from one that had used a ", name_,
        ", and has none of its threads; start it by executing a program instead (Python: multiprocessing \"spawn\")"));
  }

  // Gives up the object: it is destroyed, unless Share still holds it. 0 is no handle, and freeing it does nothing.
  // Returns Unavailable while a Use of the object exists.
  absl::Status Free(uint64_t handle) {
    if (handle == 0) return absl::OkStatus();
    if (absl::Status status = CheckProcess(); !status.ok()) return status;
    std::shared_ptr<T> object;  // Destroyed after the lock is released, because a destructor may take long.
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      absl::StatusOr<Slot*> slot = Find(handle);
      if (!slot.ok()) return slot.status();
      if ((*slot)->used) return InUse();
      object = std::move((*slot)->object);
      **slot = {};
    }
    return absl::OkStatus();
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;  // Null: the slot is free.
    uint64_t number = 0;
    bool used = false;
  };

  static constexpr size_t kMostSlots = size_t{1} << 16;
  static constexpr uint64_t kSlotMask = kMostSlots - 1;
  static constexpr uint64_t kNumberMask = (uint64_t{1} << 40) - 1;

  absl::StatusOr<Slot*> Find(uint64_t handle) {
    const size_t slot = static_cast<size_t>(handle & kSlotMask);
    if (handle == 0) return absl::InvalidArgumentError(absl::StrCat("0 is not the handle of a ", name_));
    if (handle >> 56 != static_cast<uint8_t>(kind_)) {
      return absl::InvalidArgumentError(
          absl::StrCat(handle, " is not the handle of a ", name_, ", but of another kind"));
    }
    if (slot >= slots_.size() || slots_[slot].object == nullptr ||
        slots_[slot].number != ((handle >> 16) & kNumberMask)) {
      return absl::InvalidArgumentError(absl::StrCat("this handle of a ", name_, " was freed, or was never returned"));
    }
    return &slots_[slot];
  }

  absl::Status InUse() const {
    return absl::UnavailableError(absl::StrCat(
        "another call uses this ", name_, "; one thread at a time may, and a callback must not use what called it"));
  }

  void End(size_t slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    slots_[slot].used = false;
  }

  const HandleKind kind_;
  const char* const name_;
  const bool has_threads_;
  const int64_t forks_;  // When these handles were first used.
  std::mutex mutex_;
  std::vector<Slot> slots_;  // mutex_ guards it and last_number_.
  uint64_t last_number_ = 0;
};

}  // namespace shale::c
