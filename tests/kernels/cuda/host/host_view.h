// Translates device addresses of the stand-in runtime (stand_in_runtime.h) for kernels on the host.
#pragma once

namespace shale::cuda_on_host {

// Returns the address at which the host may access the same bytes, and notes that the next launch of this thread uses
// them. Returns addresses that are not device memory of a stand-in unchanged. Any thread may call, as long as the
// memory is not being freed.
const void* HostViewOf(const void* device_pointer);

template <class T>
T* HostViewOf(T* device_pointer) {
  return static_cast<T*>(const_cast<void*>(HostViewOf(static_cast<const void*>(device_pointer))));
}

}  // namespace shale::cuda_on_host
