// Certificates for tests.
#pragma once

#include <cstdint>
#include <string>

namespace shale::testing {

// Paths of a certificate and of its private key, in PEM.
struct CertificateFiles {
  std::string certificate, key;
};

// Writes a certificate for "localhost" and 127.0.0.1 to PREFIX.pem, and its key to PREFIX.key, which only the owner can
// read. `signer` signs it; null: it is an authority, which signs itself. It is valid from now for so many seconds.
CertificateFiles WriteCertificate(const std::string& prefix, const CertificateFiles* signer, int64_t seconds = 3600);

}  // namespace shale::testing
