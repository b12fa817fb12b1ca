// StandInRuntime: memory and copies.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda/host/stand_in_stream.h"

namespace shale::cuda_on_host {
namespace {

std::string Text(const void* address) { return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(address))); }

std::vector<Allocation*> Uses(std::initializer_list<Allocation*> allocations) {
  std::vector<Allocation*> uses;
  for (Allocation* allocation : allocations) {
    if (allocation != nullptr) uses.push_back(allocation);
  }
  return uses;
}

}  // namespace

absl::StatusOr<void*> StandInRuntime::Allocate(const char* call, MemoryKind kind, int64_t size_bytes) {
  SHALE_RETURN_IF_ERROR(ErrorOf(call, current()));
  SHALE_RETURN_IF_ERROR(CheckNoCapture(call));
  if (size_bytes < 0) return Misuse(call, absl::StrCat(size_bytes, " bytes"));
  SHALE_RETURN_IF_ERROR(CheckTaking(call, absl::StrCat(size_bytes, " bytes")));
  std::lock_guard lock(mutex_);
  Gpu& gpu = gpus_[current()];
  const bool fails = allocations_left_.fetch_sub(1, std::memory_order_relaxed) == 1;
  if (fails || (kind == MemoryKind::kDevice && size_bytes > options_.memory_bytes - gpu.allocated_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(call, ": out of memory (cudaErrorMemoryAllocation)"));
  }
  SHALE_ASSIGN_OR_RETURN(Allocation * made, MapMemory(this, current(), kind, size_bytes));
  if (kind == MemoryKind::kDevice) gpu.allocated_bytes += size_bytes;
  allocations_.push_back(made);
  return made->address;
}

absl::Status StandInRuntime::Deallocate(const char* call, MemoryKind kind, void* memory) {
  if (memory == nullptr) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(CheckNoCapture(call));
  std::unique_lock lock(mutex_);
  auto found = std::find_if(allocations_.begin(), allocations_.end(),
                            [&](const Allocation* a) { return a->address == memory && a->kind == kind; });
  if (found == allocations_.end()) {
    lock.unlock();
    return Misuse(call, absl::StrCat(Text(memory), " is not the address of an allocation, or was freed before"));
  }
  Allocation& freed = **found;
  if (const int uses = freed.uses.load(std::memory_order_relaxed); uses > 0) {
    lock.unlock();
    return Misuse(call, absl::StrCat(freed.size_bytes, " bytes at ", Text(memory), " are in use by ", uses,
                                     " pieces of work that have not finished"));
  }
  if (const int graphs = freed.graphs.load(std::memory_order_relaxed); graphs > 0) {
    lock.unlock();
    return Misuse(call, absl::StrCat(freed.size_bytes, " bytes at ", Text(memory), " are used by ", graphs,
                                     " pieces of work of graphs that can be launched again"));
  }
  if (kind == MemoryKind::kDevice) gpus_[freed.ordinal].allocated_bytes -= freed.size_bytes;
  allocations_.erase(found);
  UnmapMemory(freed);
  lock.unlock();
  return ErrorOf(call, current());
}

absl::StatusOr<void*> StandInRuntime::Malloc(int64_t size_bytes) {
  return Allocate("cudaMalloc", MemoryKind::kDevice, size_bytes);
}
absl::Status StandInRuntime::Free(void* memory) { return Deallocate("cudaFree", MemoryKind::kDevice, memory); }
absl::StatusOr<void*> StandInRuntime::MallocHost(int64_t size_bytes) {
  return Allocate("cudaHostAlloc", MemoryKind::kPinned, size_bytes);
}
absl::Status StandInRuntime::FreeHost(void* memory) { return Deallocate("cudaFreeHost", MemoryKind::kPinned, memory); }

