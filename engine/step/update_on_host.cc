#include "engine/step/update_on_host.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/update.h"

namespace shale {

Instruction& HostUpdater::Emit(const EmitContext& context, Action action, bool in_loop) {
  Instruction& instruction = writer_.Emit(context, std::move(action));
  instruction.last_iteration_only = in_loop;
  return instruction;
}

void HostUpdater::FetchGradient(GroupId group, bool in_loop) {
  if (gradients_[group].present()) return;
  const Tensor& device = state_.groups[group].own_gradient;
  const Buffer& buffer = writer_.program().buffers[device.where.symbol];
  const BufferCategory category = buffer.category;
  gradients_[group] = writer_.AddTensor(absl::StrCat(buffer.name, ".on_host"), category, device, 1,
                                        /*persistent=*/false, MemoryKind::kHost);
  writer_.EmitReturn({.phase = Phase::kUpdate}, device, gradients_[group]).last_iteration_only = in_loop;
  if (options_.update == UpdateTime::kInBackward) held_.push_back(device.where.symbol);
}

void HostUpdater::EndOverlap() {
  for (BufferId buffer : held_) writer_.program().buffers[buffer].held_until = writer_.next() - 1;
  held_.clear();
}

Tensor HostUpdater::Scalar(const Tensor& device, bool in_loop) {
  if (!device.present()) return {};
  for (const Copied& copied : scalars_) {
    if (copied.device.where.symbol == device.where.symbol) return copied.host;
  }
  const Buffer& buffer = writer_.program().buffers[device.where.symbol];
  const Tensor host = writer_.AddTensor(absl::StrCat(buffer.name, ".on_host"), BufferCategory::kData, device, 1,
                                        /*persistent=*/false, MemoryKind::kHost);
  // On the host stream, because the copy stream would have to wait for the norm.
  Emit({.stream = StreamId::kHost, .phase = Phase::kUpdate}, Transfer{.device = device, .host = host, .to_host = true},
       in_loop);
  scalars_.push_back({device, host});
  return host;
}

void HostUpdater::EmitUpdate(GroupId group, Op op, bool in_loop) {
  FetchGradient(group, in_loop);
  ReturnWeights(in_loop);
  Update& update = *op.As<Update>();
  update.update_5 = Scalar(update.update_5, in_loop);
  update.number_1 = Scalar(update.number_1, in_loop);
  update.gradient_P = gradients_[group];
  if (update.gradient_P.dtype != DType::kFloat32) {
    const Tensor widened = Tensor::Contiguous(DType::kFloat32, {update.gradient_P.elements()});
    const std::string name = absl::StrCat(writer_.program().buffers[update.gradient_P.where.symbol].name, ".widened");
    update.gradient_P =
        writer_.AddTensor(name, BufferCategory::kGradientShards, widened, 1, /*persistent=*/false, MemoryKind::kHost);
    Emit({.stream = StreamId::kHost, .phase = Phase::kUpdate},
         Op(Copy{.from = gradients_[group], .to = update.gradient_P}), in_loop);
  }
  update.weight_P = state_.groups[group].host_weight;
  Emit({.stream = StreamId::kHost, .phase = Phase::kUpdate}, std::move(op), in_loop);
  updated_ = group;
}

void HostUpdater::ReturnWeights(bool in_loop) {
  if (updated_ < 0) return;
  const GroupState& g = state_.groups[std::exchange(updated_, -1)];
  if (writer_.IsOnHost(g.own_weight)) return;
  writer_.EmitFetch({.phase = Phase::kUpdate}, g.host_weight, g.own_weight);
  writer_.program().instructions.back().last_iteration_only = in_loop;
  if (!g.placement.placement().gathers_after_update()) return;
  Emit({.stream = StreamId::kGather, .phase = Phase::kUpdate},
       Collective{.kind = CollectiveKind::kAllGather, .local = g.own_weight, .full = g.full_weight}, in_loop);
}

void HostUpdater::Finish() {
  ReturnWeights(/*in_loop=*/false);
  EndOverlap();
}

}  // namespace shale
