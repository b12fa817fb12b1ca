// What every function of the C interface does: it takes structs of any version, returns text into the caller's buffer,
// and turns statuses and exceptions into codes. Also what several of them take: a checkpoint, how tokens are drawn,
// data, requests to end calls that take long.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/checkpoint.h"
#include "engine/api/data_source.h"
#include "engine/api/sampler.h"
#include "engine/c/shale.h"

namespace shale::c {

// No struct of any version is larger.
inline constexpr size_t kMostStructBytes = size_t{1} << 16;

// Writes the status to `error`, unless that is null, and returns its code.
shale_code Report(const absl::Status& status, shale_error* error);

// Returns what a callback said, as a status whose message begins with the name of the callback.
absl::Status StatusOf(shale_code code, const shale_error& error, absl::string_view callback);

// Runs `body`, a function that returns a Status, and reports its status. Turns an exception into an error.
template <class Body>
shale_code Call(shale_error* error, Body&& body) {
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("not enough memory"), error);
  } catch (const std::exception& exception) {
    return Report(absl::InternalError(exception.what()), error);
  }
}

// Returns InvalidArgument if `pointer` is null. `name` is that of the argument.
template <class T>
absl::Status Require(const T* pointer, absl::string_view name) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

// Returns InvalidArgument unless a struct of the caller can be read as one of `known` bytes: `size` must be at least
// `least`, the size of the struct in the first version that has it, and bytes beyond `known` must be 0.
absl::Status CheckStruct(const void* given, size_t size, size_t least, size_t known, absl::string_view name);

// Returns InvalidArgument unless least <= value <= most. `member` is the name of the value, and `name` that of its
// struct, or "" if the value is an option, which other languages give without a struct.
absl::Status CheckRange(absl::string_view name, absl::string_view member, int64_t value, int64_t least, int64_t most);

// Returns OutOfRange unless 0 <= index < count. `name` is that of one of the things.
absl::Status CheckIndex(int64_t index, int64_t count, absl::string_view name);

// Returns InvalidArgument unless the option `seconds` is 0 or more.
absl::Status CheckSeconds(double seconds);

// The size of a struct in the first version that has it. Whoever adds members to a struct specializes this: the size is
// then the offset of the first new member.
template <class T>
inline constexpr size_t kFirstSize = sizeof(T);

// Returns a copy of a struct that the caller filled in. Members that the caller's version does not have are 0.
template <class T>
absl::StatusOr<T> TakeStruct(const T* given, absl::string_view name) {
  if (absl::Status status = Require(given, name); !status.ok()) return status;
  if (absl::Status status = CheckStruct(given, given->size, kFirstSize<T>, sizeof(T), name); !status.ok())
    return status;
  T copy = {};
  std::memcpy(&copy, given, std::min(given->size, sizeof(T)));
  return copy;
}

// Writes a struct for the caller, whose version of it has out->size bytes. Keeps out->size.
template <class T>
absl::Status GiveStruct(const T& value, T* out, absl::string_view name) {
  if (absl::Status status = Require(out, name); !status.ok()) return status;
  const size_t size = out->size;
  if (size < sizeof(T) || size > kMostStructBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "->size is ", size, "; begin with SHALE_INIT, which sets it to ", sizeof(T)));
  }
  std::memcpy(out, &value, sizeof(T));
  out->size = size;
  return absl::OkStatus();
}

// Writes text into the buffer of the caller, as shale.h says.
absl::Status GiveText(absl::string_view text, char* buffer, size_t capacity, size_t* needed);

// Calls `use` with the checkpoint at `folder`, or with the newest intact one in it: if `use` returns DataLoss, with the
// one before. Returns NotFound if there is none, and otherwise what `use` returned.
absl::Status UseCheckpoint(const char* folder, absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

// Returns the options; the defaults for null. Returns InvalidArgument for a struct or values that are wrong.
absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling);

// Returns the program's data as a source, or InvalidArgument for a description that is wrong. `name` is that of the
// argument.
absl::StatusOr<std::unique_ptr<DataSource>> MakeDataSource(const shale_data* data, absl::string_view name);

// Returns what shale_stop_request sets, which lives as long as the result; null for 0, the stop of nobody.
absl::StatusOr<std::shared_ptr<const std::atomic<bool>>> TakeStop(shale_stop stop);

}  // namespace shale::c