absl::StatusOr<StandInRuntime::Bytes> StandInRuntime::BytesAt(const char* call, const void* address,
                                                              int64_t size_bytes) {
  if (size_bytes < 0) return Misuse(call, absl::StrCat(size_bytes, " bytes"));
  auto* begin = static_cast<std::byte*>(const_cast<void*>(address));
  if (Allocation* found = AllocationAt(address); found != nullptr) {
    if (size_bytes <= found->end() - begin) return Bytes{found->view + (begin - found->address), found};
    return Misuse(call, absl::StrCat(size_bytes, " bytes at ", Text(address), ", of which only ", found->end() - begin,
                                     " lie in the allocation of ", found->size_bytes, " bytes there"));
  }
  if (TouchesDeviceMemory(address, size_bytes)) {
    return Misuse(call, absl::StrCat(size_bytes, " bytes at ", Text(address), " begin before an allocation"));
  }
  if (!options_.allow_pageable) {
    return Misuse(call, absl::StrCat("host memory at ", Text(address), " is not pinned, or device memory was freed: ",
                                     "CUDA would make the thread wait for the stream"));
  }
  return Bytes{begin, nullptr};
}

absl::StatusOr<StandInWork> StandInRuntime::CopyWork(const char* call, void* to, const void* from, int64_t size_bytes) {
  SHALE_ASSIGN_OR_RETURN(const Bytes target, BytesAt(call, to, size_bytes));
  SHALE_ASSIGN_OR_RETURN(const Bytes source, BytesAt(call, from, size_bytes));
  if (target.view < source.view + size_bytes && source.view < target.view + size_bytes) {
    return Misuse(call, absl::StrCat(size_bytes, " bytes from ", Text(from), " to ", Text(to), " overlap"));
  }
  StandInWork work{.uses = Uses({target.allocation, source.allocation}),
                   .to = target.allocation,
                   .from = source.allocation,
                   .copied_bytes = size_bytes};
  work.run = [to = target.view, from = source.view, size_bytes] {
    std::memcpy(to, from, size_bytes);
    return absl::OkStatus();
  };
  return work;
}

absl::Status StandInRuntime::CopyAsync(void* to, const void* from, int64_t size_bytes, cuda::StreamHandle stream) {
  constexpr const char* kCall = "cudaMemcpyAsync";
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream));
  SHALE_ASSIGN_OR_RETURN(StandInWork work, CopyWork(kCall, to, from, size_bytes));
  return Submit(AsStream(stream), std::move(work));
}

absl::Status StandInRuntime::SetBytesAsync(void* to, uint8_t value, int64_t size_bytes, cuda::StreamHandle stream) {
  constexpr const char* kCall = "cudaMemsetAsync";
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream));
  SHALE_ASSIGN_OR_RETURN(const Bytes target, BytesAt(kCall, to, size_bytes));
  if (target.allocation == nullptr) return Misuse(kCall, "host memory that is not pinned");
  auto run = [to = target.view, value, size_bytes] {
    std::memset(to, value, size_bytes);
    return absl::OkStatus();
  };
  return Submit(AsStream(stream), {.run = std::move(run), .uses = Uses({target.allocation})});
}

absl::Status StandInRuntime::WriteWordAsync(uint32_t* to, uint32_t value, cuda::StreamHandle stream) {
  constexpr const char* kCall = "cuStreamWriteValue32";
  SHALE_RETURN_IF_ERROR(CheckStream(kCall, stream));
  if (!options_.stream_writes) return absl::UnimplementedError("the driver does not support cuStreamWriteValue32");
  SHALE_ASSIGN_OR_RETURN(const Bytes target, BytesAt(kCall, to, sizeof(uint32_t)));
  if (target.allocation == nullptr || reinterpret_cast<uintptr_t>(to) % sizeof(uint32_t) != 0) {
    return Misuse(kCall, "wanted an aligned word of pinned or device memory");
  }
  auto run = [word = target.view, value] {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(word)).store(value, std::memory_order_release);
    return absl::OkStatus();
  };
  return Submit(AsStream(stream), {.run = std::move(run), .uses = Uses({target.allocation})});
}

}  // namespace shale::cuda_on_host
