// A libcuda.so.1 for a process without a GPU. It has as much of a driver as cuDNN and NVRTC need to build graphs, which
// load the kernels that they compile. Calls succeed and do nothing.
namespace {
int anything;
}  // namespace

extern "C" {

#define SHALE_SUCCEEDS(function) \
  int function() { return 0; }
// Defines a function that stores a handle where its first argument points.
#define SHALE_GIVES_HANDLE(function) \
  int function(void** handle) {      \
    *handle = &anything;             \
    return 0;                        \
  }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
// Returns CUDA_ERROR_NOT_FOUND: there is no table.
int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return 500;
}
SHALE_SUCCEEDS(cuInit)
SHALE_SUCCEEDS(cuGetErrorName)
SHALE_SUCCEEDS(cuGetErrorString)
SHALE_SUCCEEDS(cuDeviceGet)
SHALE_SUCCEEDS(cuDeviceGetCount)
SHALE_SUCCEEDS(cuCtxGetLimit)
SHALE_SUCCEEDS(cuCtxPopCurrent)
SHALE_SUCCEEDS(cuCtxPushCurrent)
SHALE_SUCCEEDS(cuLinkAddData)
SHALE_SUCCEEDS(cuLinkComplete)
SHALE_SUCCEEDS(cuLinkDestroy)
SHALE_SUCCEEDS(cuLibraryUnload)
SHALE_SUCCEEDS(cuKernelGetAttribute)
SHALE_SUCCEEDS(cuKernelSetAttribute)
SHALE_SUCCEEDS(cuLaunchCooperativeKernel)
SHALE_SUCCEEDS(cuLaunchKernel)
SHALE_SUCCEEDS(cuLaunchKernelEx)
SHALE_SUCCEEDS(cuModuleUnload)
SHALE_SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SHALE_SUCCEEDS(cuTensorMapEncodeIm2col)
SHALE_SUCCEEDS(cuTensorMapEncodeTiled)
SHALE_GIVES_HANDLE(cuCtxGetCurrent)
SHALE_GIVES_HANDLE(cuKernelGetFunction)
SHALE_GIVES_HANDLE(cuLibraryGetKernel)
SHALE_GIVES_HANDLE(cuLibraryLoadData)
SHALE_GIVES_HANDLE(cuLibraryLoadFromFile)
SHALE_GIVES_HANDLE(cuLinkCreate)
SHALE_GIVES_HANDLE(cuModuleGetFunction)
SHALE_GIVES_HANDLE(cuModuleLoadData)
SHALE_GIVES_HANDLE(cuStreamGetCtx)

}  // extern "C"
