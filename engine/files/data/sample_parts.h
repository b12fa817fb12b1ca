// The parts of a sample, and what follows from what they are. A new part is its members in engine/api/data_source.h and
// a row in ForEachPart. Programs in C and Python also see their own member of it (engine/c/shale.h,
// tools/python/shale/_c.py).
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
  T missing = 0;                                // The elements of a sample that is missing.
  // Samples without tokens have features or values in their place, whose rows say whether the samples fit a model.
  bool is_token = false;
  // What messages say if samples have this part and the model does not read it, and if samples lack it and the model
  // reads it: what is wrong, and what to do. Empty if a position may have several elements: messages then compare
  // numbers.
  absl::string_view if_unread, if_lacking;
};

// Calls visit(part) for each SamplePart.
template <class Visitor>
void ForEachPart(Visitor&& visit) {
  using Data = const DataDescription&;
  visit(SamplePart<int32_t>{.item = StepItem::kInputs,
                            .element = "input",
                            .span = &SampleParts::inputs,
                            .vector = &PulledSample::inputs,
                            .elements = [](Data data) { return int64_t{data.features == 0}; },
                            .is_token = true});
  visit(SamplePart<float>{.item = StepItem::kFeatures,
                          .element = "feature",
                          .span = &SampleParts::features,
                          .vector = &PulledSample::features,
                          .elements = [](Data data) { return data.features; }});
  visit(SamplePart<int32_t>{.item = StepItem::kTargets,
                            .element = "target",
                            .span = &SampleParts::targets,
                            .vector = &PulledSample::targets,
                            .elements = [](Data data) { return int64_t{data.target_values == 0}; },
                            .missing = kMaskedTarget,
                            .is_token = true});
  visit(SamplePart<float>{.item = StepItem::kTargetValues,
                          .element = "target value",
                          .span = &SampleParts::target_values,
                          .vector = &PulledSample::target_values,
                          .elements = [](Data data) { return data.target_values; }});
  visit(SamplePart<float>{
      .item = StepItem::kTargetWeights,
      .element = "weight",
      .span = &SampleParts::weights,
      .vector = &PulledSample::weights,
      .elements = [](Data data) { return int64_t{data.has_weights}; },
      .if_unread = "its targets have weights, and data.target_weights is NONE; set OVER_TOKENS or OVER_WEIGHTS",
      .if_lacking = "its targets have no weights; set data.target_weights=NONE"});
  visit(SamplePart<int32_t>{
      .item = StepItem::kPositionIds,
      .element = "position id",
      .span = &SampleParts::position_ids,
      .vector = &PulledSample::position_ids,
      .elements = [](Data data) { return int64_t{data.has_position_ids}; },
      .if_unread = "its samples hold documents that must not see each other; set data.packing=PACK",
      .if_lacking = "its samples have no position ids, which data.packing PACK needs; give them (position_ids), or set "
                    "data.packing=CUT"});
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
