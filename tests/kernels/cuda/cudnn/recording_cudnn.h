// A libcudnn.so.9 for tests, loaded at run time like the real one. Passes the frontend's calls on to the real library
// and records the tensors that they describe.
#pragma once

#include <cstdint>
#include <vector>

namespace shale::testing {

struct RecordedTensor {
  int64_t uid = 0;
  int type = 0;  // A cudnnDataType_t.
  std::vector<int64_t> dims, strides;
};

// The type of "shale_record_cudnn". `real` is the handle of the real library. Returns where finished tensors are
// recorded. REQUIRES: called before anything else.
using RecordCudnn = std::vector<RecordedTensor>*(void* real);

}  // namespace shale::testing
