// Memberships of "processes" that are threads of the test. They talk over the loopback device as real ones do.
#include "engine/cluster/launch/membership.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/cluster/launch/free_port.h"

namespace shale::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ControlChannel kSteps = ControlChannel::kSteps, kCheckpoints = ControlChannel::kCheckpoints;

MembershipOptions Options(int process, int processes, int port) {
  return {.place = {.launcher = "a test",
                    .process = process,
                    .processes = processes,
                    .address = "127.0.0.1",
                    .ports = {port},
                    .launch = "test"},
          .token = "secret",
          .facts = {{"job", "quickstart"}, {"build", "1.2"}, {"program", "abc"}},
          .join_seconds = 20,
          .heartbeat_seconds = 20,
          .wait_seconds = 20};
}

using Joined = absl::StatusOr<std::unique_ptr<Membership>>;

// Joins as processes 0 to `processes` - 1, each with options that `change` has changed, and calls `work`, each in a
// thread of its own.
void InEach(
    int processes, const std::function<void(int process, Joined joined)>& work,
    const std::function<void(MembershipOptions&)>& change = [](MembershipOptions&) {}) {
  const int port = FreePort();
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process) {
    threads.emplace_back([&, process] {
      MembershipOptions options = Options(process, processes, port);
      change(options);
      work(process, Membership::Join(options));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(MembershipTest, ProcessesDecideTogether) {
  InEach(5, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    Membership& me = **joined;
    EXPECT_EQ(me.process(), process);
    EXPECT_EQ(me.processes(), 5);
    EXPECT_EQ(me.host_of(4), 0);
    std::thread saver([&] {
      for (int i = 0; i < 30; ++i) {
        EXPECT_EQ(me.Broadcast(kCheckpoints, absl::StrCat(process, "/", i)).value(), absl::StrCat("0/", i));
      }
    });
    for (int i = 0; i < 30; ++i) {
      const auto m = [&](int of) { return absl::StrCat(of, ".", i); };
      EXPECT_THAT(me.Gather(kSteps, m(process)).value(), ElementsAre(m(0), m(1), m(2), m(3), m(4)));
      EXPECT_TRUE(me.Barrier(kSteps).ok());
    }
    saver.join();
    EXPECT_TRUE(me.Leave().ok());
    EXPECT_TRUE(me.failure().ok());
  });
}

TEST(MembershipTest, LargeAndBinaryMessages) {
  InEach(2, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    std::string mine(1 << 20, static_cast<char>(process + 1));
    mine[17] = '\0';
    const auto all = (*joined)->Gather(kSteps, mine);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_TRUE((*all)[process] == mine);
    EXPECT_EQ((*all)[1 - process].size(), mine.size());
    EXPECT_EQ((*joined)->Gather(kSteps, std::string(ControlPlane::kMostMessageBytes + 1, 'x')).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE((*joined)->Leave().ok());
  });
}

TEST(MembershipTest, KeysAndValues) {
  InEach(3, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    Membership& me = **joined;
    EXPECT_EQ(me.Get("nobody stores this", 0.05).status().code(), absl::StatusCode::kDeadlineExceeded);
    if (process == 2) {
      EXPECT_TRUE(me.Put("id", std::string("\0\xff", 2)).ok());
    }
    EXPECT_EQ(me.Get("id", 20).value(), std::string("\0\xff", 2));
    EXPECT_TRUE(me.Put(absl::StrCat("address ", process), absl::StrCat("host", process)).ok());
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(me.Get(absl::StrCat("address ", other), 20).value(), absl::StrCat("host", other));
    }
    EXPECT_EQ(me.Put("long", std::string(kMostValueBytes + 1, 'x')).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(me.Leave().ok());
  });
}

TEST(MembershipTest, ASecondValueForAKeyEndsTheJob) {
  InEach(2, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    (void)(*joined)->Put("key", absl::StrCat(process));
    const absl::Status status = (*joined)->Barrier(kSteps);
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(Text(status), HasSubstr("stores \"key\", which has another value already"));
  });
}

TEST(MembershipTest, AnAbortSaysWhoAndWhyToAll) {
  std::atomic<int> told = 0;
  InEach(4, [&](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    (*joined)->OnFailure([&](const absl::Status& why) {
      EXPECT_THAT(Text(why), HasSubstr("process 2 (pid "));
      ++told;
    });
    if (process == 2) (*joined)->Abort(absl::DataLossError("shard 7 is damaged"));
    const absl::Status status = (*joined)->Barrier(kSteps);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(status), HasSubstr("ended the job: DATA_LOSS: shard 7 is damaged"));
    EXPECT_EQ((*joined)->Leave(), status);
  });
  EXPECT_EQ(told, 4);
}

