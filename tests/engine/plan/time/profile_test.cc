// Tests that profiles of machines survive writing and merging, and that no hostile one is taken.
#include "engine/plan/time/profile.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

constexpr char kSmallProfile[] = R"(name: "here"
processor: "some CPU"
device: "CPU"
origin { source: MEASURED date: "2026-01-02" by: "a test" }
devices_per_host: 1
threads: 2
peak_flops_f32: 100000000000
peak_flops_bf16: 200000000000
copy_bytes_per_second: 10000000000
rates { kind: "MatMul f32" flops_per_second: 90000000000 }
works { kind: "MatMul f32" sizes: 8 sizes: 8 sizes: 4 flops: 512 bytes: 512 seconds: 1e-06 count: 7 ranks_on_host: 1 }
links { ends: HOSTS bytes_per_second: 10000000000 }
issue_seconds: 1e-06
)";

std::string RefusalOf(const std::string& text) {
  return std::string(ParseProfile(text, "m.textproto").status().message());
}
std::string RefusalWith(absl::string_view from, absl::string_view to) {
  const std::string text = absl::StrReplaceAll(kSmallProfile, {{from, to}});
  EXPECT_NE(text, kSmallProfile) << from;
  return RefusalOf(text);
}

TEST(MachineProfile, IsTheSameAfterPrintingAndParsing) {
  const absl::StatusOr<proto::MachineProfile> profile = ParseProfile(kSmallProfile, "m.textproto");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(PrintProfile(*profile), kSmallProfile);
}

TEST(MachineProfile, EveryNamedOneIsRead) {
  EXPECT_FALSE(ProfileNames().empty());
  for (const std::string& name : ProfileNames()) {
    const absl::StatusOr<proto::MachineProfile> profile = ReadProfile(name);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->name(), name);
  }
  const absl::Status missing = ReadProfile("h200x9").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_TRUE(absl::EndsWith(missing.message(), "did you mean h200x8?")) << missing.message();
}

TEST(MachineProfile, AbsurdAndPartialOnesAreRefused) {
  EXPECT_EQ(RefusalWith("f32: 100000000000", "f32: nan"),
            "m.textproto:7:1: peak_flops_f32: found nan; wanted a number from 0 to 1e+18");
  EXPECT_EQ(RefusalWith("f32: 100000000000", "f32: 1e30"),
            "m.textproto:7:1: peak_flops_f32: found 1e+30; wanted a number from 0 to 1e+18");
  // Seconds once passed the largest integer, and were printed as negative.
  EXPECT_EQ(RefusalWith("f32: 100000000000", "f32: 1e-300"),
            "m.textproto:7:1: peak_flops_f32: found 1e-300; wanted a number from 1000 to 1e+18");
  EXPECT_EQ(RefusalWith("links", "disk_bytes_per_second: 1e-300\nlinks"),
            "m.textproto:12:1: disk_bytes_per_second: found 1e-300; wanted a number from 1000 to 1e+15");
  EXPECT_EQ(RefusalWith("issue_seconds: 1e-06", "issue_seconds: -1"),
            "m.textproto:13:1: issue_seconds: found -1; wanted a number from 0 to 100000");
  EXPECT_EQ(RefusalWith("peak_flops_bf16: 200000000000\n", ""),
            "m.textproto: peak_flops_bf16: is missing; wanted a number above 0");
  EXPECT_EQ(RefusalWith("threads: 2", "threads: 0"), "m.textproto:6:1: threads: is missing; wanted a number above 0");
  EXPECT_EQ(RefusalWith("\"CPU\"", "\"TPU\""), "m.textproto:3:1: device: found \"TPU\"; wanted \"CPU\" or \"CUDA\"");
  EXPECT_EQ(RefusalWith("source: MEASURED ", ""),
            "m.textproto:4:1: origin: is missing; say whether the numbers are MEASURED, PUBLISHED, of a DATA_SHEET or "
            "ESTIMATED");
  EXPECT_EQ(RefusalWith("flops: 512", "flops: 1e9"),
            "m.textproto:11:77: works[0].seconds: found 1e-06 for 1e+09 FLOPs, more than 4 times the peak of a device");
  EXPECT_EQ(RefusalWith("seconds: 1e-06 count", "seconds: inf count"),
            "m.textproto:11:77: works[0].seconds: found inf; wanted a number from 0 to 100000");
  EXPECT_EQ(RefusalWith("flops_per_second: 90000000000", ""),
            "m.textproto:10:1: rates[0].bytes_per_second: is missing, and so is flops_per_second; wanted one of them");
  EXPECT_EQ(RefusalWith("links", "rates { kind: \"MatMul f32\" flops_per_second: 1e9 }\nlinks"),
            "m.textproto:12:9: rates[1].kind: \"MatMul f32\" stands there twice");
}

