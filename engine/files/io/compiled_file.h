// The tables of tuned matmuls that are compiled in: the files of tools/tuning, by the names of the files.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

struct CompiledTable {
  absl::string_view name, text;
};

extern const absl::Span<const CompiledTable> kCompiledTables;

}  // namespace shale
