// Tests that written checkpoints are read back, and that checkpoints whose files contradict each other are refused.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/checksums.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.pb.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ReaderTest : public ::testing::TestWithParam<SampleForm> {
 protected:
  std::string folder() const { return temp_.Path("c"); }
  std::string Shard(int64_t rank) const { return ShardPath(folder(), rank, GetParam().ranks); }
  std::string ManifestPath() const { return JoinPath(folder(), kManifestName); }
  absl::Span<char> staging() { return absl::MakeSpan(staging_); }

  // Expects that opening fails with `code` and a message that names the folder. Returns the message.
  std::string Refusal(absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const absl::Status status = CheckpointReader::Open(folder()).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder()));
    return std::string(status.message());
  }

  void WriteManifest(const Manifest& manifest) const { temp_.Write("c/MANIFEST", SerializeManifest(manifest)); }

  // Lets `lie` change the head of a shard. Rewrites the shard, and the manifest with the new checksum.
  void RewriteHead(Manifest manifest, int64_t rank, const std::function<void(proto::ShardHeader&)>& lie) const {
    std::string bytes = ReadFile(Shard(rank), 1 << 30).value();
    proto::ShardHeader message;
    ASSERT_TRUE(message.ParseFromString(std::string(Unframe("SHALESHD", 1, bytes, 1 << 20).value())));
    lie(message);
    std::string head = Frame("SHALESHD", 1, message.SerializeAsString());
    ASSERT_LE(head.size(), kShardAlignment);
    head.resize(kShardAlignment);
    bytes.replace(0, kShardAlignment, head);
    temp_.Write(absl::StrCat("c/", ShardFileName(rank, manifest.ranks)), bytes);
    manifest.files[rank].chunk_crcs[0] = Crc32c(absl::string_view(bytes).substr(0, kCheckpointChunkBytes));
    WriteManifest(manifest);
  }

  TempFolder temp_;
  SampleState state_ = SmallSample();
  std::vector<char> staging_ = std::vector<char>(kCheckpointChunkBytes);
};

INSTANTIATE_TEST_SUITE_P(Forms, ReaderTest,
                         ::testing::Values(SampleForm{.ranks = 1, .values = SavedValues::kFloat32},
                                           SampleForm{.ranks = 1, .values = SavedValues::kSplit},
                                           SampleForm{.ranks = 3, .values = SavedValues::kFloat32},
                                           SampleForm{.ranks = 3, .values = SavedValues::kSplit}),
                         [](const auto& info) {
                           return absl::StrCat(ToString(info.param.values), "On", info.param.ranks);
                         });

TEST_P(ReaderTest, WhatIsWrittenIsRead) {
  const Manifest manifest = state_.WriteCheckpoint(folder(), GetParam());
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(folder());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest(), manifest);
  EXPECT_EQ(ReadManifest(folder()).value(), manifest);
  EXPECT_EQ(reader->folder(), folder());
  EXPECT_EQ(reader->FindParameter("scale"), 3);
  EXPECT_EQ(reader->FindParameter("scales"), -1);
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < GetParam().ranks; ++rank) bytes += fs::file_size(Shard(rank));
  EXPECT_EQ(reader->size_bytes(), bytes);
  EXPECT_TRUE(reader->Verify(staging()).ok());
}

TEST_P(ReaderTest, StreamGivesEachWantedElementOnce) {
  state_.WriteCheckpoint(folder(), GetParam());
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(folder());
  ASSERT_TRUE(reader.ok());
  // Wants these elements of the second moments of the large parameter, and nothing else.
  const ElementRange range = {333, 808};
  std::vector<int> seen(state_.parameters()[1].elements());
  const auto wanted = [&](const ShardPiece& piece) {
    return piece.parameter == 1 && piece.part == StatePart(1) ? range : ElementRange{};
  };
  const auto sink = [&](const ShardPiece& piece, const char* bytes) {
    const std::vector<float>& v = state_.Elements(StatePart(1), 1);
    EXPECT_EQ(std::memcmp(bytes, v.data() + piece.range.begin, piece.size_bytes()), 0);
    for (int64_t i = piece.range.begin; i < piece.range.end; ++i) ++seen[i];
    return absl::OkStatus();
  };
  ASSERT_TRUE(reader->Stream(wanted, sink, staging()).ok());
  for (int64_t i = 0; i < std::ssize(seen); ++i) ASSERT_EQ(seen[i], i >= range.begin && i < range.end) << i;
  // An error of the sink ends the stream.
  const auto full = [](const ShardPiece&, const char*) { return absl::ResourceExhaustedError("full"); };
  EXPECT_EQ(reader->Stream(wanted, full, staging()), absl::ResourceExhaustedError("full"));
}

