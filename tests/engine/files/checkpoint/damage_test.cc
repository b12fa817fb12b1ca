// Tests that no damage goes unnoticed: single flipped bits anywhere, and truncation at every place where it could hide.
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/integers.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DamageTest : public ::testing::TestWithParam<SampleForm> {
 protected:
  std::string folder() const { return temp_.Path("c"); }
  std::string Shard(int64_t rank) const { return ShardPath(folder(), rank, GetParam().ranks); }
  absl::Span<char> staging() { return absl::MakeSpan(staging_); }

  // Flips each of the first `bytes` of a file, bit by bit, and expects that Open refuses the checkpoint and names the
  // file.
  void ExpectEveryFlipRefused(const std::string& path, int64_t bytes) {
    for (int64_t bit = 0; bit < 8 * bytes; ++bit) {
      FlipBit(path, bit);
      const absl::Status status = CheckpointReader::Open(folder()).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path << " bit " << bit << ": " << status;
      ASSERT_TRUE(absl::StartsWith(status.message(), path)) << status;
      ASSERT_GT(status.message().size(), path.size() + 10) << status;
      FlipBit(path, bit);
    }
    ASSERT_TRUE(CheckpointReader::Open(folder()).ok());
  }

  // Returns a random bit behind the head of a shard, as the rank and the index of the bit in its file.
  std::pair<int64_t, int64_t> PayloadBit(const CheckpointReader& reader) {
    while (true) {
      const auto rank = static_cast<int64_t>(random_() % reader.shards().size());
      const ShardHeader& shard = reader.shards()[rank];
      if (shard.pieces.empty()) continue;
      const int64_t begin = shard.pieces[0].offset_bytes;
      return {rank, 8 * begin + static_cast<int64_t>(random_() % (8 * (shard.size_bytes - begin)))};
    }
  }

  std::string Place(const CheckpointReader& reader, int64_t rank, int64_t bit) const {
    const int64_t begin = RoundDown(bit / 8, kCheckpointChunkBytes);
    const int64_t end = std::min(begin + kCheckpointChunkBytes, reader.shards()[rank].size_bytes);
    return absl::StrCat(Shard(rank), " is damaged between bytes ", begin, " and ", end, ": ");
  }

  // Flips `flips` random bits of the payload, each alone. Expects that reading the chunk of the bit finds it. For every
  // `thorough`-th bit, expects that reading everything finds it too, in that chunk only.
  void ExpectFlipsFound(int flips, int thorough) {
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(folder());
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (int i = 0; i < flips; ++i) {
      const auto [rank, bit] = PayloadBit(*reader);
      const std::string place = Place(*reader, rank, bit);
      FlipBit(Shard(rank), bit);
      const int64_t chunk = bit / 8 / kCheckpointChunkBytes;
      const absl::Status status = reader->ReadChunk(rank, chunk, staging()).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss);
      ASSERT_TRUE(absl::StartsWith(status.message(), place)) << status;
      if (i % thorough == 0) ExpectFoundByStream(*reader, rank, chunk, place);
      FlipBit(Shard(rank), bit);
    }
    EXPECT_TRUE(reader->Verify(staging()).ok());
  }

  void ExpectFoundByStream(const CheckpointReader& reader, int64_t rank, int64_t chunk, const std::string& place) {
    ASSERT_TRUE(CheckpointReader::Open(folder()).ok());  // The heads are undamaged.
    const absl::Status verified = reader.Verify(staging());
    ASSERT_EQ(verified.code(), absl::StatusCode::kDataLoss);
    ASSERT_TRUE(absl::StartsWith(verified.message(), place)) << verified;
    ASSERT_EQ(verified.message().find('\n'), absl::string_view::npos) << verified;
    const auto all = [](const ShardPiece& piece) { return piece.range; };
    const auto sink = [&](const ShardPiece& piece, const char*) { return absl::OkStatus(); };
    ASSERT_EQ(reader.Stream(all, sink, staging()).code(), absl::StatusCode::kDataLoss);
    // A reader that wants nothing from the damaged file gets no error.
    const ShardHeader& damaged = reader.shards()[rank];
    const auto elsewhere = [&](const ShardPiece& piece) {
      const bool here = std::find(damaged.pieces.begin(), damaged.pieces.end(), piece) != damaged.pieces.end();
      return here ? ElementRange{} : piece.range;
    };
    ASSERT_TRUE(reader.Stream(elsewhere, sink, staging()).ok());
  }

  TempFolder temp_;
  std::mt19937_64 random_{17};
  std::vector<char> staging_ = std::vector<char>(kCheckpointChunkBytes);
};

