// libcudnn.so.9 of tests: passes on to the real library what the frontend asks for, and keeps what tensors it is told
// of. Loaded at run time, as the real one is.
#pragma once

#include <cstdint>
#include <vector>

namespace shale::testing {

struct RecordedTensor {
  int64_t uid = 0;
  int type = 0;  // A cudnnDataType_t.
  std::vector<int64_t> dims, strides;
};

// "shale_record_cudnn": `real` is the real library's handle; returns where finished tensors are kept. REQUIRES: called
// before anything else.
using RecordCudnn = std::vector<RecordedTensor>*(void* real);

}  // namespace shale::testing