TEST(MembershipTest, WhoEndsIsNamedRatherThanWhoNoticesIt) {
  InEach(3, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    if (process == 1) (*joined)->Abort(absl::UnavailableError("connection reset by rank 2"));
    if (process == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      joined->reset();
      return;
    }
    const absl::Status status = (*joined)->Barrier(kSteps);
    EXPECT_THAT(Text(status), HasSubstr("process 2 (pid "));
  });
}

TEST(MembershipTest, AnErrorAboutPeersIsToldIfNobodyEnds) {
  InEach(2, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    if (process == 1) (*joined)->Abort(absl::UnavailableError("no route to rank 0"));
    EXPECT_THAT(Text((*joined)->Barrier(kSteps)), HasSubstr("UNAVAILABLE: no route to rank 0"));
  });
}

TEST(MembershipTest, DifferentFactsAreRefusedEverywhereWithBothValues) {
  InEach(
      4,
      [](int process, Joined joined) {
        EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition) << process;
        EXPECT_THAT(Text(joined.status()), HasSubstr("process 0 has build \"1.2\", process 3 ("));
        EXPECT_THAT(Text(joined.status()), HasSubstr(" has build \"1.3\""));
      },
      [](MembershipOptions& options) {
        if (options.place.process == 3) options.facts[1].second = "1.3";
      });
}

TEST(MembershipTest, AnotherNumberOfProcesses) {
  InEach(
      3,
      [](int process, Joined joined) {
        EXPECT_THAT(Text(joined.status()),
                    HasSubstr("was started as one of 4 processes, process 0 as one of 3; start all of them"));
      },
      [](MembershipOptions& options) {
        if (options.place.process == 1) options.place.processes = 4;
      });
}

TEST(MembershipTest, TwoProcessesOfOneNumber) {
  InEach(
      3,
      [](int process, Joined joined) { EXPECT_THAT(Text(joined.status()), HasSubstr("has the number of process 1")); },
      [](MembershipOptions& options) {
        if (options.place.process == 2) options.place.process = 1;
      });
}

TEST(MembershipTest, AWrongTokenIsRefusedAtOnceAndDisturbsNobody) {
  InEach(
      2,
      [](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_TRUE((*joined)->Barrier(kSteps).ok());
        EXPECT_TRUE((*joined)->Leave().ok());
      },
      [](MembershipOptions& options) {
        if (options.place.process == 0) return;
        MembershipOptions stranger = options;
        stranger.token = "secreT";
        const Joined refused = Membership::Join(stranger);
        EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
        EXPECT_THAT(Text(refused.status()), HasSubstr("has another token than process 1"));
      });
}

TEST(MembershipTest, AProcessThatNeverJoinsIsNamed) {
  InEach(
      3,
      [](int process, Joined joined) {
        if (process == 2) return;
        EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(Text(joined.status()), HasSubstr("process 2 of 3 did not join the job within 0.5 s"));
      },
      [](MembershipOptions& options) {
        options.join_seconds = 0.5;
        if (options.place.process == 2) options.place.address = "";  // It does not try.
      });
}

TEST(MembershipTest, ProcessZeroThatNeverComes) {
  MembershipOptions options = Options(1, 2, FreePort());
  options.join_seconds = 0.3;
  const Joined joined = Membership::Join(options);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(joined.status()), HasSubstr("process 1 could not join the job at 127.0.0.1:"));
}

TEST(MembershipTest, AHostThatDoesNotResolve) {
  for (const int process : {0, 1}) {
    MembershipOptions options = Options(process, 2, FreePort());
    options.join_seconds = 0.3;
    options.place.address = "no-such-host.invalid";
    const Joined joined = Membership::Join(options);
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(Text(joined.status()), HasSubstr("\"no-such-host.invalid\" does not resolve"));
  }
}

TEST(MembershipTest, AnAddressOfAnotherHost) {
  MembershipOptions options = Options(0, 2, FreePort());
  options.place.address = "192.0.2.1";  // Reserved for documentation (RFC 5737).
  const Joined joined = Membership::Join(options);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(joined.status()), HasSubstr("this is no address of this host"));
}

// Process 0 may have found its error before it knew its facts, from which those of the others differ then.
TEST(MembershipTest, WhyProcessZeroDeclinesReachesAll) {
  const int port = FreePort();
  std::vector<std::thread> threads;
  for (int process = 1; process < 3; ++process) {
    threads.emplace_back([&, process] {
      EXPECT_THAT(Text(Membership::Join(Options(process, 3, port)).status()),
                  ContainsRegex("process 0 .pid .* cannot take part: INVALID_ARGUMENT: no such field"));
    });
  }
  MembershipOptions options = Options(0, 3, port);
  options.facts.clear();
  Membership::Decline(options, absl::InvalidArgumentError("no such field"));
  for (std::thread& thread : threads) thread.join();
}

