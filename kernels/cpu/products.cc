#include "kernels/cpu/products.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/packed_operand.h"
#include "kernels/cpu/product_tiles.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shale::cpu {
namespace {

// oneDNN asks OpenMP how many threads there are, when it makes a primitive and when it runs one. The answer belongs to
// the calling thread, and is put back for what else runs on it.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

const dnnl::engine& Engine() {
  static const dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// b as the shape says, or in one of oneDNN's formats.
dnnl::memory::desc OperandB(const ProductShape& s) {
  return {{s.k, s.n}, TypeOf(s.dtype), dnnl::memory::dims{s.b_stride_k, s.b_stride_n}};
}
dnnl::memory::desc OperandB(const ProductShape& s, dnnl::memory::format_tag format) {
  return {{s.k, s.n}, TypeOf(s.dtype), format};
}
dnnl::memory::format_tag PackedFormat(DType dtype) {
  using Tag = dnnl::memory::format_tag;
  return dtype == DType::kBFloat16 ? Tag::BA16a64b2a : Tag::BA16a64b;
}

dnnl::matmul::primitive_desc Describe(const ProductShape& s, const dnnl::memory::desc& b) {
  using dnnl::memory;
  const memory::desc a({s.m, s.k}, TypeOf(s.dtype), memory::dims{s.a_stride_m, s.a_stride_k});
  const memory::desc c({s.m, s.n}, TypeOf(s.c_dtype), memory::dims{s.c_stride_m, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (!s.bias) return {dnnl::matmul::desc(a, b, c), attributes, Engine()};
  const memory::desc bias({1, s.n}, TypeOf(s.dtype), memory::dims{s.n, 1});
  return {dnnl::matmul::desc(a, b, bias, c), attributes, Engine()};
}

absl::Status ErrorOf(const ProductShape& s, absl::string_view what, int status) {
  return absl::InternalError(absl::StrCat("oneDNN: ", what, " (status ", status, ") for a product of M=", s.m,
                                          " N=", s.n, " K=", s.k, " in ", ToString(s.dtype), " to ",
                                          ToString(s.c_dtype), ", strides of a ", s.a_stride_m, ", ", s.a_stride_k,
                                          ", of b ", s.b_stride_k, ", ", s.b_stride_n, ", of c ", s.c_stride_m));
}
absl::Status ErrorOf(const ProductShape& s, const dnnl::error& error) { return ErrorOf(s, error.what(), error.status); }

// Whether b is packed. There must be rows enough to pay for it, and a large vocabulary's embedding would take more
// scratch than it is worth. oneDNN must choose that format itself, for in others than that its kernels are slow: it
// does where a and c lie without gaps. The answer does not depend on the number of threads.
bool Packs(const ProductShape& s) {
  constexpr int64_t kLeastM = 512, kMostBytes = int64_t{32} << 20;
  if (s.m < kLeastM || PackedBytes(s.dtype, s.k, s.n) > kMostBytes) return false;
  for (int64_t rows = kLeastPackedRows; rows <= kMostPackedRows; rows *= 2) {
    ProductShape tile = s;
    tile.m = rows;
    const auto chosen = Describe(tile, OperandB(tile, dnnl::memory::format_tag::any)).weights_desc();
    if (chosen != OperandB(tile, PackedFormat(tile.dtype))) return false;
  }
  return true;
}

}  // namespace

// One shape: primitives for the sizes that its tiles have, and memory objects for each thread.
class Products::Product {
 public:
  Product(const ProductShape& shape, int threads)
      : shape_(shape), packed_bytes_(Packs(shape) ? PackedBytes(shape.dtype, shape.k, shape.n) : 0) {
    const TileOrder order = packs()                 ? TileOrder::kPackedB
                            : shape.a_stride_k != 1 ? TileOrder::kTransposedA
                                                    : TileOrder::kPlain;
    for (const ProductTile& tile : TilesOf(shape, order, threads)) tiles_.push_back({tile, KindOf(tile)});
    team_ = static_cast<int>(std::min<int64_t>(threads, static_cast<int64_t>(tiles_.size())));
  }

  int64_t scratch_bytes() const { return packed_bytes_ + thread_scratch_bytes_ * team_; }

  void Prepare() {
    const std::lock_guard<std::mutex> lock(mutex_);
    PrepareLocked();
  }

  dnnl_status_t Run(const ProductOperands& operands) {
    const std::lock_guard<std::mutex> lock(mutex_);
    PrepareLocked();
    const int64_t tiles = static_cast<int64_t>(tiles_.size());
    const UnpackedOperand b{operands.b, shape_.dtype, shape_.k, shape_.n, shape_.b_stride_k, shape_.b_stride_n};
    const int64_t panels = packs() ? PackedPanels(b) : 0;
    if (team_ == 1) {
      for (int64_t panel = 0; panel < panels; ++panel) PackPanel(b, panel, operands.scratch.data);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (const auto status = RunTile(tile, 0, operands); status != dnnl_success) return status;
      }
      return dnnl_success;
    }
    std::atomic<dnnl_status_t> failure = dnnl_success;
#pragma omp parallel num_threads(team_)
    {
#pragma omp for schedule(dynamic)
      for (int64_t panel = 0; panel < panels; ++panel) PackPanel(b, panel, operands.scratch.data);
#pragma omp for schedule(dynamic)
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (const auto status = RunTile(tile, omp_get_thread_num(), operands); status != dnnl_success) failure = status;
      }
    }
    return failure;
  }

 private:
  // Tiles of one size.
  struct Kind {
    int64_t rows, columns;
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;  // Empty until prepared.
  };
  struct Tile {
    ProductTile place;
    size_t kind;
  };
  // The memory objects point at the operands of the tile that the thread is running.
  struct Memory {
    dnnl::memory a, b, bias, c, scratch;
  };
  struct Thread {
    dnnl::stream stream;
    std::vector<Memory> of_kind;
  };

  size_t KindOf(const ProductTile& tile) {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (kinds_[i].rows == tile.rows && kinds_[i].columns == tile.columns) return i;
    }
    ProductShape s = shape_;
    s.m = tile.rows;
    s.n = tile.columns;
    const dnnl::memory::desc b = packs() ? OperandB(s, PackedFormat(s.dtype)) : OperandB(s);
    kinds_.push_back({tile.rows, tile.columns, Describe(s, b), {}});
    const auto bytes = static_cast<int64_t>(kinds_.back().description.scratchpad_desc().get_size());
    // A multiple of cache lines, so that no two threads write to one.
    thread_scratch_bytes_ = std::max(thread_scratch_bytes_, (bytes + 255) / 256 * 256);
    return kinds_.size() - 1;
  }

