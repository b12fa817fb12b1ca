// The secret that the processes of a job share.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/launch/process_place.h"

namespace shale {

// Returns the token of a job: the first line of the file that SHALE_TOKEN_FILE names, or else SHALE_TOKEN, or else "".
// Never take a token from a command line, which every user of a host can read. Returns InvalidArgument if both are set,
// if one is set and empty, because whoever sets it wants a secret, and if CheckSecretFile does not accept the file;
// otherwise the errors of reading.
absl::StatusOr<std::string> ReadToken(const Variables& variables);

// Returns whether both are equal. Takes equally long wherever they differ, so that nobody can guess byte by byte.
bool SameToken(absl::string_view a, absl::string_view b);

}  // namespace shale
