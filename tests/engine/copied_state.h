// The law of access to the state of a trainer by name: a trainer that is given the state of another one, slice by
// slice, trains on with its bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/trainer.h"
#include "gtest/gtest.h"

namespace shale::testing {

// Slices of this many elements straddle shards, and have a rest.
inline constexpr int64_t kSliceElements = 101;

// Calls visit(name, begin, slice) for all slices of all parameters. `slice` has the size of the slice.
inline void ForEachSlice(const Trainer& trainer,
                         const std::function<void(const std::string&, int64_t, absl::Span<float>)>& visit) {
  for (const Parameter& parameter : trainer.state().parameters()) {
    for (int64_t begin = 0; begin < parameter.elements(); begin += kSliceElements) {
      std::vector<float> slice(std::min(kSliceElements, parameter.elements() - begin));
      visit(parameter.name, begin, absl::MakeSpan(slice));
    }
  }
}

inline void CopyParameters(const Trainer& from, Trainer& to) {
  ForEachSlice(from, [&](const std::string& name, int64_t begin, absl::Span<float> slice) {
    ASSERT_TRUE(from.state().ReadParameter(name, begin, slice).ok()) << name;
    ASSERT_TRUE(to.state().WriteParameter(name, begin, slice).ok()) << name;
  });
}

// Calls visit(state, name, begin, slice) for all slices of all states that parameters have. With groups of the
// optimizer, these are those of a parameter's rule.
inline void ForEachStateSlice(
    const Trainer& trainer,
    const std::function<void(const std::string&, const std::string&, int64_t, absl::Span<float>)>& visit) {
  for (const std::string& state : trainer.state().optimizer_states()) {
    for (const Parameter& parameter : trainer.state().parameters()) {
      const absl::StatusOr<int64_t> elements = trainer.state().OptimizerStateElements(state, parameter.name);
      if (parameter.frozen || elements.status().code() == absl::StatusCode::kNotFound) continue;
      ASSERT_TRUE(elements.ok()) << elements.status();
      for (int64_t begin = 0; begin < *elements; begin += kSliceElements) {
        std::vector<float> slice(std::min(kSliceElements, *elements - begin));
        visit(state, parameter.name, begin, absl::MakeSpan(slice));
      }
    }
  }
}

inline void CopyStates(const Trainer& from, Trainer& to) {
  ForEachStateSlice(
      from, [&](const std::string& state, const std::string& name, int64_t begin, absl::Span<float> slice) {
        ASSERT_TRUE(from.state().ReadOptimizerState(state, name, begin, slice).ok()) << state << " of " << name;
        ASSERT_TRUE(to.state().WriteOptimizerState(state, name, begin, slice).ok()) << state << " of " << name;
      });
}

// Writes over all parameters and all states of the optimizer.
inline void Scramble(Trainer& trainer) {
  ForEachSlice(trainer, [&](const std::string& name, int64_t begin, absl::Span<float> slice) {
    std::fill(slice.begin(), slice.end(), 0.5f);
    ASSERT_TRUE(trainer.state().WriteParameter(name, begin, slice).ok()) << name;
  });
  ForEachStateSlice(
      trainer, [&](const std::string& state, const std::string& name, int64_t begin, absl::Span<float> slice) {
        std::fill(slice.begin(), slice.end(), 0.5f);
        ASSERT_TRUE(trainer.state().WriteOptimizerState(state, name, begin, slice).ok()) << state << " of " << name;
        std::fill(slice.begin(), slice.end(), 0.0f);
        ASSERT_TRUE(trainer.state().ReadOptimizerState(state, name, begin, slice).ok()) << state << " of " << name;
        ASSERT_EQ(std::vector<float>(slice.begin(), slice.end()), std::vector<float>(slice.size(), 0.5f)) << state;
      });
}

// Runs a step of both trainers, which must have the same loss and the same gradient.
inline void ExpectSameStep(Trainer& a, Trainer& b) {
  const absl::StatusOr<StepReport> first = a.Step(), second = b.Step();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->loss, first->loss) << "step " << first->step;
  EXPECT_EQ(second->gradient_norm, first->gradient_norm) << "step " << first->step;
}

// Expects the law of a job with at least four steps. `create` makes a trainer at its first step. States in 8 bits,
// which cannot be written, are left out.
inline void ExpectStateCanBeCopied(Job job, const std::function<std::unique_ptr<Trainer>(const Job&)>& create) {
  const std::unique_ptr<Trainer> original = create(job);
  const std::unique_ptr<Trainer> same = create(job);
  job.runtime.seed += 1;
  const std::unique_ptr<Trainer> other = create(job), another = create(job);
  ASSERT_TRUE(original && same && other && another);
  // The forward pass uses what was written, in whatever form it computes.
  CopyParameters(*original, *other);
  const absl::StatusOr<StepReport> copied = other->Step(), without = another->Step();
  const absl::StatusOr<StepReport> report = original->Step();
  ASSERT_TRUE(copied.ok() && without.ok() && report.ok());
  EXPECT_EQ(copied->loss, report->loss);
  EXPECT_NE(without->loss, report->loss);
  ASSERT_TRUE(same->Step().ok());
  ExpectSameStep(*original, *same);
  // The update uses masters and states of the optimizer.
  const std::vector<std::string> states = original->state().optimizer_states();
  std::vector<float> one(1);
  const std::string& name = original->state().parameters()[0].name;
  if (!states.empty() && !original->state().ReadOptimizerState(states[0], name, 0, absl::MakeSpan(one)).ok()) return;
  Scramble(*same);
  CopyParameters(*original, *same);
  CopyStates(*original, *same);
  ExpectSameStep(*original, *same);
  ExpectSameStep(*original, *same);
}

}  // namespace shale::testing