INSTANTIATE_TEST_SUITE_P(Forms, DamageTest,
                         ::testing::Values(SampleForm{.ranks = 1, .values = SavedValues::kSplit},
                                           SampleForm{.ranks = 3, .values = SavedValues::kFloat32}),
                         [](const auto& info) {
                           return absl::StrCat(ToString(info.param.values), "On", info.param.ranks);
                         });

TEST_P(DamageTest, EveryBitOfTheManifestIsGuarded) {
  SmallSample().WriteCheckpoint(folder(), GetParam());
  const std::string path = JoinPath(folder(), kManifestName);
  ExpectEveryFlipRefused(path, fs::file_size(path));
}

TEST_P(DamageTest, EveryBitOfTheHeadsIsGuarded) {
  SmallSample().WriteCheckpoint(folder(), GetParam());
  for (int64_t rank = 0; rank < GetParam().ranks; ++rank) ExpectEveryFlipRefused(Shard(rank), kShardAlignment);
}

TEST_P(DamageTest, FlippedBitsOfThePayloadAreFoundInSmallFiles) {
  SmallSample().WriteCheckpoint(folder(), GetParam());
  ExpectFlipsFound(4900, 50);
}

TEST_P(DamageTest, FlippedBitsOfThePayloadAreFoundInFilesOfManyChunks) {
  LargeSample().WriteCheckpoint(folder(), GetParam());
  ExpectFlipsFound(100, 20);
}

TEST_P(DamageTest, EveryTruncationAtAChunkAndBesideItIsRefused) {
  LargeSample().WriteCheckpoint(folder(), GetParam());
  for (int64_t rank = 0; rank < GetParam().ranks; ++rank) {
    const std::string path = Shard(rank);
    const auto size = static_cast<int64_t>(fs::file_size(path));
    fs::copy_file(path, temp_.Path("whole"), fs::copy_options::overwrite_existing);
    std::vector<int64_t> sizes = {0, 1, kShardAlignment - 1, kShardAlignment, kShardAlignment + 1, size - 1, size + 1};
    for (int64_t border = kCheckpointChunkBytes; border < size; border += kCheckpointChunkBytes) {
      for (int64_t beside : {border - 1, border, border + 1}) sizes.push_back(beside);
    }
    for (int64_t wrong : sizes) {
      fs::resize_file(path, wrong);
      const std::string expected = absl::StrCat(path, " has ", wrong, " bytes; the manifest says ", size);
      EXPECT_EQ(CheckpointReader::Open(folder()).status(), absl::InvalidArgumentError(expected));
      // VerifyCheckpoint reports the wrong size once and reads on: the bytes that are there are right.
      std::vector<std::string> damages;
      const auto verified = VerifyCheckpoint(folder(), staging(), [&](const std::string& d) { damages.push_back(d); });
      ASSERT_TRUE(verified.ok()) << verified.status();
      EXPECT_EQ(damages, std::vector<std::string>{expected});
      fs::copy_file(temp_.Path("whole"), path, fs::copy_options::overwrite_existing);
    }
  }
  EXPECT_TRUE(CheckpointReader::Open(folder()).ok());
}

TEST_P(DamageTest, EveryTruncationOfTheManifestIsRefused) {
  SmallSample().WriteCheckpoint(folder(), GetParam());
  const std::string path = JoinPath(folder(), kManifestName);
  const std::string bytes = ReadFile(path, 1 << 20).value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    temp_.Write("c/MANIFEST", absl::string_view(bytes).substr(0, size));
    const absl::Status status = CheckpointReader::Open(folder()).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size << ": " << status;
    ASSERT_TRUE(absl::StartsWith(status.message(), path)) << status;
  }
  temp_.Write("c/MANIFEST", bytes + "\n");
  EXPECT_THAT(std::string(CheckpointReader::Open(folder()).status().message()), HasSubstr("1 bytes follow its end"));
}

TEST_P(DamageTest, AFileThatShrinksWhileItIsInUseIsRefused) {
  LargeSample().WriteCheckpoint(folder(), GetParam());
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(folder());
  ASSERT_TRUE(reader.ok());
  const int64_t last = GetParam().ranks - 1;
  fs::resize_file(Shard(last), fs::file_size(Shard(last)) - 1);
  const auto all = [](const ShardPiece& piece) { return piece.range; };
  const auto sink = [](const ShardPiece&, const char*) { return absl::OkStatus(); };
  for (const absl::Status& status : {reader->Stream(all, sink, staging()),
                                     reader->ReadChunk(last, 0, staging()).status(), reader->Verify(staging())}) {
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(absl::StartsWith(status.message(), Shard(last))) << status;
  }
  fs::remove(Shard(last));
  EXPECT_EQ(reader->Stream(all, sink, staging()).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace shale
