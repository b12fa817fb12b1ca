#include "engine/state/parameter_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace shale {
ParameterStore::ParameterStore(const ModelGraph& model, const JobState& state, const MemoryPlan& plan,
                               std::vector<RankRuntime*> ranks)
    : model_(model), state_(state), plan_(plan), ranks_(std::move(ranks)) {}

absl::StatusOr<ParameterId> ParameterStore::Find(absl::string_view name) const {
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    if (model_.parameters[id].name == name) return static_cast<ParameterId>(id);
  }
  return absl::NotFoundError(absl::StrCat("the model has no parameter ", name));
}

absl::StatusOr<ParameterId> ParameterStore::FindWhole(absl::string_view name, int64_t elements) const {
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, Find(name));
  if (model_.parameters[id].elements() != elements) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", name, " has ", model_.parameters[id].elements(),
                                                   " elements, the caller gave ", elements));
  }
  return id;
}

std::vector<ParameterStore::Piece> ParameterStore::PiecesOf(ParameterId id, int64_t begin, int64_t count,
                                                            bool own) const {
  const Parameter& parameter = model_.parameters[id];
  SHALE_CHECK(begin >= 0 && count >= 0 && begin + count <= parameter.elements()) << parameter.name;
  const GroupState& g = state_.groups[parameter.group];
  const int64_t flat = g.layout.Find(parameter.name)->offset_elements + begin;
  std::vector<Piece> pieces;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const ElementRange held = own ? g.Owned(rank) : g.Weights(rank);
    const int64_t first = std::max(flat, held.begin), end = std::min(flat + count, held.end);
    if (first < end) pieces.push_back({rank, first - flat, end - first, first - held.begin});
  }
  return pieces;
}

std::byte* ParameterStore::Address(const Tensor& tensor, int rank, int64_t element) const {
  return ranks_[rank]->arena().base() + plan_.addresses[tensor.where.symbol] + tensor.where.offset_bytes +
         rank * tensor.where.rank_stride_bytes + element * SizeOf(tensor.dtype);
}

absl::Status ParameterStore::WriteWeights(const Tensor& weight, const Piece& piece, const float* values) {
  std::byte* to = Address(weight, piece.rank, piece.at);
  if (weight.dtype == DType::kFloat32) return ranks_[piece.rank]->Write(to, values, piece.count * 4);
  std::vector<BFloat16> rounded(piece.count);
  for (int64_t i = 0; i < piece.count; ++i) rounded[i] = RoundMaster(values[i]);
  return ranks_[piece.rank]->Write(to, rounded.data(), piece.count * 2);
}

absl::Status ParameterStore::Write(ParameterId id, int64_t begin, absl::Span<const float> values) {
  const GroupState& g = state_.groups[model_.parameters[id].group];
  const int64_t size = std::ssize(values);
  for (const Piece& piece : PiecesOf(id, begin, size, /*own=*/true)) {
    const float* from = values.data() + piece.from;
    if (!g.full_weight.present()) SHALE_RETURN_IF_ERROR(WriteWeights(g.own_weight, piece, from));
    if (g.master.present()) {
      SHALE_RETURN_IF_ERROR(ranks_[piece.rank]->Write(Address(g.master, piece.rank, piece.at), from, piece.count * 4));
    }
    if (g.low.present()) {
      std::vector<int16_t> low(piece.count);
      for (int64_t i = 0; i < piece.count; ++i) low[i] = MasterLowBits(from[i], RoundMaster(from[i]));
      SHALE_RETURN_IF_ERROR(
          ranks_[piece.rank]->Write(Address(g.low, piece.rank, piece.at), low.data(), piece.count * 2));
    }
  }
  if (!g.full_weight.present()) return absl::OkStatus();
  for (const Piece& piece : PiecesOf(id, begin, size, /*own=*/false)) {
    SHALE_RETURN_IF_ERROR(WriteWeights(g.full_weight, piece, values.data() + piece.from));
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::ReadFloats(const Tensor& tensor, const Piece& piece, float* values) const {
  return ranks_[piece.rank]->Read(Address(tensor, piece.rank, piece.at), values, piece.count * 4);
}

absl::Status ParameterStore::Read(ParameterId id, int64_t begin, absl::Span<float> values) const {
  const GroupState& g = state_.groups[model_.parameters[id].group];
  for (const Piece& piece : PiecesOf(id, begin, std::ssize(values), /*own=*/true)) {
    float* to = values.data() + piece.from;
    if (g.master.present() || g.own_weight.dtype == DType::kFloat32) {
      SHALE_RETURN_IF_ERROR(ReadFloats(g.master.present() ? g.master : g.own_weight, piece, to));
      continue;
    }
    std::vector<BFloat16> weight(piece.count);
    std::vector<int16_t> low(piece.count);
    SHALE_RETURN_IF_ERROR(
        ranks_[piece.rank]->Read(Address(g.own_weight, piece.rank, piece.at), weight.data(), piece.count * 2));
    SHALE_RETURN_IF_ERROR(ranks_[piece.rank]->Read(Address(g.low, piece.rank, piece.at), low.data(), piece.count * 2));
    for (int64_t i = 0; i < piece.count; ++i) to[i] = JoinMaster(weight[i], low[i]);
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const {
  const GroupState& g = state_.groups[model_.parameters[id].group];
  for (const Piece& piece : PiecesOf(id, begin, std::ssize(values), /*own=*/true)) {
    SHALE_RETURN_IF_ERROR(ReadFloats(g.own_gradient, piece, values.data() + piece.from));
  }
  return absl::OkStatus();
}

}  // namespace shale
