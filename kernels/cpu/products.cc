#include "kernels/cpu/products.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/packed_operand.h"
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
constexpr auto kPackedFormat = dnnl::memory::format_tag::BA16a64b2a;

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

// `size` cut into parts of `part`, the last one shorter.
struct Cut {
  int64_t size, part;
  int64_t count() const { return (size + part - 1) / part; }
  int64_t last() const { return size - (count() - 1) * part; }
  // Of part i.
  int64_t length(int64_t i) const { return i + 1 < count() ? part : last(); }
};

// At most `most` to a part, all about equal, in multiples of `unit`.
Cut EvenCut(int64_t size, int64_t most, int64_t unit) {
  const int64_t parts = (size + most - 1) / most;
  const int64_t part = (size + parts - 1) / parts;
  return {size, (part + unit - 1) / unit * unit};
}

struct Tiling {
  Cut m, n;
  int64_t tiles() const { return m.count() * n.count(); }
};

// Tiles of up to 256 x 512 are as fast as the whole. Fewer than eight would leave threads idle, so that they shrink,
// but not below 64 nor to less than some 30 microseconds of work.
Tiling TilingOf(const ProductShape& s) {
  int64_t m = 256, n = 512;
  const auto cut = [&] { return Tiling{EvenCut(s.m, m, 16), EvenCut(s.n, n, 64)}; };
  while (cut().tiles() < 8 && std::max(m, n) > 64 && std::min(m, s.m) * std::min(n, s.n) * s.k > int64_t{1} << 23) {
    (std::min(n, s.n) > std::min(m, s.m) ? n : m) /= 2;
  }
  return cut();
}

// Where a is transposed, every tile brings its parts of a and b into another order first, and the larger it is, the
// less often: tiles of up to 768 x 768, so many that all threads have as many, or that the rest matters little. In bf16
// oneDNN's kernels sum over k alike whatever the tile, so that the number of threads may decide. In fp32 those of
// processors without AVX-512 do not, and sizes alone decide: tiles of some milliseconds, for four threads.
Tiling TransposedTilingOf(const ProductShape& s, int threads) {
  constexpr int64_t kMost = 768, kLeast = 64, kWork = int64_t{1} << 29, kLeastWork = int64_t{1} << 25;
  const int64_t work = s.m * s.n * s.k;
  if (work < kLeastWork) return TilingOf(s);
  const bool by_threads = s.dtype == DType::kBFloat16;
  const int64_t share = by_threads ? threads : 4;
  const int64_t wanted = by_threads ? 2 * threads : std::max<int64_t>(4, work / kWork);
  Tiling tiling{EvenCut(s.m, kMost, 16), EvenCut(s.n, kMost, 64)};
  const auto even = [&](const Tiling& t) { return t.tiles() % share == 0; };
  for (int64_t rows = tiling.m.count(); rows <= s.m / kLeast; ++rows) {
    const Tiling next{EvenCut(s.m, (s.m + rows - 1) / rows, 16), tiling.n};
    const bool many = next.tiles() >= 8 * share;
    // Else the most that are even, or what there is.
    if (even(next) || many || !even(tiling)) tiling = next;
    if (next.tiles() >= wanted && (even(next) || many)) break;
  }
  return tiling;
}

// Whole rows, for products whose b is packed before: at least eight tiles, and two for each thread. Of up to 256 rows,
// for every tile reads all of b.
constexpr int64_t kMostRows = 256, kLeastRows = 64;
Tiling RowTilingOf(const ProductShape& s, int threads) {
  int64_t m = kMostRows;
  while (EvenCut(s.m, m, 16).count() < std::max(8, 2 * threads) && m > kLeastRows) m /= 2;
  return {EvenCut(s.m, m, 16), {s.n, s.n}};
}

// Whether b is packed. There must be rows enough to pay for it, and a large vocabulary's embedding would take more
// scratch than it is worth. oneDNN must choose that format itself, for in others than that its kernels are slow: it
// does where a and c lie without gaps. The answer does not depend on the number of threads.
bool Packs(const ProductShape& s) {
  constexpr int64_t kLeastM = 512, kMostBytes = int64_t{32} << 20;
  if (s.dtype != DType::kBFloat16 || s.m < kLeastM || PackedBytes(s.k, s.n) > kMostBytes) return false;
  for (int64_t rows = kLeastRows; rows <= kMostRows; rows *= 2) {
    ProductShape tile = s;
    tile.m = rows;
    const auto chosen = Describe(tile, OperandB(tile, dnnl::memory::format_tag::any)).weights_desc();
    if (chosen != OperandB(tile, kPackedFormat)) return false;
  }
  return true;
}

}  // namespace

