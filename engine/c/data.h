// The data of a program that uses the C interface, as a DataSource.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/data_source.h"
#include "engine/c/shale.h"

namespace shale::c {

// Returns the source, or InvalidArgument for a description that is wrong. `name` is that of the argument.
absl::StatusOr<std::unique_ptr<DataSource>> MakeDataSource(const shale_data* data, absl::string_view name);

}  // namespace shale::c
