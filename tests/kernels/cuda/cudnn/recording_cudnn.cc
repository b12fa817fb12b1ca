#include "tests/kernels/cuda/cudnn/recording_cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <map>

namespace {

using shale::testing::RecordedTensor;

void* real_library = nullptr;
std::vector<RecordedTensor> finished;
std::map<cudnnBackendDescriptor_t, RecordedTensor> tensors;  // Described but not finished.

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(real_library, name));
}
// The function of this name in the real library.
#define SHALE_REAL(function) Real<decltype(::function)>(#function)

void Record(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, int64_t count, const void* values) {
  const auto* numbers = static_cast<const int64_t*>(values);
  switch (name) {
    case CUDNN_ATTR_TENSOR_UNIQUE_ID: tensors[descriptor].uid = *numbers; break;
    case CUDNN_ATTR_TENSOR_DATA_TYPE: tensors[descriptor].type = *static_cast<const cudnnDataType_t*>(values); break;
    case CUDNN_ATTR_TENSOR_DIMENSIONS: tensors[descriptor].dims.assign(numbers, numbers + count); break;
    case CUDNN_ATTR_TENSOR_STRIDES: tensors[descriptor].strides.assign(numbers, numbers + count); break;
    default: break;
  }
}

}  // namespace

extern "C" {

std::vector<RecordedTensor>* shale_record_cudnn(void* real) {
  real_library = real;
  return &finished;
}

size_t cudnnGetVersion() { return SHALE_REAL(cudnnGetVersion)(); }
const char* cudnnGetErrorString(cudnnStatus_t status) { return SHALE_REAL(cudnnGetErrorString)(status); }
void cudnnGetLastErrorString(char* message, size_t size) { SHALE_REAL(cudnnGetLastErrorString)(message, size); }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  return SHALE_REAL(cudnnBackendCreateDescriptor)(type, descriptor);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  tensors.erase(descriptor);
  return SHALE_REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Record(descriptor, name, count, values);
  return SHALE_REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  return SHALE_REAL(cudnnBackendGetAttribute)(descriptor, name, type, wanted, count, values);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  if (const auto found = tensors.find(descriptor); found != tensors.end()) finished.push_back(found->second);
  return SHALE_REAL(cudnnBackendFinalize)(descriptor);
}

}  // extern "C"
