// Memory for kernels on the host that is only reserved: pages become resident where they are touched.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace shale::testing {

class ReservedMemory {
 public:
  ReservedMemory() = default;
  ~ReservedMemory() {
    for (const auto& [data, bytes] : maps_) munmap(data, bytes);
  }
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  // Returns memory that reads as zeros and lives as long as this.
  void* Bytes(int64_t bytes) {
    if (bytes == 0) return nullptr;
    void* data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
    SHALE_CHECK(data != MAP_FAILED) << bytes << " bytes";
    maps_.emplace_back(data, bytes);
    return data;
  }
  Tensor Zeros(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = Tensor::Contiguous(dtype, shape);
    t.data = Bytes(t.extent_bytes());
    return t;
  }

 private:
  std::vector<std::pair<void*, int64_t>> maps_;
};

}  // namespace shale::testing
