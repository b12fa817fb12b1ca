#include "engine/run/calibrate/speeds.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/io/file.h"
#include "engine/run/runtime/work_times.h"
#include "kernels/check.h"
#include "kernels/device/device.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/op.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// A device of one rank, with memory for the operands of an op.
struct OneRank {
  std::shared_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Stream> stream;

  static absl::StatusOr<OneRank> Create(const Backend& backend, int64_t bytes) {
    OneRank rank;
    SHALE_ASSIGN_OR_RETURN(auto devices, backend.CreateDevices(/*ranks=*/1, /*synchronous=*/false));
    rank.device = std::move(devices[0]);
    rank.ops = backend.CreateOps(/*ranks=*/1, rank.device.get());
    SHALE_ASSIGN_OR_RETURN(rank.arena, rank.device->Allocate(bytes));
    SHALE_ASSIGN_OR_RETURN(rank.stream, rank.device->CreateStream("speeds"));
    rank.arena->MakeResident({{0, bytes}});
    return rank;
  }

  // Returns the seconds that the op took in each of `count` launches.
  absl::StatusOr<std::vector<double>> Time(const Op& op, std::byte* scratch, int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      SHALE_RETURN_IF_ERROR(ops->Launch(op, {scratch, ops->ScratchBytes(op)}, *stream));
      SHALE_RETURN_IF_ERROR(stream->Synchronize());
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return seconds;
  }
};

Op CopyOf(std::byte* memory, int64_t bytes) {
  Copy copy{.from = Tensor::Contiguous(DType::kFloat32, {bytes / 4}),
            .to = Tensor::Contiguous(DType::kFloat32, {bytes / 4})};
  copy.from.data = memory;
  copy.to.data = memory + bytes;
  return copy;
}

constexpr int64_t kSide = 768;  // Of the matrices of a probe.
constexpr int64_t kMatrixBytes = kSide * kSide * 4;
constexpr int64_t kProbedBytes = int64_t{32} << 20;
constexpr int64_t kScratchBytes = int64_t{8} << 20;
constexpr int kLaunches = 3;

Op MatMulOf(std::byte* memory) {
  const Tensor matrix = Tensor::Contiguous(DType::kFloat32, {kSide, kSide});
  MatMul matmul{.a = matrix, .b = matrix, .c_MN = matrix, .transpose_b = true};
  for (Tensor* t : {&matmul.a, &matmul.b, &matmul.c_MN}) {
    t->data = memory;
    memory += kMatrixBytes;
  }
  return matmul;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

ProbedSpeed MeanOf(const std::vector<ProbedSpeed>& speeds) {
  std::vector<double> matmuls, copies;
  for (const ProbedSpeed& speed : speeds) {
    matmuls.push_back(speed.matmul_seconds);
    copies.push_back(speed.copy_seconds);
  }
  return {MeanOf(std::move(matmuls)).mean, MeanOf(std::move(copies)).mean};
}

absl::StatusOr<double> CopyBytesPerSecond(const Backend& backend) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  constexpr int kCopies = 6;
  SHALE_ASSIGN_OR_RETURN(OneRank rank, OneRank::Create(backend, 2 * kBytes));
  const Op copy = CopyOf(rank.arena->base(), kBytes);
  SHALE_RETURN_IF_ERROR(rank.ops->Prepare(copy, rank.ops->ScratchBytes(copy)));
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> seconds, rank.Time(copy, nullptr, kCopies));
  return 2 * static_cast<double>(kBytes) / *std::min_element(seconds.begin(), seconds.end());
}

absl::StatusOr<double> WriteBytesPerSecond(const std::string& folder) {
  constexpr int64_t kWords = int64_t{32} << 20;
  FileSystem& files = PosixFileSystem();
  SHALE_ASSIGN_OR_RETURN(StagingBuffer staging, StagingBuffer::Create(kWriteStagingBytes));
  std::vector<uint64_t> words(kWords);
  std::iota(words.begin(), words.end(), uint64_t{1});
  for (uint64_t& word : words) word *= 0x9e3779b97f4a7c15;  // Some disks write zeros in no time.
  const PieceSource piece{.range = {0, kWords},
                          .element_bytes = sizeof(uint64_t),
                          .data = reinterpret_cast<const std::byte*>(words.data())};
  const std::string own = JoinPath(folder, absl::StrCat("calibrate-", getpid()));
  SHALE_RETURN_IF_ERROR(files.MakeFolder(own));
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status =
      WriteShard(files, own, /*rank=*/0, /*ranks=*/1, {piece}, CopyHostMemory, staging.span()).status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  status.Update(RemoveFolderAndFiles(own));
  SHALE_RETURN_IF_ERROR(status);
  return static_cast<double>(kWords * sizeof(uint64_t)) / seconds.count();
}

struct SpeedProbe::Parts {
  OneRank rank;
  Op matmul, copy;
};

SpeedProbe::SpeedProbe(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
SpeedProbe::~SpeedProbe() = default;

absl::StatusOr<std::unique_ptr<SpeedProbe>> SpeedProbe::Create(const Backend& backend) {
  SHALE_ASSIGN_OR_RETURN(OneRank rank, OneRank::Create(backend, 3 * kMatrixBytes + 2 * kProbedBytes + kScratchBytes));
  std::byte* const memory = rank.arena->base();
  SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(*rank.device, *rank.stream, memory, 3 * kMatrixBytes));
  const Op matmul = MatMulOf(memory), copy = CopyOf(memory + 3 * kMatrixBytes, kProbedBytes);
  if (rank.ops->ScratchBytes(matmul) > kScratchBytes) return absl::InternalError("a probe wants too much scratch");
  SHALE_RETURN_IF_ERROR(rank.ops->Prepare(matmul, rank.ops->ScratchBytes(matmul)));
  SHALE_RETURN_IF_ERROR(rank.ops->Prepare(copy, rank.ops->ScratchBytes(copy)));
  return absl::WrapUnique(new SpeedProbe(std::unique_ptr<Parts>(new Parts{std::move(rank), matmul, copy})));
}

absl::StatusOr<ProbedSpeed> SpeedProbe::Probe() {
  std::byte* const scratch = parts_->rank.arena->base() + 3 * kMatrixBytes + 2 * kProbedBytes;
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> matmuls, parts_->rank.Time(parts_->matmul, scratch, kLaunches));
  SHALE_ASSIGN_OR_RETURN(const std::vector<double> copies, parts_->rank.Time(parts_->copy, scratch, kLaunches));
  return ProbedSpeed{.matmul_seconds = Mean(matmuls), .copy_seconds = Mean(copies)};
}

}  // namespace shale
