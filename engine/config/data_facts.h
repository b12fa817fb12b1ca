// Finds the settings that a job may leave to its data: the format and the vocabulary.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/data/token_source.h"

namespace shale {

struct DataFacts {
  DataFormat format = DataFormat::kByContent;  // kByContent: not known, because the data was not read.
  int64_t vocabulary = 0;                      // The size that the tokens' encoding implies; 0: not known.
};

// Returns the facts of opened data.
DataFacts DataFactsOf(const TokenSource& source);

// Returns the facts that are needed to plan a job. Reads the data only if the job sets neither the vocabulary nor the
// format TEXT. Returns InvalidArgument, with settings that avoid the read, if that data cannot be read. Errors begin
// with the path of a field and a colon.
absl::StatusOr<DataFacts> DataFactsForPlanning(const Job& job);

// Does the same without reading the data, for a job that somebody else wrote. `known` is what the caller knows of the
// data. Returns InvalidArgument, which begins with a field's path and a colon, if that is not enough.
absl::StatusOr<DataFacts> DataFactsWithoutReading(const Job& job, const DataFacts& known);

// Sets the format of the data in `job`, if `data` has it, and the vocabulary, if `job` does not set it.
void ApplyDataFacts(const DataFacts& data, Job& job);

}  // namespace shale