TEST_P(ReaderTest, WhatIsNotThereIsNamed) {
  EXPECT_THAT(Refusal(absl::StatusCode::kNotFound), HasSubstr(ManifestPath()));
  fs::create_directory(folder());
  EXPECT_THAT(Refusal(absl::StatusCode::kNotFound), HasSubstr(ManifestPath()));
  for (int64_t rank = 0; rank < GetParam().ranks; ++rank) {
    fs::remove_all(folder());
    state_.WriteCheckpoint(folder(), GetParam());
    fs::remove(Shard(rank));
    EXPECT_THAT(Refusal(absl::StatusCode::kNotFound), HasSubstr(Shard(rank)));
  }
  // A file stands in place of the folder.
  fs::remove_all(folder());
  temp_.Write("c", "text");
  EXPECT_FALSE(CheckpointReader::Open(folder()).ok());
}

TEST_P(ReaderTest, AFileThatDoesNotBelongThereIsNamed) {
  state_.WriteCheckpoint(folder(), GetParam());
  for (const char* name : {"extra", ".hidden", "rank-00007-of-00008.shard", "MANIFEST~"}) {
    temp_.Write(absl::StrCat("c/", name), "");
    EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat(folder(), "/", name, " is not in the manifest"))) << name;
    fs::remove(JoinPath(folder(), name));
  }
  fs::create_directory(JoinPath(folder(), "folder"));
  EXPECT_THAT(Refusal(), HasSubstr("/folder is not in the manifest"));
}

TEST_P(ReaderTest, LinksAndFoldersInPlaceOfFilesAreRefused) {
  state_.WriteCheckpoint(folder(), GetParam());
  for (const std::string& path : {ManifestPath(), Shard(0), Shard(GetParam().ranks - 1)}) {
    fs::rename(path, temp_.Path("moved"));
    fs::create_symlink(temp_.Path("moved"), path);
    EXPECT_EQ(Refusal(), absl::StrCat(path, " is not a regular file"));
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_EQ(Refusal(), absl::StrCat(path, " is not a regular file"));
    fs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(Refusal(), absl::StrCat(path, " is not a regular file"));
    fs::remove(path);
    fs::rename(temp_.Path("moved"), path);
    EXPECT_TRUE(CheckpointReader::Open(folder()).ok());
  }
}

TEST_P(ReaderTest, SwappedFilesAreNoticed) {
  if (GetParam().ranks == 1) return;
  Manifest manifest = state_.WriteCheckpoint(folder(), GetParam());
  fs::rename(Shard(0), temp_.Path("t"));
  fs::rename(Shard(2), Shard(0));
  fs::rename(temp_.Path("t"), Shard(2));
  // If the sizes differ, the message names them first.
  EXPECT_THAT(Refusal(),
              MatchesRegex(".*rank-00000-of-00003.shard (has .* bytes; the manifest says|is the shard of rank 2).*"));
  // Changing the manifest to match the swapped files does not help.
  std::swap(manifest.files[0].size_bytes, manifest.files[2].size_bytes);
  std::swap(manifest.files[0].chunk_crcs, manifest.files[2].chunk_crcs);
  WriteManifest(manifest);
  EXPECT_EQ(Refusal(), absl::StrCat(Shard(0), " is the shard of rank 2: files were swapped"));
}

