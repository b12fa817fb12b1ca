// A libcudnn.so.9 that gives out a handle without a GPU and records what is done with it. It describes nothing: the
// first descriptor fails.
#include <cudnn.h>

#include <string>

namespace {

std::string calls;

cudnnStatus_t Record(const char* call, cudnnStatus_t status = CUDNN_STATUS_SUCCESS) {
  calls += calls.empty() ? "" : ", ";
  calls += call;
  return status;
}

}  // namespace

extern "C" {

const char* shale_cudnn_calls() { return calls.c_str(); }

size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error"; }
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) *message = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(&calls);
  return Record("create");
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return Record("destroy"); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t stream) {
  return Record(stream == nullptr ? "no stream" : "stream");
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t*) {
  return Record("descriptor", CUDNN_STATUS_NOT_SUPPORTED);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

}  // extern "C"
