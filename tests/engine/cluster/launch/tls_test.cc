// Certificates: what of them is refused before a connection, and what processes with different ones hear.
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/cluster/launch/credentials.h"
#include "engine/cluster/launch/membership.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/cluster/launch/certificates.h"
#include "tests/engine/cluster/launch/free_port.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Joined = absl::StatusOr<std::unique_ptr<Membership>>;

ProcessPlace Place(int process, int port) {
  return {.launcher = "a test", .process = process, .processes = 2, .address = "127.0.0.1", .ports = {port}};
}

class TlsTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return absl::StrCat(::testing::TempDir(), "/", name); }

  Variables Named(const CertificateFiles& files, const CertificateFiles& authority) const {
    return {{"SHALE_TLS_CERTIFICATE", files.certificate},
            {"SHALE_TLS_KEY", files.key},
            {"SHALE_TLS_AUTHORITY", authority.certificate}};
  }

  static std::string Refusal(const Variables& variables, int process = 0) {
    return std::string(ReadTls(variables, Place(process, 1)).status().message());
  }

  // Joins as processes 0 and 1, with what the variables of each name. Returns what they hear; the test ends process 0
  // when process 1 has been refused, as a launcher would.
  std::vector<Joined> JoinBoth(const Variables& zero, const Variables& one) {
    const int port = FreePort();
    std::vector<Joined> joined(2);
    const auto join = [&](int process, const Variables& variables) {
      auto tls = ReadTls(variables, Place(process, port));
      ASSERT_TRUE(tls.ok()) << tls.status();
      joined[process] = Membership::Join({.place = Place(process, port),
                                          .tls = *std::move(tls),
                                          .token = "secret",
                                          .join_seconds = process == 0 ? 6.0 : 60.0});
    };
    std::thread first([&] { join(0, zero); });
    join(1, one);
    first.join();
    return joined;
  }

  const CertificateFiles authority_ = WriteCertificate(Path("authority"), nullptr);
  const CertificateFiles other_authority_ = WriteCertificate(Path("other-authority"), nullptr);
  const CertificateFiles ours_ = WriteCertificate(Path("ours"), &authority_);
  const CertificateFiles others_ = WriteCertificate(Path("others"), &other_authority_);
};

TEST_F(TlsTest, ProcessesOfOneAuthorityDecideTogether) {
  const CertificateFiles second = WriteCertificate(Path("second"), &authority_);
  std::vector<Joined> joined = JoinBoth(Named(ours_, authority_), Named(second, authority_));
  ASSERT_TRUE(joined[0].ok() && joined[1].ok()) << joined[0].status() << joined[1].status();
  std::thread first([&] {
    EXPECT_EQ((*joined[0])->Broadcast(ControlChannel::kSteps, "hello").value(), "hello");
    EXPECT_TRUE((*joined[0])->Leave().ok());
  });
  EXPECT_EQ((*joined[1])->Broadcast(ControlChannel::kSteps, "").value(), "hello");
  EXPECT_TRUE((*joined[1])->Leave().ok());
  first.join();
}