  void PrepareLocked() {
    if (!per_thread_.empty()) return;
    const auto memory = [](const dnnl::memory::desc& desc) { return dnnl::memory(desc, Engine(), DNNL_MEMORY_NONE); };
    std::vector<Thread> per_thread(team_);
    for (Kind& kind : kinds_) {
      const auto& description = kind.description;
      kind.primitive = dnnl::matmul(description);
      for (Thread& thread : per_thread) {
        thread.of_kind.push_back({memory(description.src_desc()), memory(description.weights_desc()),
                                  memory(description.bias_desc()), memory(description.dst_desc()),
                                  memory(description.scratchpad_desc())});
      }
    }
    for (Thread& thread : per_thread) thread.stream = dnnl::stream(Engine());
    per_thread_ = std::move(per_thread);
  }

  // The C calls, for they neither allocate nor throw.
  dnnl_status_t RunTile(int64_t tile, int thread_number, const ProductOperands& operands) {
    const int64_t m = tiles_[tile].place.m, n = tiles_[tile].place.n;
    const size_t kind = tiles_[tile].kind;
    Thread& thread = per_thread_[thread_number];
    Memory& memory = thread.of_kind[kind];
    const int64_t size = SizeOf(shape_.dtype), c_size = SizeOf(shape_.c_dtype);
    // oneDNN takes operands that it only reads as void* too.
    const auto set = [](dnnl::memory& to, const void* base, int64_t offset_bytes) {
      return dnnl_memory_set_data_handle(to.get(),
                                         const_cast<std::byte*>(static_cast<const std::byte*>(base)) + offset_bytes);
    };
    dnnl_exec_arg_t arguments[5] = {
        {DNNL_ARG_SRC, memory.a.get()}, {DNNL_ARG_WEIGHTS, memory.b.get()}, {DNNL_ARG_DST, memory.c.get()}};
    int count = 3;
    dnnl_status_t status = set(memory.a, operands.a, m * shape_.a_stride_m * size);
    if (status == dnnl_success) {
      status = packs() ? set(memory.b, operands.scratch.data, 0)
                       : set(memory.b, operands.b, n * shape_.b_stride_n * size);
    }
    if (status == dnnl_success) status = set(memory.c, operands.c, (m * shape_.c_stride_m + n) * c_size);
    if (status == dnnl_success && shape_.bias) {
      status = set(memory.bias, operands.bias, n * size);
      arguments[count++] = {DNNL_ARG_BIAS, memory.bias.get()};
    }
    if (status == dnnl_success && thread_scratch_bytes_ > 0) {
      status = set(memory.scratch, operands.scratch.data, packed_bytes_ + thread_number * thread_scratch_bytes_);
      arguments[count++] = {DNNL_ARG_SCRATCHPAD, memory.scratch.get()};
    }
    if (status != dnnl_success) return status;
    return dnnl_primitive_execute(kinds_[kind].primitive.get(), thread.stream.get(), count, arguments);
  }

