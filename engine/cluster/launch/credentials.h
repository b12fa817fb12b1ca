// What the processes of a job trust each other by: the secret that they share, certificates, and files that only their
// owner may read and write.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/cluster/launch/process_place.h"

namespace shale {

// Returns InvalidArgument if other users can read the file, whose content `what` names, or can choose what it holds:
// because they can write it, own it, or can replace it in its folder. Users that could do anything anyway (root) are
// not others. A missing file is OK.
absl::Status CheckSecretFile(const std::string& path, absl::string_view what);

// Returns the token of a job: the first line of the file that SHALE_TOKEN_FILE names, or else SHALE_TOKEN, or else "".
// Never take a token from a command line, which every user of a host can read. Returns InvalidArgument if both are set,
// if one is set and empty, because whoever sets it wants a secret, and if CheckSecretFile does not accept the file;
// otherwise the errors of reading.
absl::StatusOr<std::string> ReadToken(const Variables& variables);

// Returns whether both are equal. Takes equally long wherever they differ, so that nobody can guess byte by byte.
bool SameToken(absl::string_view a, absl::string_view b);

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