// A listener that is no control plane.
class Listener {
 public:
  Listener() : socket_(socket(AF_INET, SOCK_STREAM, 0)), port_(FreePort()) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
  }
  ~Listener() { close(socket_); }
  int port() const { return port_; }

 private:
  const int socket_, port_;
};

TEST(MembershipTest, ATakenPort) {
  const Listener other;
  const Joined joined = Membership::Join(Options(0, 2, other.port()));
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Text(joined.status()), HasSubstr("another program does; choose another port"));
}

TEST(MembershipTest, OfSeveralPortsTheFirstFreeOne) {
  const Listener other;
  const int port = FreePort();
  InEach(
      3,
      [](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_TRUE((*joined)->Leave().ok());
      },
      [&](MembershipOptions& options) {
        options.place.ports = {other.port(), port};
        options.heartbeat_seconds = 1;  // The other listener never answers.
      });
}

TEST(MembershipTest, AnotherLaunchIsTurnedAway) {
  InEach(
      2,
      [](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_TRUE((*joined)->Leave().ok());
      },
      [](MembershipOptions& options) {
        if (options.place.process == 0) return;
        MembershipOptions stranger = options;
        stranger.place.launch = "yesterday";
        EXPECT_THAT(Text(Membership::Join(stranger).status()),
                    HasSubstr("another launch listens there: \"test\"; this process belongs to \"yesterday\""));
      });
}

// Returns a socket that is connected to a port of this machine, or -1.
int Connect(in_addr_t number, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(number);
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return connection;
  close(connection);
  return -1;
}

TEST(MembershipTest, ProcessZeroListensAtItsAddressAlone) {
  int port = 0;
  InEach(
      2,
      [&](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        if (process == 1) {
          const int connection = Connect(INADDR_LOOPBACK, port);
          EXPECT_GE(connection, 0);
          close(connection);
          EXPECT_EQ(Connect(INADDR_LOOPBACK + 1, port), -1);  // 127.0.0.2, an address of this machine too.
        }
        EXPECT_TRUE((*joined)->Leave().ok());
      },
      [&](MembershipOptions& options) {
        if (options.place.process == 1) port = options.place.ports[0];
      });
}

TEST(MembershipTest, GarbageAtThePortDisturbsNobody) {
  InEach(
      2,
      [](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_TRUE((*joined)->Barrier(kSteps).ok());
        EXPECT_TRUE((*joined)->Leave().ok());
      },
      [](MembershipOptions& options) {
        if (options.place.process == 0) return;
        uint32_t state = 1;
        for (int trial = 0; trial < 50; ++trial) {
          const int garbage = Connect(INADDR_LOOPBACK, options.place.ports[0]);
          // Process 0 may not listen yet in the first trials.
          if (garbage < 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          std::string bytes = trial % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";  // HTTP/2 begins with this.
          for (int i = 0; i < 300; ++i) bytes += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
          (void)send(garbage, bytes.data(), bytes.size(), MSG_NOSIGNAL);
          close(garbage);
        }
      });
}

TEST(MembershipTest, LeavingWhileOthersWaitEndsTheJob) {
  InEach(3, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    if (process == 1) {
      EXPECT_TRUE((*joined)->Leave().ok());
      EXPECT_EQ((*joined)->Barrier(kSteps).code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    EXPECT_THAT(Text((*joined)->Barrier(kSteps)), HasSubstr("has left the job"));
  });
}

TEST(MembershipTest, ProcessesInDifferentCalls) {
  InEach(2, [](int process, Joined joined) {
    ASSERT_TRUE(joined.ok()) << joined.status();
    const absl::Status status = process == 0 ? (*joined)->Barrier(kSteps) : (*joined)->Gather(kSteps, "x").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Text(status), HasSubstr("in call 0 on channel steps"));
  });
}

TEST(MembershipTest, AProcessThatDoesNotComeIsNamed) {
  InEach(
      2,
      [](int process, Joined joined) {
        ASSERT_TRUE(joined.ok()) << joined.status();
        std::atomic<bool> failed = false;
        if (process == 0) {
          const absl::Status status = (*joined)->Barrier(kCheckpoints);
          EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
          EXPECT_THAT(Text(status), HasSubstr("process 1 did not come to call 0 on channel checkpoints within 0.4 s"));
          return;
        }
        (*joined)->OnFailure([&](const absl::Status&) { failed = true; });
        while (!failed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      },
      [](MembershipOptions& options) { options.wait_seconds = 0.4; });
}

}  // namespace
}  // namespace shale::testing