TEST_P(ReaderTest, TheShardOfAnotherCheckpointIsFoundOnReading) {
  state_.WriteCheckpoint(folder(), GetParam());
  SmallSample(2).WriteCheckpoint(temp_.Path("other"), GetParam());
  fs::rename(ShardPath(temp_.Path("other"), 0, GetParam().ranks), Shard(0));
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(folder());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const absl::Status status = reader->Verify(staging());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(Shard(0), " is damaged between bytes 0 and ")));
}

TEST_P(ReaderTest, AManifestThatClaimsOtherParametersIsRefused) {
  const Manifest manifest = state_.WriteCheckpoint(folder(), GetParam());
  const auto refusal_of = [&](const std::function<void(Manifest&)>& lie) {
    Manifest m = manifest;
    lie(m);
    WriteManifest(m);
    return Refusal();
  };
  EXPECT_THAT(refusal_of([](Manifest& m) { m.parameters.pop_back(); }), HasSubstr("which the manifest does not have"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.parameters[4].shape = {2002}; }),
              HasSubstr("which the manifest does not have"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.parameters[4].shape = {2004}; }),
              HasSubstr("m of head lacks elements 2003 to 2004"));
  EXPECT_THAT(refusal_of([](Manifest& m) {
                m.parameters.push_back({"more", {int64_t{1} << 59}});
              }),
              HasSubstr("m of more lacks elements 0 to 576460752303423488"));
  EXPECT_THAT(refusal_of([](Manifest& m) { std::swap(m.parameters[0], m.parameters[1]); }), HasSubstr(folder()));
  EXPECT_THAT(refusal_of([](Manifest& m) {
                m.values = m.values == SavedValues::kSplit ? SavedValues::kFloat32 : SavedValues::kSplit;
              }),
              HasSubstr(", and the manifest says "));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.parameters[1].frozen = true; }),
              HasSubstr("which the manifest does not have"));
}

// The pieces of a frozen parameter must have the form that the manifest says.
TEST_P(ReaderTest, FrozenValuesOfAnotherFormAreRefused) {
  SampleForm form = GetParam();
  form.frozen = 4;
  form.frozen_values = SavedValues::kBFloat16;
  Manifest m = state_.WriteCheckpoint(folder(), form);
  ASSERT_TRUE(CheckpointReader::Open(folder()).ok());
  m.frozen_values = SavedValues::kFloat32;
  WriteManifest(m);
  EXPECT_THAT(Refusal(), HasSubstr(" has high bits, and the manifest says FP32"));
}

TEST_P(ReaderTest, HeadsThatClaimOtherElementsAreRefused) {
  const Manifest manifest = state_.WriteCheckpoint(folder(), GetParam());
  const int64_t rank = GetParam().ranks - 1;
  const std::string intact = ReadFile(Shard(rank), 1 << 30).value();
  const auto refusal_of = [&](const std::function<void(proto::ShardHeader&)>& lie) {
    RewriteHead(manifest, rank, lie);
    const std::string refusal = Refusal();
    temp_.Write(absl::StrCat("c/", ShardFileName(rank, manifest.ranks)), intact);
    return refusal;
  };
  RewriteHead(manifest, rank, [](proto::ShardHeader&) {});
  ASSERT_TRUE(CheckpointReader::Open(folder()).ok());
  using M = proto::ShardHeader;
  EXPECT_THAT(refusal_of([](M& m) { m.set_rank(7); }), HasSubstr("is the shard of rank 7"));
  EXPECT_THAT(refusal_of([](M& m) { m.set_rank(-1); }), HasSubstr("is the shard of rank -1"));
  EXPECT_THAT(refusal_of([](M& m) { m.mutable_pieces(0)->set_parameter(5); }),
              HasSubstr("which the manifest does not have"));
  EXPECT_THAT(refusal_of([](M& m) { m.mutable_pieces(0)->set_parameter(0x7fffffff); }),
              HasSubstr("which the manifest does not have"));
  // The pieces have the same number of elements at another place, so that some are missing and others are there twice.
  EXPECT_THAT(refusal_of([](M& m) {
                m.mutable_pieces(0)->set_begin(m.pieces(0).begin() - 1);
                m.mutable_pieces(0)->set_end(m.pieces(0).end() - 1);
              }),
              HasSubstr("m of embedding "));
  EXPECT_THAT(refusal_of([](M& m) {
                m.mutable_pieces(0)->set_begin(m.pieces(0).begin() + (int64_t{1} << 60));
                m.mutable_pieces(0)->set_end(m.pieces(0).end() + (int64_t{1} << 60));
              }),
              HasSubstr("which the manifest does not have"));
  // A moment claims to be the other moment.
  EXPECT_THAT(refusal_of([](M& m) { m.mutable_pieces(0)->set_part(static_cast<int>(StatePart(1))); }),
              HasSubstr(" of embedding "));
  EXPECT_THAT(refusal_of([](M& m) { m.mutable_pieces(m.pieces_size() - 1)->set_part(static_cast<int>(StatePart(0))); }),
              HasSubstr(folder()));
  EXPECT_THAT(refusal_of([](M& m) { m.clear_pieces(); }), HasSubstr("its header accounts for 4096 bytes"));
}

