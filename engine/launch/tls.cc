#include "engine/launch/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/io/file.h"
#include "engine/launch/secret_file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kCertificate = "SHALE_TLS_CERTIFICATE", kKey = "SHALE_TLS_KEY",
                            kAuthority = "SHALE_TLS_AUTHORITY", kServerName = "SHALE_TLS_SERVER_NAME";
constexpr int64_t kMostBytes = 1 << 20;  // Of a file.

struct Free {
  void operator()(BIO* object) const { BIO_free_all(object); }
  void operator()(X509* object) const { X509_free(object); }
  void operator()(EVP_PKEY* object) const { EVP_PKEY_free(object); }
  void operator()(X509_STORE* object) const { X509_STORE_free(object); }
  void operator()(X509_STORE_CTX* object) const { X509_STORE_CTX_free(object); }
  void operator()(STACK_OF(X509) * object) const { sk_X509_free(object); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

std::string Value(const Variables& variables, absl::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// Tells OpenSSL that there is no password for a key. Without it OpenSSL would ask for one on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

Bio Open(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::vector<Certificate> ParseCertificates(const std::string& text) {
  std::vector<Certificate> all;
  const Bio in = Open(text);
  while (X509* next = PEM_read_bio_X509(in.get(), nullptr, NoPassword, nullptr)) all.emplace_back(next);
  ERR_clear_error();
  return all;
}

Key ParseKey(const std::string& text) {
  Key key(PEM_read_bio_PrivateKey(Open(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

// Returns why the authorities do not accept the first certificate of `chain` for a purpose, or "" if they do. The
// others in `chain` may lead from it to the authorities.
std::string WhyRefused(const std::vector<Certificate>& chain, const std::vector<Certificate>& authorities,
                       int purpose) {
  const std::unique_ptr<X509_STORE, Free> store(X509_STORE_new());
  const std::unique_ptr<STACK_OF(X509), Free> between(sk_X509_new_null());
  const std::unique_ptr<X509_STORE_CTX, Free> check(X509_STORE_CTX_new());  // Borrows both.
  for (const Certificate& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  if (X509_STORE_CTX_init(check.get(), store.get(), chain[0].get(), between.get()) != 1) return "it cannot be checked";
  X509_STORE_CTX_set_purpose(check.get(), purpose);
  if (X509_verify_cert(check.get()) == 1) return "";
  ERR_clear_error();
  return X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()));
}

absl::Status Check(const Variables& variables, const TlsIdentity& identity, bool serves) {
  const auto file = [&](absl::string_view name) { return absl::StrCat(name, "=", Value(variables, name)); };
  const std::vector<Certificate> chain = ParseCertificates(identity.certificate);
  if (chain.empty()) return absl::InvalidArgumentError(absl::StrCat("no certificate in PEM in ", file(kCertificate)));
  const std::vector<Certificate> authorities = ParseCertificates(identity.authority);
  if (authorities.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no certificate in PEM in ", file(kAuthority)));
  }
  const Key key = ParseKey(identity.key);
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no private key in PEM without a password in ", file(kKey)));
  }
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("the private key in ", file(kKey), " does not belong to the certificate in ", file(kCertificate)));
  }
  // Every process is a client, also process 0, which calls itself.
  std::string refused = WhyRefused(chain, authorities, X509_PURPOSE_SSL_CLIENT);
  if (refused.empty() && serves) refused = WhyRefused(chain, authorities, X509_PURPOSE_SSL_SERVER);
  if (refused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the authority in ", file(kAuthority),
                                                 " does not accept the certificate in ", file(kCertificate), ": ",
                                                 refused));
}

}  // namespace

absl::StatusOr<std::optional<TlsIdentity>> ReadTls(const Variables& variables, const ProcessPlace& place) {
  TlsIdentity identity;
  const std::vector<std::pair<absl::string_view, std::string*>> files = {
      {kCertificate, &identity.certificate}, {kKey, &identity.key}, {kAuthority, &identity.authority}};
  absl::string_view given, missing;
  for (const absl::string_view name : {kCertificate, kKey, kAuthority, kServerName}) {
    if (const auto found = variables.find(name); found == variables.end() || !found->second.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is set and empty; give a value, or unset it"));
  }
  for (const auto& [name, text] : files) (Value(variables, name).empty() ? missing : given) = name;
  if (given.empty()) return std::nullopt;
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(given, " is set and ", missing, " is not; set ", kCertificate, ", ",
                                                   kKey, " and ", kAuthority, ", or none of them"));
  }
  for (const auto& [name, text] : files) {
    const std::string path = Value(variables, name);
    if (name == kKey) SHALE_RETURN_IF_ERROR(CheckSecretFile(path, "the private key"));
    absl::StatusOr<std::string> content = ReadFile(path, kMostBytes);
    if (!content.ok()) {
      return absl::Status(content.status().code(), absl::StrCat(name, ": ", content.status().message()));
    }
    *text = *std::move(content);
  }
  identity.server_name = Value(variables, kServerName);
  if (identity.server_name.empty()) identity.server_name = place.address;
  SHALE_RETURN_IF_ERROR(Check(variables, identity, place.process == 0));
  return identity;
}

}  // namespace shale