TEST(MachineProfile, WhatIsNoProfileIsRefused) {
  EXPECT_TRUE(RefusalOf("model { decoder {} }").starts_with("m.textproto:1:1: model: no such field"))
      << RefusalOf("model { decoder {} }");
  EXPECT_FALSE(RefusalOf(std::string("name: \"\0\"", 9)).empty());
  EXPECT_EQ(RefusalOf(std::string(9 << 20, '\n')), "m.textproto: more than 8 MiB, which no profile of a machine has");
}

TEST(MachineProfile, MergingKeepsWhatWasNotMeasuredAgain) {
  proto::MachineProfile profile = *ParseProfile(kSmallProfile, "m.textproto");
  proto::MachineProfile measured;
  measured.set_issue_seconds(2e-6);
  *measured.add_works() = profile.works(0);
  *measured.add_works() = profile.works(0);
  measured.mutable_works(0)->set_seconds(3e-6);
  measured.mutable_works(1)->set_ranks_on_host(2);
  MergeProfile(measured, &profile);
  ASSERT_EQ(profile.works_size(), 2);
  EXPECT_EQ(profile.works(0).seconds(), 3e-6);
  EXPECT_EQ(profile.works(1).ranks_on_host(), 2);
  EXPECT_EQ(profile.issue_seconds(), 2e-6);
  EXPECT_EQ(profile.rates_size(), 1);
  EXPECT_EQ(profile.name(), "here");
}

TEST(MachineProfile, TheCacheOfOneMachineIsNotThatOfAnother) {
  const std::string cache = absl::StrCat(::testing::TempDir(), "/profile_cache");
  const MachineKey key{.device = "CPU", .processor = "some CPU", .threads = 2};
  EXPECT_TRUE(absl::IsNotFound(CachedProfile("", key).status()));
  EXPECT_TRUE(absl::IsNotFound(CachedProfile(cache, key).status()));
  MachineKey other = key;
  other.processor = "another CPU";
  EXPECT_NE(CachedProfilePath(cache, key), CachedProfilePath(cache, other));
  for (const MachineKey& of : {key, other}) {
    const std::filesystem::path path = CachedProfilePath(cache, of);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << kSmallProfile;
  }
  EXPECT_TRUE(CachedProfile(cache, key).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CachedProfile(cache, other).status()));
}

TEST(MachineProfile, OfThisMachineIsFoundOrItsDamageIsTold) {
  const std::string caches = absl::StrCat(::testing::TempDir(), "/own_profile");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", caches.c_str(), 1), 0);
  EXPECT_EQ(ProfileOfThisMachine("a GPU").profile, nullptr);
  EXPECT_EQ(ProfileOfThisMachine("a GPU").remark, "");
  const MachineKey key = KeyOfThisHost();
  const std::filesystem::path path = CachedProfilePath(absl::StrCat(caches, "/shale"), key);
  std::filesystem::create_directories(path.parent_path());
  proto::MachineProfile profile = *ParseProfile(kSmallProfile, "m.textproto");
  profile.set_processor(key.processor);
  profile.set_threads(key.threads);
  std::ofstream(path) << PrintProfile(profile);
  ASSERT_NE(ProfileOfThisMachine("").profile, nullptr);
  EXPECT_EQ(ProfileOfThisMachine("").profile->name(), "here");
  EXPECT_EQ(ProfileOfThisMachine("").remark, "");
  std::ofstream(path) << "no profile";
  EXPECT_EQ(ProfileOfThisMachine("").profile, nullptr);
  EXPECT_NE(ProfileOfThisMachine("").remark, "");
}

// Where nothing was measured, a profile that comes with Shale counts if it is one of the same GPUs.
TEST(MachineProfile, OfTheSameClassIsTakenAndNamed) {
  const std::string caches = absl::StrCat(::testing::TempDir(), "/no_profile");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", caches.c_str(), 1), 0);
  const FoundProfile found = ProfileOfThisMachine("NVIDIA H200");
  ASSERT_NE(found.profile, nullptr);
  EXPECT_EQ(found.profile->name(), "h200x8");
  EXPECT_EQ(found.remark,
            "this machine was not measured (calibrate), so its seconds are those of h200x8, a profile of machines with "
            "NVIDIA H200");
  // A part of such a GPU is another one.
  EXPECT_EQ(ProfileOfThisMachine("NVIDIA H200 MIG 1g.18gb").profile, nullptr);
}

}  // namespace
}  // namespace shale
