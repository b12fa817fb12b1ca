// This is the only file that includes the frontend, which is slow to compile and throws exceptions. No exception leaves
// this file.
#include "kernels/cuda/cudnn/cudnn_graphs.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/check.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB  // Not needed, and slow to compile.
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // The frontend looks up cuDNN's functions in this library.
}

namespace shale::cuda {
namespace {

namespace fe = ::cudnn_frontend;

// Older versions want a padding mask if S is not a multiple of 128, and that mask needs copies from the host.
constexpr int64_t kOldestVersion = 91600;

std::string VersionText(int64_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string Version() { return VersionText(static_cast<int64_t>(fe::detail::get_backend_version())); }

absl::StatusCode CodeOf(fe::error_code_t code) {
  switch (code) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED: return absl::StatusCode::kUnimplemented;
    default: return absl::StatusCode::kInternal;
  }
}

absl::Status StatusOf(const fe::error_t& error, absl::string_view call, const AttentionKey& key) {
  if (error.is_good()) return absl::OkStatus();
  const std::string message = absl::StrReplaceAll(error.err_msg, {{"\n", " "}});
  return absl::Status(CodeOf(error.code),
                      absl::StrCat("cuDNN ", Version(), ", ", call, ": ", message, ", for ", key.ToString()));
}

// Returns the bytes that the frontend adds to a kernel's workspace: rowsum(d_out * out) in f32.
int64_t FrontendBytes(const AttentionKey& key) { return key.backward ? 4 * key.batch * key.heads * key.length : 0; }

// Returns what `body` returns. An exception becomes an Internal error.
template <class Body>
auto Caught(const char* what, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, " by cuDNN: ", error.what()));
  }
}

int64_t UidOf(int operand) { return operand + 1; }  // The frontend reads 0 as no uid.

fe::DataType_t TypeOf(const AttentionKey& key) {
  return key.dtype == DType::kFloat16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
}

fe::graph::Tensor_attributes TensorOf(const AttentionKey& key, int operand) {
  constexpr const char* kNames[] = {"q", "k", "v", "out", "lse", "d_out", "d_q", "d_k", "d_v"};
  fe::graph::Tensor_attributes tensor;
  tensor.set_name(kNames[operand]).set_uid(UidOf(operand));
  if (operand == kLse) {
    return tensor.set_data_type(fe::DataType_t::FLOAT)
        .set_dim({key.batch, key.heads, key.length, 1})
        .set_stride({key.heads * key.length, key.length, 1, 1});
  }
  const bool grouped = operand == kK || operand == kV || operand == kDK || operand == kDV;
  const AttentionKey::Strides& strides = key.strides[operand];
  return tensor.set_data_type(TypeOf(key))
      .set_dim({key.batch, grouped ? key.groups : key.heads, key.length, key.width})
      .set_stride({strides.sequence, strides.head, strides.position, 1});
}

// Gives an output of the frontend the uid, shape and strides of the operand.
void SetOutput(fe::graph::Tensor_attributes& output, const AttentionKey& key, int operand) {
  output = TensorOf(key, operand);
  output.set_output(true);
}

// Returns the attributes of both directions. If causal, query i attends to keys j <= i and, with a window,
// j > i - window. Without bounds of the diagonal band it attends to all keys.
template <class Attributes>
Attributes AttributesOf(const AttentionKey& key) {
  Attributes attributes;
  attributes.set_name("attention").set_attn_scale(key.scale);
  if (!key.causal) return attributes;
  attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (key.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(key.window));
  return attributes;
}

std::shared_ptr<fe::graph::Graph> Describe(const AttentionKey& key, int sm_version) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(TypeOf(key))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      // This must be set before there are operations. Otherwise the frontend would load the CUDA runtime to ask for it.
      .set_sm_version(sm_version)
      // We keep graphs as long as the CUDA graphs captured from them. With any other setting the frontend would ask the
      // CUDA runtime about captures at each launch.
      .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  const auto input = [&](int operand) { return graph->tensor(TensorOf(key, operand)); };
  if (key.backward) {
    const auto [d_q, d_k, d_v] = graph->sdpa_backward(
        input(kQ), input(kK), input(kV), input(kOut), input(kDOut), input(kLse),
        AttributesOf<fe::graph::SDPA_backward_attributes>(key).set_deterministic_algorithm(key.deterministic));
    SetOutput(*d_q, key, kDQ);
    SetOutput(*d_k, key, kDK);
    SetOutput(*d_v, key, kDV);
  } else {
    const auto [out, lse] = graph->sdpa(input(kQ), input(kK), input(kV),
                                        AttributesOf<fe::graph::SDPA_attributes>(key).set_generate_stats(true));
    SetOutput(*out, key, kOut);
    SetOutput(*lse, key, kLse);
  }
  return graph;
}

