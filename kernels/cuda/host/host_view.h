// Device addresses of the stand-in runtime (stand_in_runtime.h), and how kernels on the host read them.
#pragma once

namespace shale::cuda_on_host {

// The same bytes where the host may touch them, and a note that the next launch of this thread uses them. Addresses
// that are not device memory of a stand-in stay what they are. Any thread, as long as the memory is not being freed.
const void* HostViewOf(const void* device_pointer);

template <class T>
T* HostViewOf(T* device_pointer) {
  return static_cast<T*>(const_cast<void*>(HostViewOf(static_cast<const void*>(device_pointer))));
}

}  // namespace shale::cuda_on_host
