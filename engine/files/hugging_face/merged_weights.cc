#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/export.h"
#include "engine/compile/model/adapter.h"
#include "kernels/check.h"

namespace shale {
namespace {

class MergedWeights {
 public:
  MergedWeights(const DecoderConfig& config, HfParameterReader reader);

  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> values);

 private:
  struct Adapter {
    AdaptableLinear linear;
    std::string a_name, b_name;
    std::vector<float> a, b;  // [rank, in] and [out, rank], while `loaded_` names their weight.
  };
  absl::Status Load(const std::string& weight, std::vector<Adapter>& adapters);
  void Add(const Adapter& adapter, int64_t begin, absl::Span<float> values) const;

  int64_t rank_ = 0;
  double scale_ = 0;
  HfParameterReader reader_;
  std::map<std::string, std::vector<Adapter>> adapters_;  // By weight.
  std::string loaded_;
};

MergedWeights::MergedWeights(const DecoderConfig& config, HfParameterReader reader) : reader_(std::move(reader)) {
  if (!config.adapter) return;
  rank_ = config.adapter->rank;
  scale_ = config.adapter->Scale();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const AdaptableLinear& linear : AdaptedLinears(config, layer)) {
      adapters_[absl::StrCat("blocks.", layer, ".", linear.linear, ".weight")].push_back(
          {linear, linear.NameOfA(layer), linear.NameOfB(layer), {}, {}});
    }
  }
}

absl::Status MergedWeights::Load(const std::string& weight, std::vector<Adapter>& adapters) {
  if (loaded_ == weight) return absl::OkStatus();
  if (const auto before = adapters_.find(loaded_); before != adapters_.end()) {
    for (Adapter& adapter : before->second) adapter.a = adapter.b = {};
  }
  loaded_.clear();
  for (Adapter& adapter : adapters) {
    adapter.a.resize(rank_ * adapter.linear.in);
    adapter.b.resize(rank_ * adapter.linear.out);
    SHALE_RETURN_IF_ERROR(reader_(adapter.a_name, 0, absl::MakeSpan(adapter.a)));
    SHALE_RETURN_IF_ERROR(reader_(adapter.b_name, 0, absl::MakeSpan(adapter.b)));
  }
  loaded_ = weight;
  return absl::OkStatus();
}

void MergedWeights::Add(const Adapter& adapter, int64_t begin, absl::Span<float> values) const {
  const int64_t in = adapter.linear.in, end = begin + static_cast<int64_t>(values.size());
  const int64_t first = std::max(begin / in, adapter.linear.row);
  const int64_t last = std::min((end + in - 1) / in, adapter.linear.row + adapter.linear.out);
  std::vector<double> sums(in);
  for (int64_t row = first; row < last; ++row) {
    const int64_t from = std::max(begin, row * in), count = std::min(end, (row + 1) * in) - from;
    std::fill_n(sums.begin(), count, 0.0);
    for (int64_t r = 0; r < rank_; ++r) {
      const double b = scale_ * adapter.b[(row - adapter.linear.row) * rank_ + r];
      const float* const a = &adapter.a[r * in + from - row * in];
      for (int64_t i = 0; i < count; ++i) sums[i] += b * a[i];
    }
    float* const out = &values[from - begin];
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(out[i] + sums[i]);
  }
}

absl::Status MergedWeights::Read(absl::string_view parameter, int64_t begin, absl::Span<float> values) {
  SHALE_RETURN_IF_ERROR(reader_(parameter, begin, values));
  const std::string name(parameter);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(Load(name, found->second));
  for (const Adapter& adapter : found->second) Add(adapter, begin, values);
  return absl::OkStatus();
}

}  // namespace

HfParameterReader WithAdaptersMerged(const DecoderConfig& config, HfParameterReader reader) {
  return [merged = std::make_shared<MergedWeights>(config, std::move(reader))](
             absl::string_view parameter, int64_t begin, absl::Span<float> values) {
    return merged->Read(parameter, begin, values);
  };
}

}  // namespace shale