// Sets the stream of a handle, or none. The handle keeps it until the next call, even if the stream is destroyed. So
// the stream is set before each use of the handle. It is not taken away after use, because that use may be captured.
absl::Status SetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const cudnnStatus_t status = fe::detail::set_stream(handle, stream);
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cudnnSetStream: ", fe::detail::get_error_string(status)));
}

class Graph final : public AttentionGraph {
 public:
  Graph(const AttentionKey& key, cudnnHandle_t handle, std::shared_ptr<fe::graph::Graph> graph, int64_t workspace_bytes)
      : key_(key), handle_(handle), graph_(std::move(graph)), workspace_bytes_(workspace_bytes) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Enqueue(const AttentionAddresses& operands, std::byte* workspace, StreamHandle stream) override {
    if (handle_ == nullptr) return absl::FailedPreconditionError("this graph was built without a GPU, and cannot run");
    std::unordered_map<int64_t, void*> addresses;
    for (int operand = 0; operand < kAttentionOperands; ++operand) {
      if (operands[operand] != nullptr) addresses[UidOf(operand)] = operands[operand];
    }
    return Caught("Attention", [&]() -> absl::Status {
      SHALE_RETURN_IF_ERROR(SetStream(handle_, static_cast<cudaStream_t>(stream)));
      return StatusOf(graph_->execute(handle_, addresses, workspace), "execute", key_);
    });
  }

 private:
  const AttentionKey key_;
  const cudnnHandle_t handle_;
  const std::shared_ptr<fe::graph::Graph> graph_;
  const int64_t workspace_bytes_;
};

class Graphs final : public CudnnGraphs {
 public:
  explicit Graphs(const CudnnOptions& options) : sm_version_(10 * options.compute_major + options.compute_minor) {}
  ~Graphs() override {
    if (handle_ == nullptr) return;
    // A destructor cannot report an error.
    (void)fe::detail::set_stream(handle_, nullptr);
    (void)fe::detail::destroy_handle(handle_);
  }

  absl::Status Open(const std::string& device_json) {
    if (device_json.empty()) {
      const cudnnStatus_t status = fe::detail::create_handle(&handle_);
      if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
      handle_ = nullptr;
      return absl::FailedPreconditionError(absl::StrCat(
          "cudnnCreate: ", fe::detail::get_error_string(status), " (cuDNN ", Version(),
          " cannot start on this device: it needs a GPU, a driver for its version of CUDA, and free memory)"));
    }
    auto device = std::make_shared<fe::DeviceProperties>();
    const fe::error_t error = device->deserialize({device_json.begin(), device_json.end()});
    if (error.is_bad())
      return absl::InvalidArgumentError(absl::StrCat("cannot parse the JSON description of a GPU: ", error.err_msg));
    device_ = std::move(device);
    return absl::OkStatus();
  }

  std::string version() const override { return Version(); }

  absl::Status Supports(const AttentionKey& key, int64_t workspace_bytes) override {
    return Caught("Attention", [&] { return Plan(key, workspace_bytes).status(); });
  }