  bool packs() const { return packed_bytes_ > 0; }

  const ProductShape shape_;
  const int64_t packed_bytes_;  // Scratch begins with packed b; 0: b is read as it is.
  std::vector<Tile> tiles_;
  int team_ = 1;  // Threads that find a tile.
  int64_t thread_scratch_bytes_ = 0;

  std::mutex mutex_;  // Guards what Prepare makes.
  std::vector<Kind> kinds_;
  std::vector<Thread> per_thread_;  // Empty until prepared.
};

Products::Products(int threads) : threads_(threads) {
  const OneThread one_thread;
  try {
    const ProductShape shape{.m = 64,
                             .n = 64,
                             .k = 64,
                             .a_stride_m = 64,
                             .a_stride_k = 1,
                             .b_stride_k = 64,
                             .b_stride_n = 1,
                             .c_stride_m = 64,
                             .dtype = DType::kBFloat16};
    Describe(shape, OperandB(shape));
    has_bfloat16_ = true;
  } catch (const dnnl::error&) {
    has_bfloat16_ = false;
  }
}

Products::~Products() = default;

absl::StatusOr<Products::Product*> Products::Find(const ProductShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = products_.find(shape);
  if (found != products_.end()) return found->second.get();
  const OneThread one_thread;
  try {
    return (products_[shape] = std::make_unique<Product>(shape, threads_)).get();
  } catch (const dnnl::error& error) {
    return ErrorOf(shape, error);
  }
}

absl::StatusOr<int64_t> Products::ScratchBytes(const ProductShape& shape) {
  SHALE_ASSIGN_OR_RETURN(const Product* product, Find(shape));
  return product->scratch_bytes();
}

absl::Status Products::Prepare(const ProductShape& shape) {
  SHALE_ASSIGN_OR_RETURN(Product * product, Find(shape));
  const OneThread one_thread;
  try {
    product->Prepare();
  } catch (const dnnl::error& error) {
    return ErrorOf(shape, error);
  }
  return absl::OkStatus();
}

absl::Status Products::Run(const ProductShape& shape, const ProductOperands& operands) {
  SHALE_RETURN_IF_ERROR(Prepare(shape));
  SHALE_ASSIGN_OR_RETURN(Product * product, Find(shape));
  const OneThread one_thread;
  const dnnl_status_t status = product->Run(operands);
  if (status != dnnl_success) return ErrorOf(shape, "could not execute", status);
  return absl::OkStatus();
}

std::shared_ptr<Products> CreateProducts(int threads) { return std::make_shared<Products>(threads); }

}  // namespace shale::cpu