TEST_P(ReaderTest, AnotherVersionIsToldWithBoth) {
  state_.WriteCheckpoint(folder(), GetParam());
  const std::string manifest = ReadFile(ManifestPath(), 1 << 20).value();
  temp_.Write("c/MANIFEST", Frame("SHALEMAN", 2, absl::string_view(manifest).substr(kFrameHeadBytes)));
  EXPECT_EQ(Refusal(absl::StatusCode::kUnimplemented),
            absl::StrCat(ManifestPath(), ": it is of format version 2; this program reads version 1"));
  temp_.Write("c/MANIFEST", manifest);
  std::string shard = ReadFile(Shard(0), 1 << 30).value();
  const std::string message(Unframe("SHALESHD", 1, shard, 1 << 20).value());
  const std::string head = Frame("SHALESHD", 9, message);
  shard.replace(0, head.size(), head);
  temp_.Write(absl::StrCat("c/", ShardFileName(0, GetParam().ranks)), shard);
  EXPECT_EQ(Refusal(absl::StatusCode::kUnimplemented),
            absl::StrCat(Shard(0), ": it is of format version 9; this program reads version 1"));
}

TEST_P(ReaderTest, AManifestTooLargeToBeOneIsNotRead) {
  state_.WriteCheckpoint(folder(), GetParam());
  // A sparse file takes no space on the disk.
  fs::resize_file(ManifestPath(), int64_t{1} << 40);
  EXPECT_THAT(Refusal(), HasSubstr("1099511627776 bytes; at most 268435480 are read"));
}

TEST_P(ReaderTest, VerifyNamesAllThatIsWrong) {
  state_.WriteCheckpoint(folder(), GetParam());
  const auto damages = [&] {
    std::vector<std::string> all;
    const absl::StatusOr<Verified> verified =
        VerifyCheckpoint(folder(), staging(), [&](const std::string& damage) { all.push_back(damage); });
    EXPECT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(verified.ok() ? verified->damages : -1, std::ssize(all));
    return all;
  };
  EXPECT_TRUE(damages().empty());
  // Open stops at the first damaged head; VerifyCheckpoint goes on.
  for (int64_t rank = 0; rank < GetParam().ranks; ++rank) FlipBit(Shard(rank), 30 * 8);
  Refusal();
  EXPECT_EQ(damages().size(), GetParam().ranks);
  EXPECT_THAT(damages().back(),
              HasSubstr(absl::StrCat(Shard(GetParam().ranks - 1), " is damaged between bytes 0 and ")));
  fs::remove(Shard(0));
  EXPECT_EQ(damages().size(), GetParam().ranks);
  EXPECT_THAT(damages()[0], HasSubstr(Shard(0)));
  // A file that does not belong to the checkpoint is found too.
  state_.WriteCheckpoint(temp_.Path("again"), GetParam());
  fs::rename(folder(), temp_.Path("gone"));
  fs::rename(temp_.Path("again"), folder());
  temp_.Write("c/extra", "");
  ASSERT_EQ(damages().size(), 1);
  EXPECT_THAT(damages()[0], HasSubstr("/extra is not in the manifest"));
}

}  // namespace
}  // namespace shale
