#include "tests/engine/cluster/launch/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>

#include "kernels/check.h"

namespace shale::testing {
namespace {

void Extend(X509* certificate, int what, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value);
  SHALE_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

std::FILE* Open(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  SHALE_CHECK(file != nullptr);
  return file;
}

}  // namespace

CertificateFiles WriteCertificate(const std::string& prefix, const CertificateFiles* signer, int64_t seconds) {
  static std::atomic<int> serial = 0;
  const CertificateFiles files = {.certificate = prefix + ".pem", .key = prefix + ".key"};
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), seconds < 0 ? 2 * seconds : 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  // Names may have 64 bytes. Those of a certificate and its signer must differ.
  const std::string own = prefix.substr(prefix.rfind('/') + 1);
  SHALE_CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(own.c_str()),
                                         -1, -1, 0) == 1);
  Extend(certificate, NID_basic_constraints, signer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  Extend(certificate, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  EVP_PKEY* signing_key = key;
  if (signer == nullptr) {
    X509_set_issuer_name(certificate, name);
  } else {
    std::FILE* file = Open(signer->certificate, "r");
    X509* const authority = PEM_read_X509(file, nullptr, nullptr, nullptr);
    std::fclose(file);
    X509_set_issuer_name(certificate, X509_get_subject_name(authority));
    X509_free(authority);
    file = Open(signer->key, "r");
    signing_key = PEM_read_PrivateKey(file, nullptr, nullptr, nullptr);
    std::fclose(file);
  }
  SHALE_CHECK(signing_key != nullptr && X509_sign(certificate, signing_key, EVP_sha256()) > 0);
  std::FILE* file = Open(files.certificate, "w");
  SHALE_CHECK(PEM_write_X509(file, certificate) == 1);
  std::fclose(file);
  file = Open(files.key, "w");
  SHALE_CHECK(fchmod(fileno(file), S_IRUSR | S_IWUSR) == 0);
  SHALE_CHECK(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  if (signing_key != key) EVP_PKEY_free(signing_key);
  EVP_PKEY_free(key);
  X509_free(certificate);
  return files;
}

}  // namespace shale::testing
