#include "engine/cluster/launch/coordinator.h"

#include <google/protobuf/text_format.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

FromMember FromText(const std::string& text) {
  FromMember message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// A coordinator whose messages are kept by connection.
struct Job {
  explicit Job(int processes, Facts facts = {}, double heartbeat_seconds = 10)
      : coordinator(
            {.processes = processes, .launch = "l", .facts = std::move(facts), .heartbeat_seconds = heartbeat_seconds},
            [this](int64_t connection, ToMember message) { sent[connection].push_back(std::move(message)); }) {}

  // Joins process `process` over the connection of the same number.
  void Join(
      int process, const std::function<void(JoinRequest&)>& change = [](JoinRequest&) {}) {
    JoinFrom(process, process, change);
  }
  void JoinFrom(int64_t connection, int process, const std::function<void(JoinRequest&)>& change) {
    FromMember message;
    JoinRequest& join = *message.mutable_join();
    join.set_version(kControlVersion);
    join.set_launch("l");
    join.set_process(process);
    join.set_processes(processes);
    join.set_host(absl::StrCat("h", process / 2));
    join.set_pid(100 + process);
    change(join);
    coordinator.Receive(connection, message);
  }
  std::string Failure(int64_t connection) {
    const ToMember& last = sent[connection].back();
    EXPECT_TRUE(last.has_failure());
    return last.failure().message();
  }

  int processes = 3;
  std::map<int64_t, std::vector<ToMember>> sent;
  Coordinator coordinator;
};

TEST(CoordinatorTest, TellsWhichProcessesShareAHost) {
  Job job(3);
  for (const int process : {2, 0, 1}) job.Join(process);
  for (const int process : {0, 1, 2}) {
    const Formed& formed = job.sent[process].back().formed();
    EXPECT_THAT(formed.hosts(), ::testing::ElementsAre("h0", "h1"));
    EXPECT_THAT(formed.host_of_process(), ::testing::ElementsAre(0, 0, 1));
  }
}

TEST(CoordinatorTest, AStrangerIsRefusedAndTheJobGoesOn) {
  Job job(3);
  job.Join(0);
  FromMember beat;
  beat.mutable_heartbeat();
  job.coordinator.Receive(70, beat);
  EXPECT_THAT(job.Failure(70), HasSubstr("the first message is no request to join"));
  job.JoinFrom(71, 1, [](JoinRequest& join) { join.set_launch("other"); });
  EXPECT_THAT(job.Failure(71), HasSubstr("another launch listens there"));
  job.JoinFrom(72, -5, [](JoinRequest&) {});
  EXPECT_THAT(job.Failure(72), HasSubstr("there is no process -5"));
  job.JoinFrom(73, 1, [](JoinRequest& join) { join.set_host(std::string(300, 'h')); });
  EXPECT_THAT(job.Failure(73), HasSubstr("too long"));
  EXPECT_TRUE(job.coordinator.failure().ok());
}

TEST(CoordinatorTest, EveryMismatchNamesBothValuesToAll) {
  const std::vector<std::pair<std::function<void(JoinRequest&)>, std::string>> cases = {
      {[](JoinRequest& join) { join.set_version(9); }, "version 1 of the control messages, process 1 (h0) version 9"},
      {[](JoinRequest& join) { join.set_processes(4); }, "one of 4 processes, process 0 as one of 3"},
      {[](JoinRequest& join) { join.mutable_facts(0)->set_value("y"); },
       "process 0 has job \"x\", process 1 (h0) has "},
      {[](JoinRequest& join) { join.clear_facts(); }, "process 1 (h0) has nothing of the kind"},
      {[](JoinRequest& join) { join.add_facts()->set_name("new"); }, "process 0 has nothing of the kind, process 1"},
  };
  for (const auto& [change, text] : cases) {
    Job job(3, {{"job", "x"}});
    const auto fact = [](JoinRequest& join) {
      JoinRequest::Fact& fact = *join.add_facts();
      fact.set_name("job");
      fact.set_value("x");
    };
    job.Join(0, fact);
    job.Join(1, [&](JoinRequest& join) {
      fact(join);
      change(join);
    });
    job.Join(2, fact);  // Comes later.
    for (const int process : {0, 1, 2}) EXPECT_THAT(job.Failure(process), HasSubstr(text));
  }
}

// Regression: names and reasons reached the terminals of all processes with their escape sequences.
TEST(CoordinatorTest, NamesAndReasonsOfProcessesArePrintable) {
  const std::string bad = "\x1B[2J\x9B\r\n";
  const std::vector<std::function<void(Job&)>> failures = {
      [&](Job& job) {
        job.Join(1, [&](JoinRequest& join) {
          join.set_version(9);
          join.set_host(bad);
        });
      },
      [&](Job& job) { job.Join(1, [&](JoinRequest& join) { join.add_facts()->set_name(bad); }); },
      [&](Job& job) {
        job.Join(1, [&](JoinRequest& join) {
          join.set_host(bad);
          join.mutable_declines()->set_code(3);
          join.mutable_declines()->set_message(bad);
        });
      },
      [&](Job& job) {
        job.Join(1, [&](JoinRequest& join) { join.set_host(bad); });
        job.coordinator.Disconnected(1);
      },
      [&](Job& job) {
        job.Join(1);
        FromMember abort;
        abort.mutable_abort()->set_code(13);
        abort.mutable_abort()->set_message(bad);
        job.coordinator.Receive(1, abort);
      },
  };
  for (const auto& fail : failures) {
    Job job(3);
    job.Join(0);
    fail(job);
    const std::string failure = job.Failure(0);
    EXPECT_THAT(failure, HasSubstr("\\033[2J\\233\\r"));
    EXPECT_EQ(failure.find_first_of("\x1B\x9B\r"), failure.npos) << failure;
  }
}

TEST(CoordinatorTest, AJobThatRunsIsNotDisturbedByASecondProcessOfANumber) {
  Job job(3);
  for (const int process : {0, 1, 2}) job.Join(process);
  job.JoinFrom(9, 1, [](JoinRequest&) {});
  EXPECT_THAT(job.Failure(9), HasSubstr("has the number of process 1 (pid 101 on h0); start each number from 0 to 2 "));
  EXPECT_TRUE(job.coordinator.failure().ok());
}

TEST(CoordinatorTest, AProcessThatCannotTakePartEndsAJobThatForms) {
  const auto decline = [](JoinRequest& join) {
    join.mutable_declines()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
    join.mutable_declines()->set_message("no job.textproto");
  };
  const std::string why = "process 1 (pid 101 on h0) cannot take part: NOT_FOUND: no job.textproto";
  Job forming(3);
  forming.Join(0);
  forming.Join(1, decline);
  forming.Join(2);  // Comes later.
  for (const int process : {0, 1, 2}) EXPECT_EQ(forming.Failure(process), why);
  EXPECT_EQ(forming.coordinator.failure().code(), absl::StatusCode::kAborted);
  Job running(3);
  for (const int process : {0, 1, 2}) running.Join(process);
  running.JoinFrom(9, 1, decline);
  EXPECT_EQ(running.Failure(9), why);
  EXPECT_TRUE(running.coordinator.failure().ok());
}

TEST(CoordinatorTest, EndsWhenAllHaveLeft) {
  Job job(3);
  for (const int process : {0, 1, 2}) job.Join(process);
  FromMember leave;
  leave.mutable_leave();
  for (const int process : {0, 1, 2}) {
    EXPECT_FALSE(job.coordinator.ended());
    job.coordinator.Receive(process, leave);
    job.coordinator.Disconnected(process);
  }
  EXPECT_TRUE(job.coordinator.ended());
  EXPECT_TRUE(job.coordinator.failure().ok());
}

// Regression: after a process had been stopped, the others waited for it 2 s longer.
TEST(CoordinatorTest, NobodyWaitsForAProcessThatIsSilent) {
  Job job(3, {}, /*heartbeat_seconds=*/0.05);
  for (const int process : {0, 1, 2}) job.Join(process);
  while (job.coordinator.failure().ok()) {
    for (const int process : {1, 2}) job.coordinator.Receive(process, FromText("heartbeat {}"));
    job.coordinator.Poll();
  }
  EXPECT_THAT(job.Failure(1), HasSubstr("process 0 (pid 100 on h0) has not been heard from"));
  job.coordinator.Disconnected(1);
  EXPECT_FALSE(job.coordinator.ended());
  job.coordinator.Disconnected(2);
  EXPECT_TRUE(job.coordinator.ended());
  // If it goes on, it hears the same.
  job.coordinator.Receive(0, FromText("heartbeat {}"));
  EXPECT_EQ(job.Failure(0), job.Failure(1));
}

TEST(CoordinatorTest, MalformedCallsOfAMemberEndTheJob) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"arrival { channel: 2 }", "came to a channel that does not exist"},
      {"arrival { channel: 0 kind: 7 }", "came to a channel that does not exist"},
      {"arrival { round: 1 }", "came to call 1 while the others are at call 0 on channel steps"},
      {"put { key: \"" + std::string(300, 'k') + "\" }", "longer than allowed"},
      {"get { key: \"" + std::string(300, 'k') + "\" }", "a key that is too long"},
      {"join {}", "a message without a meaning here"},
      {"", "a message without a meaning here"},
      {"abort { code: 99 message: \"x\" }", "ended the job"},
  };
  for (const auto& [text, expected] : cases) {
    Job job(3);
    for (const int process : {0, 1, 2}) job.Join(process);
    job.coordinator.Receive(1, FromText(text));
    for (const int process : {0, 1, 2}) EXPECT_THAT(job.Failure(process), HasSubstr(expected));
  }
}

TEST(CoordinatorTest, WhateverIsReceivedItGoesOn) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    Job job(3);
    for (int step = 0; step < 60; ++step) {
      const int connection = static_cast<int>(random() % 5);
      FromMember message;
      std::string bytes(random() % 12, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random() % 64);
      if (random() % 4 == 0) {
        job.Join(connection % 3);
      } else if (random() % 16 == 0) {
        job.coordinator.Disconnected(connection);
      } else if (message.ParseFromString(bytes)) {
        job.coordinator.Receive(connection, message);
      }
      job.coordinator.Poll();
    }
    // All failures are told, and the same to all members.
    if (!job.coordinator.failure().ok()) {
      for (auto& [connection, messages] : job.sent) EXPECT_FALSE(messages.empty());
    }
  }
}

}  // namespace
}  // namespace shale::testing