// Nobody whom process 0 does not know may end the job, so process 0 only misses the other.
TEST_F(TlsTest, WhoIsNotTrustedIsRefusedWithinSeconds) {
  Variables both = Named(others_, authority_);
  std::ofstream(Path("both.pem")) << std::ifstream(authority_.certificate).rdbuf()
                                  << std::ifstream(other_authority_.certificate).rdbuf();
  both["SHALE_TLS_AUTHORITY"] = Path("both.pem");
  Variables misnamed = Named(ours_, authority_);
  misnamed["SHALE_TLS_SERVER_NAME"] = "node7";
  const std::string closes = "closes every connection of process 1, which has ";
  const struct {
    Variables zero, one;
    std::string message;
  } cases[] = {
      {Named(ours_, authority_), {}, closes + "no certificate, before it answers: it probably wants one; give all"},
      {Named(ours_, authority_), both, closes + "a certificate, before it answers: it does not accept that, or"},
      {Named(ours_, authority_), Named(others_, other_authority_), "certificate verify failed"},
      {Named(ours_, authority_), misnamed, "wants a certificate for \"node7\" (SHALE_TLS_SERVER_NAME): "},
      {{}, Named(ours_, authority_), "wrong version number"},
  };
  std::vector<std::thread> threads;
  for (const auto& each : cases) {
    threads.emplace_back([&] {
      const std::vector<Joined> joined = JoinBoth(each.zero, each.one);
      EXPECT_EQ(joined[1].status().code(), absl::StatusCode::kPermissionDenied);
      EXPECT_THAT(std::string(joined[1].status().message()),
                  AllOf(HasSubstr(each.message), HasSubstr("process 0 at 127.0.0.1:"),
                        HasSubstr("give all processes certificates")));
      EXPECT_THAT(std::string(joined[0].status().message()), HasSubstr("process 1 of 2 did not join the job within"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TlsTest, ProcessZeroWithoutTheNameThatIsAskedForRefusesItself) {
  Variables misnamed = Named(ours_, authority_);
  misnamed["SHALE_TLS_SERVER_NAME"] = "node7";
  const auto tls = ReadTls(misnamed, Place(0, 1));
  ASSERT_TRUE(tls.ok()) << tls.status();
  const Joined joined = Membership::Join({.place = Place(0, FreePort()), .tls = *tls});
  EXPECT_THAT(std::string(joined.status().message()), HasSubstr("wants a certificate for \"node7\""));
}

// Regression: with all of them empty, as if those of a shell were missing, the job ran without encryption.
TEST_F(TlsTest, AnEmptyVariableIsNoCertificate) {
  Variables variables;
  for (const char* name : {"SHALE_TLS_CERTIFICATE", "SHALE_TLS_KEY", "SHALE_TLS_AUTHORITY"}) variables[name] = "";
  EXPECT_THAT(std::string(ReadTls(variables, {}).status().message()), ::testing::HasSubstr("is set and empty"));
  EXPECT_THAT(std::string(ReadTls({{"SHALE_TLS_SERVER_NAME", ""}}, {}).status().message()),
              ::testing::HasSubstr("SHALE_TLS_SERVER_NAME is set and empty"));
}

TEST_F(TlsTest, WhatIsNoUsableCertificateIsNamed) {
  EXPECT_FALSE(ReadTls({}, Place(0, 1)).value().has_value());
  const Variables good = Named(ours_, authority_);
  EXPECT_EQ(ReadTls(good, Place(0, 1)).value()->server_name, "127.0.0.1");
  const auto with = [&](const std::string& name, const std::string& value) {
    Variables variables = good;
    variables[name] = value;
    return variables;
  };
  Variables without_key = good;
  without_key.erase("SHALE_TLS_KEY");
  EXPECT_THAT(Refusal(without_key), HasSubstr("SHALE_TLS_KEY is not; set SHALE_TLS_CERTIFICATE, "));
  for (const char* name : {"SHALE_TLS_CERTIFICATE", "SHALE_TLS_KEY", "SHALE_TLS_AUTHORITY"}) {
    EXPECT_THAT(Refusal(with(name, "/no/such/file")), HasSubstr(absl::StrCat(name, ": ")));
    EXPECT_THAT(Refusal(with(name, "/no/such/file")), HasSubstr("/no/such/file"));
  }
  EXPECT_THAT(Refusal(with("SHALE_TLS_KEY", others_.key)),
              AllOf(HasSubstr("the private key in SHALE_TLS_KEY="), HasSubstr("does not belong to the certificate")));
  EXPECT_THAT(Refusal(with("SHALE_TLS_KEY", ours_.certificate)), HasSubstr("can read the private key in"));
  EXPECT_THAT(Refusal(with("SHALE_TLS_CERTIFICATE", ours_.key)), HasSubstr("no certificate in PEM in"));
  EXPECT_THAT(Refusal(with("SHALE_TLS_AUTHORITY", ours_.key)), HasSubstr("no certificate in PEM in"));
  EXPECT_THAT(Refusal(with("SHALE_TLS_AUTHORITY", other_authority_.certificate)),
              HasSubstr("does not accept the certificate in"));
  const std::string text = Path("text");
  std::ofstream(text) << "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
  EXPECT_EQ(chmod(text.c_str(), S_IRUSR), 0);
  EXPECT_THAT(Refusal(with("SHALE_TLS_KEY", text)), HasSubstr("no private key in PEM without a password in"));
  const CertificateFiles expired = WriteCertificate(Path("expired"), &authority_, -60);
  EXPECT_THAT(Refusal(Named(expired, authority_)), HasSubstr("certificate has expired"));
}

}  // namespace
}  // namespace shale::testing
