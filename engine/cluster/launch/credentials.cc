#include "engine/cluster/launch/credentials.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
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

absl::Status CheckSecretFile(const std::string& path, absl::string_view what) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return absl::OkStatus();
  const auto refused = [&](absl::string_view can, absl::string_view advice) {
    return absl::InvalidArgumentError(
        absl::StrCat("other users can ", can, " ", what, " in ", Quoted(path), "; ", advice));
  };
  if ((facts.st_mode & (S_IRGRP | S_IROTH)) != 0) return refused("read", "chmod 600 it");
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return refused("write", "chmod 600 it");
  if (facts.st_uid != geteuid() && facts.st_uid != 0) return refused("write", "make a file of your own");
  // Whoever may write a folder can replace the files in it, unless it is like /tmp, where only their owners may. Links
  // are followed, because the folder of the file itself counts.
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  for (const std::filesystem::path& link : {real, std::filesystem::absolute(path, error)}) {
    struct stat folder = {};
    if (stat(link.parent_path().c_str(), &folder) != 0) continue;
    if ((folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0) {
      return refused("replace", "chmod o-w its folder");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadToken(const Variables& variables) {
  constexpr int64_t kMostBytes = 4096;
  const auto file = variables.find("SHALE_TOKEN_FILE"), value = variables.find("SHALE_TOKEN");
  for (const auto& variable : {file, value}) {
    if (variable == variables.end() || !absl::StripAsciiWhitespace(variable->second).empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        variable->first, " is set and empty, so everybody could join the job; give a secret, or unset it"));
  }
  if (file == variables.end()) return value == variables.end() ? "" : value->second;
  if (value != variables.end()) {
    return absl::InvalidArgumentError("both SHALE_TOKEN_FILE and SHALE_TOKEN are set; unset one of them");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file->second, kMostBytes));
  SHALE_RETURN_IF_ERROR(CheckSecretFile(file->second, "the token"));
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(text).substr(0, text.find('\n')));
  if (line.empty()) return absl::InvalidArgumentError(absl::StrCat("no token in ", Quoted(file->second)));
  return std::string(line);
}

bool SameToken(absl::string_view a, absl::string_view b) {
  uint8_t difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<uint8_t>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

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