// One shape: primitives for its tiles (inner ones, and those along the far edges), and memory objects for each thread.
class Products::Product {
 public:
  Product(const ProductShape& shape, int threads)
      : shape_(shape), packed_bytes_(Packs(shape) ? PackedBytes(shape.k, shape.n) : 0),
        tiling_(packs()                 ? RowTilingOf(shape, threads)
                : shape.a_stride_k != 1 ? TransposedTilingOf(shape, threads)
                                        : TilingOf(shape)) {
    team_ = static_cast<int>(std::min<int64_t>(threads, tiling_.tiles()));
    for (int edge = 0; edge < 4; ++edge) {
      ProductShape tile = shape;
      if (!TileOf(edge, tile)) continue;
      descriptions_[edge] = Describe(tile, packs() ? OperandB(tile, kPackedFormat) : OperandB(tile));
      const auto bytes = static_cast<int64_t>(descriptions_[edge].scratchpad_desc().get_size());
      // A multiple of cache lines, so that no two threads write to one.
      thread_scratch_bytes_ = std::max(thread_scratch_bytes_, (bytes + 255) / 256 * 256);
    }
  }

  int64_t scratch_bytes() const { return packed_bytes_ + thread_scratch_bytes_ * team_; }

  void Prepare() {
    const std::lock_guard<std::mutex> lock(mutex_);
    PrepareLocked();
  }

  dnnl_status_t Run(const ProductOperands& operands) {
    const std::lock_guard<std::mutex> lock(mutex_);
    PrepareLocked();
    const int64_t tiles = tiling_.tiles(), blocks = packs() ? PackedColumnBlocks(shape_.n) : 0;
    const UnpackedOperand b{static_cast<const BFloat16*>(operands.b), shape_.k, shape_.n, shape_.b_stride_k,
                            shape_.b_stride_n};
    auto* const packed = reinterpret_cast<BFloat16*>(operands.scratch.data);
    if (team_ == 1) {
      for (int64_t block = 0; block < blocks; ++block) PackColumns(b, block, packed);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (const auto status = RunTile(tile, 0, operands); status != dnnl_success) return status;
      }
      return dnnl_success;
    }
    std::atomic<dnnl_status_t> failure = dnnl_success;
#pragma omp parallel num_threads(team_)
    {
#pragma omp for schedule(dynamic)
      for (int64_t block = 0; block < blocks; ++block) PackColumns(b, block, packed);
#pragma omp for schedule(dynamic)
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (const auto status = RunTile(tile, omp_get_thread_num(), operands); status != dnnl_success) failure = status;
      }
    }
    return failure;
  }

 private:
  // The memory objects point at the operands of the tile that the thread is running.
  struct Thread {
    struct Tile {
      dnnl::memory a, b, bias, c, scratch;
    };
    dnnl::stream stream;
    Tile tiles[4];
  };

  // Sets the sizes of one kind of tile (bit 0 of `edge`: last along n, bit 1: last along m). False: there are none.
  bool TileOf(int edge, ProductShape& tile) const {
    const bool last_n = edge & 1, last_m = edge & 2;
    if ((!last_n && tiling_.n.count() == 1) || (!last_m && tiling_.m.count() == 1)) return false;
    tile.n = last_n ? tiling_.n.last() : tiling_.n.part;
    tile.m = last_m ? tiling_.m.last() : tiling_.m.part;
    return true;
  }

  void PrepareLocked() {
    if (!per_thread_.empty()) return;
    const auto memory = [](const dnnl::memory::desc& desc) { return dnnl::memory(desc, Engine(), DNNL_MEMORY_NONE); };
    std::vector<Thread> per_thread(team_);
    for (int edge = 0; edge < 4; ++edge) {
      const auto& description = descriptions_[edge];
      if (!description) continue;
      primitives_[edge] = dnnl::matmul(description);
      for (Thread& thread : per_thread) {
        thread.tiles[edge] = {memory(description.src_desc()), memory(description.weights_desc()),
                              memory(description.bias_desc()), memory(description.dst_desc()),
                              memory(description.scratchpad_desc())};
      }
    }
    for (Thread& thread : per_thread) thread.stream = dnnl::stream(Engine());
    per_thread_ = std::move(per_thread);
  }

  // The C calls, for they neither allocate nor throw.
  dnnl_status_t RunTile(int64_t tile, int thread_number, const ProductOperands& operands) {
    const int64_t i = tile / tiling_.n.count(), j = tile % tiling_.n.count();
    const int64_t m = i * tiling_.m.part, n = j * tiling_.n.part;
    const int edge = (j + 1 == tiling_.n.count() ? 1 : 0) | (i + 1 == tiling_.m.count() ? 2 : 0);
    Thread& thread = per_thread_[thread_number];
    Thread::Tile& memory = thread.tiles[edge];
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
    return dnnl_primitive_execute(primitives_[edge].get(), thread.stream.get(), count, arguments);
  }

  bool packs() const { return packed_bytes_ > 0; }

  const ProductShape shape_;
  const int64_t packed_bytes_;  // Scratch begins with packed b; 0: b is read as it is.
  const Tiling tiling_;
  int team_ = 1;  // Threads that find a tile.
  dnnl::matmul::primitive_desc descriptions_[4];
  int64_t thread_scratch_bytes_ = 0;

  std::mutex mutex_;  // Guards what follows.
  dnnl::matmul primitives_[4];
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
