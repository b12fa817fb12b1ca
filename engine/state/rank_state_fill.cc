// The part of RankState that fills in weights. The threads of a rank divide the elements of a round; what each computes
// depends on its elements alone, so neither threads nor rounds change a bit.
#include <algorithm>
#include <atomic>
#include <vector>

#include "engine/checkpoint/base_values.h"
#include "engine/checkpoint/staging.h"
#include "engine/state/halves.h"
#include "engine/state/rank_state.h"
#include "engine/state/staged_fill.h"
#include "engine/state/team_parts.h"
#include "kernels/check.h"
#include "kernels/cpu/team.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// The fewest elements for which it is worth to wake a thread, which takes some microseconds.
constexpr int64_t kLeastElements = int64_t{1} << 14;
// The most elements that a thread reads at once. More would not stay in its cache; fewer would make it slower to read
// from the files of a Hugging Face folder whose matrices are transposed.
constexpr int64_t kMostElements = int64_t{1} << 18;

}  // namespace

std::vector<std::vector<ElementRange>> RankState::SavedOfFrozen() const {
  std::vector<std::vector<ElementRange>> saved(model_.parameters.size());
  for (size_t group = 0; group < state_.groups.size(); ++group) {
    if (!state_.groups[group].frozen) continue;
    for (const ShardLayout::Piece& piece : state_.groups[group].placement.Saved(runtime_.rank())) {
      saved[model_.groups[group].parameters[piece.parameter]].push_back(piece.range);
    }
  }
  return saved;
}

absl::Status RankState::Fill(ReadValues read_values, const FillOptions& options, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kLeastFillStagingBytes && options.threads >= 1);
  MakeResident(/*states=*/false);
  cpu::Team team(options.threads);
  team.Start().IgnoreError();  // If the system refuses threads, this one does all the work.
  StagedFill out(runtime_, staging);
  std::atomic<uint64_t> digest = 0;
  const std::vector<std::vector<ElementRange>> digested = SavedOfFrozen();
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    const Parameter& parameter = model_.parameters[id];
    const GroupState& g = state_.groups[parameter.group];
    if (options.frozen_only && !g.frozen) continue;
    const auto read = [&](const Parameter& p, int64_t begin, absl::Span<float> values) {
      SHALE_RETURN_IF_ERROR(read_values(p, begin, values));
      if (options.digest_of_frozen == nullptr) return absl::OkStatus();
      ValuesDigest part;
      for (const ElementRange& range : digested[id]) {
        const ElementRange common = Intersect(range, {begin, begin + std::ssize(values)});
        if (common.begin >= common.end) continue;
        part.Add(p.name, common.begin, values.subspan(common.begin - begin, common.end - common.begin));
      }
      digest.fetch_add(part.value(), std::memory_order_relaxed);
      return absl::OkStatus();
    };
    const ElementRange wanted = OfParameter(static_cast<ParameterId>(id), Weights(g));
    if (wanted.begin == wanted.end) continue;
    // Of a parameter in 4 bits, all is read.
    SHALE_RETURN_IF_ERROR(g.stored == FrozenWeights::kNf4 ? FillNf4(parameter, read, team, out)
                                                          : FillValues(parameter, wanted, read, team, out));
  }
  SHALE_RETURN_IF_ERROR(out.Finish());
  for (const GroupState& g : state_.groups) SHALE_RETURN_IF_ERROR(CopyToHostWeight(g));
  if (options.digest_of_frozen != nullptr) *options.digest_of_frozen = digest;
  return absl::OkStatus();
}

absl::Status RankState::FillValues(const Parameter& parameter, ElementRange wanted, ReadValues read, cpu::Team& team,
                                   StagedFill& out) {
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements;
  const Tensor& weight = g.weights();
  const bool wide = weight.dtype == DType::kFloat32;
  // Values, weights in bf16, masters in fp32 (or low bits in 16): at most these pieces and bytes of an element.
  constexpr int64_t kPieces = 3, kElementBytes = 4 + 2 + 4;
  const int64_t most = out.RoundBytes(kPieces) / kElementBytes;
  for (int64_t begin = wanted.begin; begin < wanted.end;) {
    const int64_t count = std::min(most, wanted.end - begin), flat = offset + begin;
    const ElementRange owned = Intersect(Owned(g), {flat, flat + count});
    const int64_t at_owned = owned.begin - Owned(g).begin, own_count = owned.end - owned.begin;
    const auto place = [&](const Tensor& tensor, int64_t element, int64_t elements) {
      return elements == 0 ? nullptr : out.Place(Address(tensor, element), elements * SizeOf(tensor.dtype));
    };
    std::byte* const weights = place(weight, flat - Weights(g).begin, count);
    std::byte* const masters = g.master.present() ? place(g.master, at_owned, own_count) : nullptr;
    std::byte* const low = g.low.present() ? place(g.low, at_owned, own_count) : nullptr;
    // Values are read to where they stay, if all of them stay.
    const bool all_masters = masters != nullptr && own_count == count;
    auto* const values = reinterpret_cast<float*>(wide ? weights : all_masters ? masters : out.Scratch(count * 4));
    const int64_t step = std::clamp(CeilDivide(count, team.threads()), kLeastElements, kMostElements);
    SHALE_RETURN_IF_ERROR(RunParts(team, CeilDivide(count, step), [&](int64_t part) -> absl::Status {
      const int64_t from = part * step, size = std::min(step, count - from);
      SHALE_RETURN_IF_ERROR(read(parameter, begin + from, absl::MakeSpan(values + from, size)));
      if (wide) return absl::OkStatus();
      RoundMasters(values + from, size, reinterpret_cast<BFloat16*>(weights) + from);
      const ElementRange mine = Intersect(owned, {flat + from, flat + from + size});
      const float* const own_values = values + (mine.begin - flat);
      const int64_t at = mine.begin - owned.begin, own_size = mine.end - mine.begin;
      if (masters != nullptr && !all_masters) {
        std::copy_n(own_values, own_size, reinterpret_cast<float*>(masters) + at);
      }
      if (low != nullptr) TakeLowBits(own_values, own_size, reinterpret_cast<int16_t*>(low) + at);
      return absl::OkStatus();
    }));
    SHALE_RETURN_IF_ERROR(out.Send());
    begin += count;
  }
  return absl::OkStatus();
}

}  // namespace shale
