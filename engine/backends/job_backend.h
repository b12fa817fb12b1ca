// Creates the backend that a job runs on, which `runtime` of its spec describes.
//
// A program decides which kinds of device it can use when it is linked: it depends on one of the targets :cpu, :gpu and
// :all (see BUILD), each of which defines CreateBackend. The engine takes a backend, or this function, as an argument
// and links no device itself.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const Job&)>;

// Creates the backend of a job. Returns FailedPrecondition if the program was built without this kind of device. Does
// not look for devices yet, because a backend can also plan for devices of another machine. May set environment
// variables for CUDA's libraries, so call it before there are threads.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job);

}  // namespace shale
