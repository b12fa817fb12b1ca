#include "engine/step/update_on_host.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/update.h"

namespace shale {
namespace {

constexpr EmitContext kHostOnce = {.stream = StreamId::kHost, .phase = Phase::kUpdate, .once_a_step = true};
constexpr EmitContext kCopyOnce = {.stream = StreamId::kCopy, .phase = Phase::kUpdate, .once_a_step = true};
constexpr EmitContext kGatherOnce = {.stream = StreamId::kGather, .phase = Phase::kUpdate, .once_a_step = true};

}  // namespace

void HostUpdater::FetchGradient(GroupId group) {
  if (gradients_[group].present()) return;
  const Tensor& device = state_.groups[group].own_gradient;
  const Buffer& buffer = writer_.program().buffers[device.where.symbol];
  const BufferCategory category = buffer.category;
  gradients_[group] = writer_.AddTensor(absl::StrCat(buffer.name, ".on_host"), category, device, 1,
                                        /*persistent=*/false, MemoryKind::kHost);
  writer_.EmitReturn(kCopyOnce, device, gradients_[group]);
  if (options_.update == UpdateTime::kInBackward) held_.push_back(device.where.symbol);
}

void HostUpdater::EndOverlap() {
  for (BufferId buffer : held_) writer_.program().buffers[buffer].held_until = writer_.next() - 1;
  held_.clear();
}

Tensor HostUpdater::Scalar(const Tensor& device) {
  if (!device.present()) return {};
  for (const Copied& copied : scalars_) {
    if (copied.device.where.symbol == device.where.symbol) return copied.host;
  }
  const Buffer& buffer = writer_.program().buffers[device.where.symbol];
  const Tensor host = writer_.AddTensor(absl::StrCat(buffer.name, ".on_host"), BufferCategory::kData, device, 1,
                                        /*persistent=*/false, MemoryKind::kHost);
  // On the host stream, because the copy stream would have to wait for the norm.
  writer_.Emit(kHostOnce, Transfer{.device = device, .host = host, .to_host = true});
  scalars_.push_back({device, host});
  return host;
}

void HostUpdater::EmitUpdate(GroupId group, Op op) {
  FetchGradient(group);
  ReturnWeights();
  Update& update = *op.As<Update>();
  update.update_5 = Scalar(update.update_5);
  update.number_1 = Scalar(update.number_1);
  update.gradient_P = gradients_[group];
  if (update.gradient_P.dtype != DType::kFloat32) {
    const Tensor widened = Tensor::Contiguous(DType::kFloat32, {update.gradient_P.elements()});
    const std::string name = absl::StrCat(writer_.program().buffers[update.gradient_P.where.symbol].name, ".widened");
    update.gradient_P =
        writer_.AddTensor(name, BufferCategory::kGradientShards, widened, 1, /*persistent=*/false, MemoryKind::kHost);
    writer_.Emit(kHostOnce, Op(Copy{.from = gradients_[group], .to = update.gradient_P}));
  }
  update.weight_P = state_.groups[group].host_weight;
  writer_.Emit(kHostOnce, std::move(op));
  updated_ = group;
}

void HostUpdater::ReturnWeights() {
  if (updated_ < 0) return;
  const GroupState& g = state_.groups[std::exchange(updated_, -1)];
  if (writer_.IsOnHost(g.own_weight)) return;
  writer_.EmitFetch(kCopyOnce, g.host_weight, g.own_weight);
  if (!g.placement.placement().gathers_after_update()) return;
  writer_.Emit(kGatherOnce,
               Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = g.full_weight});
}

void HostUpdater::Finish() {
  ReturnWeights();
  EndOverlap();
}

}  // namespace shale
