// A model that a program brings through the C interface.
#pragma once

#include "absl/status/statusor.h"
#include "engine/c/shale_model.h"
#include "engine/model/config.h"

namespace shale::c {

// Returns the model, or InvalidArgument for a struct that is wrong.
absl::StatusOr<CustomModel> MakeModel(const shale_model* model);

}  // namespace shale::c
