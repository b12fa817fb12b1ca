// The parts of a sample, and what follows from what they are. A new part is a member of SampleParts and PulledSample
// (engine/api/data_source.h) and a row in ForEachPart. Programs in C and Python also see their own member of it
// (shale_sample in engine/c/shale.h, tools/python/shale/_c.py).
//
// Guarded: calls what a program brings to read samples, which may throw.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/data_source.h"
#include "engine/compile/program/step_item.h"

namespace shale {

template <class T>
struct SamplePart {
  using Element = T;
  StepItem item;              // What a step takes it as.
  absl::string_view element;  // What messages call one of its elements.
  absl::Span<T> SampleParts::*span;
  std::vector<T> PulledSample::*vector;
  int64_t (*elements)(const DataDescription&);  // At each position. 0: the samples do not have it.
  T missing;                                    // The elements of a sample that is missing.
};

// Calls visit(part) for each SamplePart.
template <class Visitor>
void ForEachPart(Visitor&& visit) {
  using Data = const DataDescription&;
  using Parts = SampleParts;
  using Pulled = PulledSample;
  visit(SamplePart<int32_t>{StepItem::kInputs, "input", &Parts::inputs, &Pulled::inputs,
                            [](Data data) { return int64_t{data.features == 0}; }, 0});
  visit(SamplePart<float>{StepItem::kFeatures, "feature", &Parts::features, &Pulled::features,
                          [](Data data) { return data.features; }, 0});
  visit(SamplePart<int32_t>{StepItem::kTargets, "target", &Parts::targets, &Pulled::targets,
                            [](Data data) { return int64_t{data.target_values == 0}; }, kMaskedTarget});
  visit(SamplePart<float>{StepItem::kTargetValues, "target value", &Parts::target_values, &Pulled::target_values,
                          [](Data data) { return data.target_values; }, 0});
  visit(SamplePart<float>{StepItem::kTargetWeights, "weight", &Parts::weights, &Pulled::weights,
                          [](Data data) { return int64_t{data.has_weights}; }, 0});
  visit(SamplePart<int32_t>{StepItem::kPositionIds, "position id", &Parts::position_ids, &Pulled::position_ids,
                            [](Data data) { return int64_t{data.has_position_ids}; }, 0});
}

// Gives each part the size that it has at `positions` positions of this data. Parts that the data lacks become empty.
inline void Resize(PulledSample& sample, const DataDescription& data, int64_t positions) {
  ForEachPart([&](const auto& part) { (sample.*part.vector).resize(positions * part.elements(data)); });
}

// Returns the parts of a sample. They point into it.
inline SampleParts PartsOf(PulledSample& sample) {
  SampleParts parts;
  ForEachPart([&](const auto& part) { parts.*part.span = absl::MakeSpan(sample.*part.vector); });
  return parts;
}

// Returns the parts of one of `count` samples, or of `count` equal parts of samples, that lie one after another.
inline SampleParts Piece(const SampleParts& all, int64_t index, int64_t count) {
  SampleParts piece;
  ForEachPart([&](const auto& part) {
    const auto& elements = all.*part.span;
    const int64_t size = std::ssize(elements) / count;
    piece.*part.span = elements.subspan(index * size, size);
  });
  return piece;
}

// Returns call(), or Unknown if it throws: "<name> threw: <reason>". Lets std::bad_alloc pass, because the caller says
// how to free memory.
template <class Call>
auto Guarded(absl::string_view name, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return absl::UnknownError(absl::StrCat(name, " threw: ", e.what()));
  } catch (...) {
    return absl::UnknownError(absl::StrCat(name, " threw something that is no std::exception"));
  }
}

}  // namespace shale
