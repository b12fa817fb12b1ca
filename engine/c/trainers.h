// The handles of trainers.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/api/trainer.h"
#include "engine/c/callbacks.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/shale.h"
#include "engine/run/runtime/backend.h"
#include "kernels/check.h"

namespace shale::c {

// What a handle of a trainer stands for. The trainer is destroyed first, because it borrows the others.
struct KeptTrainer {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<DataSource> data, evaluation_data;
  std::unique_ptr<Events> events;
  std::unique_ptr<Trainer> trainer;
};

Handles<KeptTrainer>& Trainers();

// Calls `body`, a function from a trainer to a Status, with the trainer of a handle.
template <class Body>
shale_code CallWith(shale_trainer handle, shale_error* error, Body&& body) {
  return Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto used, Trainers().Take(handle));
    return body(*used->trainer);
  });
}

}  // namespace shale::c
