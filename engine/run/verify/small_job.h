// The small variants of a job that a verification runs.
//
// W ranks, B sequences in a micro-batch, K micro-batches, G sequences in a global batch, S positions in a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/config/job.h"

namespace shale {

// The sizes of a small job. It has K = 2.
struct SmallSize {
  int64_t ranks = 1;            // W
  int64_t micro_batch = 1;      // B
  int64_t sequence_length = 1;  // S

  int64_t global_batch() const { return 2 * micro_batch * ranks; }  // G
  double positions() const { return static_cast<double>(global_batch()) * static_cast<double>(sequence_length); }

  bool operator==(const SmallSize&) const = default;
};

// Returns the sizes to begin with: those of the job, with at most four ranks.
SmallSize FirstSize(const Job& job);

// Makes a size smaller, in B and then, if `length_may_change`, in S. Returns false if nothing is left to shrink.
bool Shrink(bool length_may_change, SmallSize& size);

// Returns what Shrink makes of a size in the end.
SmallSize SmallestSize(bool length_may_change, SmallSize size);

// Returns a line for each number of the job that a small job has another of.
std::vector<std::string> WhatIsSmaller(const Job& job, const SmallSize& size);

// Returns the job with these sizes, for a few steps on data of the program, which it reads in order. Ranks, batch,
// data, learning rate schedule and telemetry are not the job's. Everything else is.
Job SmallJob(const Job& job, const SmallSize& size);

// Returns the small job from which the runs that are compared differ in one setting each. It recomputes no activations,
// its gradients can be read, and its first loss scale is small enough that the first step has some.
Job ComparedJob(const Job& job, const SmallSize& size);

// Gives a small job other ranks, which no mesh divides into groups, and another micro-batch. Takes away what does not
// go with that many ranks.
void SetDivision(int64_t ranks, int64_t micro_batch, Job& job);

// Returns a small job that computes everything in fp32 and moves no weight: its gradients are compared with differences
// of its loss. A global batch is one micro-batch of every rank, of two sequences or more if that gives few targets.
Job GradientJob(const Job& job, const SmallSize& size);

}  // namespace shale
