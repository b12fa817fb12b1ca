// What a job leaves to its data.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/data/token_source.h"

namespace shale {

struct DataFacts {
  DataFormat format = DataFormat::kByContent;  // kByContent: the data was not read.
  int64_t vocabulary = 0;                      // The size that the tokens' encoding implies; 0: not known.
};

// Returns the facts of opened data.
DataFacts DataFactsOf(const TokenSource& source);

// Returns the facts that a job can be planned with. Reads the data only if the job tells neither its vocabulary nor
// that it is text: then returns InvalidArgument, with a way out, if the data cannot be read.
absl::StatusOr<DataFacts> DataFactsForPlanning(const Job& job);

// Sets in `job` what it leaves to its data, as far as `data` tells: the format of the data and the vocabulary.
void ApplyDataFacts(const DataFacts& data, Job& job);

}  // namespace shale