  absl::StatusOr<std::unique_ptr<AttentionGraph>> Build(const AttentionKey& key, int64_t workspace_bytes) override {
    return Caught("Attention", [&]() -> absl::StatusOr<std::unique_ptr<AttentionGraph>> {
      SHALE_ASSIGN_OR_RETURN(std::shared_ptr<fe::graph::Graph> graph, Plan(key, workspace_bytes));
      SHALE_RETURN_IF_ERROR(StatusOf(graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), "build_plans", key));
      int64_t needed = 0;
      SHALE_RETURN_IF_ERROR(StatusOf(graph->get_workspace_size(needed), "get_workspace_size", key));
      return std::make_unique<Graph>(key, handle_, std::move(graph), needed);
    });
  }

 private:
  // Returns a graph with the kernels that compute it in at most `workspace_bytes`, of which those that are not
  // deterministic are left out if the key wants that.
  absl::StatusOr<std::shared_ptr<fe::graph::Graph>> Plan(const AttentionKey& key, int64_t workspace_bytes) {
    if (handle_ != nullptr) SHALE_RETURN_IF_ERROR(SetStream(handle_, nullptr));
    std::shared_ptr<fe::graph::Graph> graph = Describe(key, sm_version_);
    if (device_ != nullptr) graph->set_device_properties(device_);
    SHALE_RETURN_IF_ERROR(StatusOf(graph->validate(), "validate", key));
    SHALE_RETURN_IF_ERROR(
        StatusOf(handle_ != nullptr ? graph->build_operation_graph(handle_) : graph->build_operation_graph(),
                 "build_operation_graph", key));
    SHALE_RETURN_IF_ERROR(StatusOf(graph->create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans", key));
    if (key.deterministic) graph->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    graph->deselect_workspace_greater_than(workspace_bytes - FrontendBytes(key));
    SHALE_RETURN_IF_ERROR(StatusOf(graph->check_support(),
                                   absl::StrCat("check_support with ", workspace_bytes, " bytes of workspace"), key));
    return graph;
  }

  const int sm_version_;
  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<const fe::DeviceProperties> device_;
};

absl::Status OpenLibraries(const LibrarySearch& search) {
  // NVRTC is opened first, because cuDNN asks the loader for it by name. The loader then gives cuDNN this copy,
  // wherever it was found.
  const LibraryName nvrtc = {
      .title = "NVRTC (compiles cuDNN's attention)",
      .file = absl::StrCat("libnvrtc.so.", CUDA_VERSION / 1000),
      .source = absl::StrCat("the CUDA toolkit ", CUDA_VERSION / 1000, " or the Python package nvidia-cuda-nvrtc")};
  SHALE_RETURN_IF_ERROR(SharedLibrary::Open(nvrtc, search).status());
  const LibraryName name = {
      .title = "cuDNN (attention)",
      .file = absl::StrCat("libcudnn.so.", CUDNN_MAJOR),
      .source = absl::StrCat("cuDNN ", VersionText(kOldestVersion), " or newer, for CUDA ", CUDA_VERSION / 1000,
                             ", or the Python package nvidia-cudnn-cu", CUDA_VERSION / 1000)};
  SHALE_ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(name, search));
  size_t (*get_version)() = nullptr;
  SHALE_RETURN_IF_ERROR(library.Bind("cudnnGetVersion", get_version));
  const int64_t version = static_cast<int64_t>(get_version());
  if (version < kOldestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(name.title, ": ", library.path(), " is version ",
                                                      VersionText(version), ". Install ", name.source,
                                                      ", or name its folder in SHALE_CUDA_LIBRARIES"));
  }
  fe::cudnn_dlhandle = dlopen(library.path().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  SHALE_CHECK(fe::cudnn_dlhandle != nullptr) << library.path();
  return absl::OkStatus();
}

}  // namespace

absl::Status BuiltWithCudnn() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<CudnnGraphs>> LoadCudnn(const CudnnOptions& options) {
  if (options.compute_major < 8) {
    return absl::FailedPreconditionError(absl::StrCat("cuDNN (attention): wanted a GPU of compute capability 8.0 or ",
                                                      "newer, found ", options.compute_major, ".",
                                                      options.compute_minor));
  }
  // This variable lets the frontend choose other algorithms, with other bits and more memory than planned.
  constexpr const char* kLimit = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  if (const char* limit = std::getenv(kLimit); limit != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuDNN (attention): ", kLimit, "=", limit,
                     " is set in the environment, and would change planned memory; unset it"));
  }
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (fe::cudnn_dlhandle == nullptr) {
    SHALE_RETURN_IF_ERROR(OpenLibraries(options.search));
  }
  auto graphs = std::make_unique<Graphs>(options);
  SHALE_RETURN_IF_ERROR(Caught("Start", [&] { return graphs->Open(options.device_json); }));
  return graphs;
}

}  // namespace shale::cuda
