#include "engine/generate/load_weights.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kPieceElements = 1 << 20;

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::Status CheckTensors(const SafetensorsReader& weights, const ParameterStore& store) {
  for (const Parameter& parameter : store.parameters()) {
    const SafetensorsTensor* tensor = weights.Find(parameter.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the weights have no tensor ", parameter.name, " ",
                                                     ShapeText(parameter.shape), ", which the job's model has"));
    }
    if (tensor->shape != parameter.shape) {
      return absl::InvalidArgumentError(absl::StrCat("the weights' tensor ", parameter.name, " is ",
                                                     ShapeText(tensor->shape), "; the job's model wants ",
                                                     ShapeText(parameter.shape)));
    }
  }
  for (const SafetensorsTensor& tensor : weights.tensors()) {
    if (!store.Find(tensor.name).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weights have a tensor ", tensor.name, ", which the job's model has not"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadWeights(const SafetensorsReader& weights, ParameterStore& store) {
  SHALE_RETURN_IF_ERROR(CheckTensors(weights, store));
  std::vector<float> values;
  for (size_t id = 0; id < store.parameters().size(); ++id) {
    const Parameter& parameter = store.parameters()[id];
    const SafetensorsTensor& tensor = *weights.Find(parameter.name);
    for (int64_t begin = 0; begin < parameter.elements(); begin += kPieceElements) {
      values.resize(std::min(kPieceElements, parameter.elements() - begin));
      SHALE_RETURN_IF_ERROR(weights.ReadFloat32(tensor, begin, absl::MakeSpan(values)));
      SHALE_RETURN_IF_ERROR(store.Write(static_cast<ParameterId>(id), begin, values));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
