#include "tests/kernels/op_rig.h"

#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale::testing {
namespace {

constexpr std::byte kScratchGuard{0x5A};

}  // namespace

OpRig::OpRig(const TestBackend& backend)
    : backend_(backend), device_(backend.create_device()), ops_(backend.create_ops()) {
  stream_ = *device_->CreateStream("compute");
}

// Uses one arena: the case's image, then scratch between red zones of its own.
absl::StatusOr<OpRig::Placement> OpRig::PlaceTogether(const TestMemory& memory, const Op& symbolic,
                                                      int64_t scratch_begin, int64_t scratch_bytes,
                                                      int64_t total_bytes) {
  Placement placed;
  SHALE_ASSIGN_OR_RETURN(placed.arena, device_->Allocate(total_bytes));
  std::byte* base = placed.arena->base();
  placed.pieces = {{base, 0, total_bytes}};
  placed.op = memory.Bind(symbolic, base);
  placed.scratch = {base + scratch_begin, scratch_bytes};
  return placed;
}

// Puts each buffer, and scratch, in an allocation that ends where the buffer ends.
absl::StatusOr<OpRig::Placement> OpRig::PlaceApart(const TestMemory& memory, const Op& symbolic, int64_t scratch_begin,
                                                   int64_t scratch_bytes) {
  Placement placed;
  std::vector<std::byte*> buffers;
  const auto place = [&](int64_t begin, int64_t size_bytes) -> absl::StatusOr<std::byte*> {
    SHALE_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> allocation, backend_.allocate(*device_, size_bytes));
    placed.pieces.push_back({allocation.get(), begin, size_bytes});
    placed.allocations.push_back(allocation);
    return allocation.get();
  };
  for (const TestMemory::Buffer& buffer : memory.buffers()) {
    SHALE_ASSIGN_OR_RETURN(std::byte * at, place(buffer.begin, buffer.size_bytes));
    buffers.push_back(at);
  }
  placed.op = memory.Bind(symbolic, buffers);
  SHALE_ASSIGN_OR_RETURN(placed.scratch.data, place(scratch_begin, scratch_bytes));
  placed.scratch.size_bytes = scratch_bytes;
  return placed;
}

absl::Status OpRig::Run(const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image) {
  absl::Status status = RunOnce(memory, symbolic, image);
  if (!status.ok()) {
    // A failed stream stays failed, so the next run gets another one.
    stream_.reset();
    absl::StatusOr<std::unique_ptr<Stream>> another = device_->CreateStream("compute");
    if (!another.ok()) return another.status();
    stream_ = *std::move(another);
  }
  return status;
}

absl::Status OpRig::RunOnce(const TestMemory& memory, const Op& symbolic, std::vector<std::byte>& image) {
  if (stream_ == nullptr) return absl::FailedPreconditionError("the device has failed");
  if (backend_.select) backend_.select();
  const int64_t image_bytes = std::ssize(memory.image()), scratch_bytes = ops_->ScratchBytes(symbolic);
  const int64_t scratch_begin = RoundUp(image_bytes + kRedZoneBytes, 256);
  const int64_t total = scratch_begin + scratch_bytes + kRedZoneBytes;
  if (staging_ == nullptr || staging_->size_bytes() < total) {
    staging_.reset();
    SHALE_ASSIGN_OR_RETURN(staging_, device_->AllocatePinned(total));
  }
  std::byte* host = staging_->base();
  std::memcpy(host, memory.image().data(), image_bytes);
  std::memset(host + image_bytes, static_cast<int>(kScratchGuard), total - image_bytes);
  std::memset(host + scratch_begin, 0xFF, scratch_bytes);  // NaNs, for scratch is dirty.

  SHALE_ASSIGN_OR_RETURN(const Placement placed,
                         backend_.allocate ? PlaceApart(memory, symbolic, scratch_begin, scratch_bytes)
                                           : PlaceTogether(memory, symbolic, scratch_begin, scratch_bytes, total));
  SHALE_RETURN_IF_ERROR(Validate(placed.op));
  if (ops_->ScratchBytes(placed.op) != scratch_bytes) return absl::InternalError("scratch depends on addresses");
  SHALE_RETURN_IF_ERROR(ops_->Prepare(placed.op, ops_->ScratchBytes(placed.op)));
  absl::Status status;
  for (const Piece& piece : placed.pieces) {
    status.Update(stream_->Copy(piece.device, host + piece.begin, piece.size_bytes));
  }
  if (status.ok()) status = ops_->Launch(placed.op, placed.scratch, *stream_);
  for (const Piece& piece : placed.pieces) {
    if (status.ok()) status = stream_->Copy(host + piece.begin, piece.device, piece.size_bytes);
  }
  // Synchronizes after an error too: work that is under way still uses the memory.
  status.Update(stream_->Synchronize());
  SHALE_RETURN_IF_ERROR(status);
  for (int64_t i = image_bytes; i < total; ++i) {
    if ((i < scratch_begin || i >= scratch_begin + scratch_bytes) && host[i] != kScratchGuard) {
      return absl::InternalError("the red zone around scratch was written");
    }
  }
  image.assign(host, host + image_bytes);
  return absl::OkStatus();
}

const std::vector<std::unique_ptr<OpRig>>& OpRigs() {
  static const auto& rigs = *[] {
    auto* all = new std::vector<std::unique_ptr<OpRig>>;
    for (const TestBackend& backend : TestBackends()) all->push_back(std::make_unique<OpRig>(backend));
    return all;
  }();
  return rigs;
}

}  // namespace shale::testing
