// The certificates by which the processes of a job trust each other.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/launch/process_place.h"

namespace shale {

// What a process shows the others, and what it accepts of them. Both sides of a connection show a certificate. The
// first three are texts in PEM.
struct TlsIdentity {
  std::string certificate;  // Of this process. Those of authorities between it and `authority` may follow.
  std::string key;          // The private key of the certificate.
  std::string authority;    // The certificates of those who sign the certificates of the job.
  std::string server_name;  // The name or number of a host that the certificate of process 0 must have.
};

// Reads the files that SHALE_TLS_CERTIFICATE, SHALE_TLS_KEY and SHALE_TLS_AUTHORITY name. Returns nullopt if none of
// them is set: then nothing is encrypted. Takes server_name from SHALE_TLS_SERVER_NAME, or else from `place`.
//
// Returns InvalidArgument if only some are set, if one is set and empty, if other users can read the key, if a file
// holds something else, if the key does not belong to the certificate, and if the authority does not accept the
// certificate, now and for what this process needs it; otherwise the errors of reading.
absl::StatusOr<std::optional<TlsIdentity>> ReadTls(const Variables& variables, const ProcessPlace& place);

}  // namespace shale
