#include "tests/engine/files/checkpoint/sample_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <random>

#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/io/file.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace shale {
namespace {

std::vector<float> RandomBits(int64_t elements, std::mt19937_64& random) {
  constexpr uint32_t kSpecial[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x00000001, 0x80000000,
                                   0x807fffff, 0x7f7fffff, 0x00007fff, 0x00008000, 0x3f808000, 0xffffffff};
  std::vector<float> values(elements);
  for (int64_t i = 0; i < elements; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    values[i] = std::bit_cast<float>(bits % 7 == 0 ? kSpecial[(bits >> 8) % std::size(kSpecial)] : bits);
  }
  return values;
}

}  // namespace

SampleState::SampleState(std::vector<SavedParameter> parameters, uint64_t seed) : parameters_(std::move(parameters)) {
  std::mt19937_64 random(seed);
  for (const SavedParameter& parameter : parameters_) {
    Parts parts;
    for (std::vector<float>* part : {&parts.value, &parts.m, &parts.v}) {
      *part = RandomBits(parameter.elements(), random);
    }
    parts.high.resize(parts.value.size());
    parts.low.resize(parts.value.size());
    parts_.push_back(std::move(parts));
    const auto parameter_index = static_cast<int>(parts_.size()) - 1;
    for (int64_t i = 0; i < parameter.elements(); ++i) {
      Set(SavedPart::kValue, parameter_index, i, parts_.back().value[i]);
    }
  }
}

const std::vector<float>& SampleState::Elements(SavedPart part, int parameter) const {
  const Parts& parts = parts_[parameter];
  return part == SavedPart::kValue ? parts.value : part == StatePart(0) ? parts.m : parts.v;
}

void SampleState::Set(SavedPart part, int parameter, int64_t element, float value) {
  Parts& parts = parts_[parameter];
  if (part == StatePart(0)) {
    parts.m[element] = value;
  } else if (part == StatePart(1)) {
    parts.v[element] = value;
  } else {
    const BFloat16 weight = RoundMaster(value);
    parts.value[element] = value;
    parts.high[element] = weight.bits;
    parts.low[element] = static_cast<uint16_t>(MasterLowBits(value, weight));
  }
}

float SampleState::AsRead(float value, SavedValues values) {
  const bool rounds = values == SavedValues::kBFloat16 || (values == SavedValues::kSplit && std::isnan(value));
  return rounds ? ToFloat(RoundMaster(value)) : value;
}

const std::byte* SampleState::Data(SavedPart part, int parameter, int64_t element) const {
  const Parts& parts = parts_[parameter];
  const auto at = [element](const auto& values) { return reinterpret_cast<const std::byte*>(values.data() + element); };
  if (part == SavedPart::kValue) return at(parts.value);
  if (part == SavedPart::kHigh) return at(parts.high);
  if (part == SavedPart::kLow) return at(parts.low);
  if (part == StatePart(0)) return at(parts.m);
  if (part == StatePart(1)) return at(parts.v);
  return nullptr;
}

Manifest SampleState::ManifestOf(const SampleForm& form) const {
  Manifest manifest = {
      .step = form.step,
      .tokens = form.step * 96,
      .samples = form.step * 3,
      .update_count = form.step - form.step / 4,
      .seed = 7,
      .job = "model {\n  decoder {\n    width: 32\n  }\n}\nsharding {\n  ranks: 2\n}\n",
      .data = {.samples_per_epoch = 5, .sequence_length = 32, .shuffled = true, .seed = 9, .tokenizer = "bytes"},
      .strategy = "FULL_SHARD",
      .accumulation = "LAYERED",
      .values = form.values,
      .frozen_values = form.frozen_values,
      .parameters = parameters_};
  if (form.frozen >= 0) manifest.parameters[form.frozen].frozen = true;
  if (form.evaluation_loss) {
    manifest.evaluations = {.data = "texts",
                            .last_step = form.step,
                            .last_loss = form.evaluation_loss,
                            .best_step = form.step,
                            .best_loss = form.evaluation_loss};
  }
  return manifest;
}

std::vector<SavedFile> SampleState::WriteShards(const std::string& folder, const SampleForm& form) const {
  const StagingBuffer staging(kWriteStagingBytes);
  const Manifest manifest = ManifestOf(form);
  std::vector<SavedFile> files;
  for (int64_t rank = 0; rank < form.ranks; ++rank) {
    std::vector<PieceSource> pieces;
    const auto add = [&](SavedPart part, int parameter, int64_t begin, int64_t end) {
      if (begin < end) {
        pieces.push_back(
            {parameter, part, {begin, end}, BytesPerElement(part, AdamWStates()), Data(part, parameter, begin)});
      }
    };
    for (const PartSpec& spec : manifest.parts()) {
      const SavedPart part = spec.part;
      for (int i = 0; i < std::ssize(parameters_); ++i) {
        if (!manifest.Has(part, manifest.parameters[i])) continue;
        const int64_t elements = parameters_[i].elements();
        const bool last_of_three = form.ranks == 3 && i + 1 == std::ssize(parameters_);
        const auto cut = [&](int64_t r) {
          return last_of_three && r == 1 ? elements * 2 / 3 : elements * r / form.ranks;
        };
        const int64_t begin = cut(rank), end = cut(rank + 1), third = begin + (end - begin) / 3;
        // Adds the pieces out of order on purpose.
        add(part, i, third, end);
        add(part, i, begin, third);
      }
    }
    absl::StatusOr<SavedFile> file =
        WriteShard(PosixFileSystem(), folder, rank, form.ranks, pieces, CopyHostMemory, staging.span());
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) files.push_back(*std::move(file));
  }
  return files;
}

Manifest SampleState::WriteCheckpoint(const std::string& folder, const SampleForm& form) const {
  std::filesystem::create_directories(folder);
  Manifest manifest = ManifestOf(form);
  manifest.ranks = form.ranks;
  manifest.files = WriteShards(folder, form);
  EXPECT_TRUE(WriteFileDurably(JoinPath(folder, kManifestName), SerializeManifest(manifest)).ok());
  return manifest;
}

std::string SampleState::Save(CheckpointStore& store, const SampleForm& form) const {
  const auto write = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    return WriteShards(temporary, form);
  };
  const absl::StatusOr<std::string> path = store.Save(ManifestOf(form), write);
  EXPECT_TRUE(path.ok()) << path.status();
  return path.value_or("");
}

SampleState SmallSample(uint64_t seed) {
  return SampleState(
      {{"embedding", {31, 9}}, {"block.weight", {7, 11, 13}}, {"block.bias", {1}}, {"scale", {}}, {"head", {2003}}},
      seed);
}

SampleState LargeSample(uint64_t seed) { return SampleState({{"a", {701, 1001}}, {"b", {3}}, {"c", {99'991}}}, seed); }

void FlipBit(const std::string& path, int64_t bit) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0) << path;
  uint8_t byte = 0;
  ASSERT_EQ(pread(fd, &byte, 1, bit / 8), 1) << path << " has no bit " << bit;
  byte ^= static_cast<uint8_t>(1 << (bit % 8));
  ASSERT_EQ(pwrite(fd, &byte, 1, bit / 8), 1);
  close(fd);
}

std::string ShardPath(const std::string& folder, int64_t rank, int64_t ranks) {
  return JoinPath(folder, ShardFileName(rank, ranks));
}

}  // namespace shale
