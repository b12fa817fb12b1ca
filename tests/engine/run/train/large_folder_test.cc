// Reads large weights from a Hugging Face folder, saves a checkpoint and exports it again, while the process grows by
// what the plan says and by little else.
//
//   large_folder_test             one layer as wide as those of Llama 2 7B, 236 M parameters, 2.8 GB of checkpoint;
//                                 then two layers of a GPT-2, whose matrices lie transposed, 117 M parameters
//   large_folder_test --layers=4  4 times as many layers: memory and disk must each have 16 bytes for every parameter
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "tests/sanitizers.h"

namespace shale {

int64_t g_layers = 1;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Leaves room for code that runs for the first time, names and headers, and the allocator's slack.
constexpr int64_t kSlack = 24 * kMiB;

// Returns a field of /proc/self/status in bytes: "VmHWM", the largest resident set since the last reset, or "VmRSS",
// the resident set now.
int64_t Status(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size() + 1, field + ":") == 0) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return -1;
}

// Resets "VmHWM". Returns the resident set now, from which growth is measured.
int64_t ResetPeak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return Status("VmRSS");
}

// Returns a value that bf16 holds exactly and that depends on the name and the element.
float ValueOf(uint64_t name_hash, int64_t element) {
  uint64_t x = (name_hash ^ static_cast<uint64_t>(element)) * 0x9e3779b97f4a7c15;
  x ^= x >> 29;
  return static_cast<float>(static_cast<int64_t>(x % 255) - 127) / 4096;
}

void Fill(absl::string_view name, int64_t begin, absl::Span<float> values) {
  const uint64_t hash = std::hash<std::string>()(std::string(name));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(hash, begin + static_cast<int64_t>(i));
}

void RemoveTree(const std::string& path) {
  // The path comes from mkdtemp, so that it is safe in a command.
  const std::string command = absl::StrCat("rm -rf '", path, "'");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

DecoderConfig Llama() {
  DecoderConfig config;
  config.vocabulary = 4096;
  config.width = 4096;
  config.layers = g_layers;
  config.heads = config.kv_heads = 32;
  config.head_width = 128;
  config.hidden = 11008;
  config.max_positions = 4096;
  return config;
}

DecoderConfig Gpt2() {
  DecoderConfig config = Llama();
  config.norm = NormKind::kLayerNorm;
  config.position = PositionKind::kLearned;
  config.activation = Activation::kGeluTanh;
  config.qkv_bias = config.linear_bias = config.tied_head = true;
  config.width = 2048;
  config.heads = config.kv_heads = 16;
  config.hidden = 4 * config.width;
  config.layers = 2 * g_layers;
  return config;
}

// Where the files of a test lie.
struct Paths {
  explicit Paths(const std::string& root)
      : in(JoinPath(root, "in")),
        out(JoinPath(root, "out")),
        tokens(JoinPath(root, "tokens.bin")),
        checkpoints(JoinPath(root, "checkpoints")) {}
  std::string in, out, tokens, checkpoints;
};

HfExportOptions ExportOptions() { return {.dtype = DType::kBFloat16, .max_file_bytes = 300 * kMiB}; }

// Writes a folder of the model with the values of Fill, and tokens.
void WriteInputs(const DecoderConfig& config, const Paths& paths) {
  const auto read = [](absl::string_view name, int64_t begin, absl::Span<float> values) {
    Fill(name, begin, values);
    return absl::OkStatus();
  };
  const absl::Status made = ExportHf(config, ExportOptions(), read, paths.in);
  ASSERT_TRUE(made.ok()) << made;
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 1000;
  const absl::string_view bytes(reinterpret_cast<char*>(header.data()), 1024);
  ASSERT_TRUE(WriteFileDurably(paths.tokens, absl::StrCat(bytes, std::string(2000, '\1'))).ok());
}

// Expects that a checkpoint has the values of Fill, of which it compares a stretch of each parameter.
void ExpectFilled(const std::string& path, const std::vector<Parameter>& parameters) {
  std::vector<float> some(10'000), expected(some.size());
  absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  CheckpointValues values(*checkpoint);
  for (const Parameter& parameter : parameters) {
    const int64_t count = std::min<int64_t>(parameter.elements(), 10'000);
    const int64_t begin = (parameter.elements() - count) / 3;
    ASSERT_TRUE(values.Read(parameter.name, begin, absl::MakeSpan(some.data(), count)).ok());
    Fill(parameter.name, begin, absl::MakeSpan(expected.data(), count));
    EXPECT_EQ(std::memcmp(some.data(), expected.data(), count * sizeof(float)), 0) << parameter.name;
  }
}

// Reads the weights in and saves a checkpoint, and expects that both stay within the plan's bytes. Adds the number of
// parameters to `parameters`.
void ReadInAndSave(const Paths& paths, int64_t* parameters) {
  absl::StatusOr<Job> job = ParseJobText(
      absl::StrCat("model { hf_folder: \"", paths.in, "\" } data { path: \"", paths.tokens, "\" } ",
                   "batch { global_batch: 2 sequence_length: 16 } sharding { ranks: 2 } lr_schedule { steps: 1 } ",
                   "runtime { threads_per_rank: 1 }"),
      "job");
  ASSERT_TRUE(job.ok()) << job.status();
  const int64_t before = ResetPeak();
  auto trainer = Trainer::Create(*job, {.backend = CreateBackend(*job)->get(), .checkpoint_folder = paths.checkpoints});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  for (const Parameter& parameter : (*trainer)->state().parameters()) *parameters += parameter.elements();
  // Only the weights have been touched so far, with 4 bytes per parameter in the shards of all ranks. Each rank reads
  // through its staging buffer, and reads the folder through another one.
  const int64_t grown = Status("VmHWM") - before;
  EXPECT_LE(grown, 4 * *parameters + 2 * (kReadStagingBytes + kHfReadStagingBytes) + kSlack) << "reading in";
  EXPECT_GE(grown, 4 * *parameters) << "the measurement is of no use";
  // The plan promised nothing but the arenas. State and step stay within them.
  EXPECT_GE(2 * (*trainer)->plan().arena_bytes, 16 * *parameters);

  const int64_t at_rest = ResetPeak();
  const absl::StatusOr<std::string> saved = (*trainer)->SaveCheckpoint();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_LE(Status("VmHWM") - at_rest, kWriteStagingBytes + kSlack) << "saving";
  ExpectFilled(*saved, (*trainer)->state().parameters());
}

// Exports the checkpoint, and expects that this takes little memory.
void ExportCheckpoint(const DecoderConfig& config, const Paths& paths) {
  const int64_t before = ResetPeak();
  const auto use = [&](const CheckpointReader& checkpoint) {
    CheckpointValues values(checkpoint);
    return ExportHf(
        config, ExportOptions(),
        [&](absl::string_view name, int64_t begin, absl::Span<float> part) { return values.Read(name, begin, part); },
        paths.out);
  };
  const auto newest = UseNewestCheckpoint(paths.checkpoints, use);
  ASSERT_TRUE(newest.ok()) << newest.status();
  ASSERT_FALSE(newest->path.empty());
  // The export holds four chunks of the checkpoint and what the writer keeps.
  EXPECT_LE(Status("VmHWM") - before, 4 * kCheckpointChunkBytes + 5 * kMiB + kSlack) << "exporting";
}

void ExpectSameFiles(const std::string& folder, const std::string& other) {
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder), others = ListFolder(other);
  ASSERT_TRUE(names.ok() && others.ok());
  EXPECT_EQ(*names, *others);
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, ".safetensors")) continue;
    const absl::StatusOr<InputFile> a = InputFile::Open(JoinPath(folder, name)),
                                    b = InputFile::Open(JoinPath(other, name));
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_EQ(a->size(), b->size());
    std::vector<char> left(4 * kMiB), right(left.size());
    for (int64_t at = 0; at < a->size(); at += std::ssize(left)) {
      const int64_t count = std::min<int64_t>(std::ssize(left), a->size() - at);
      ASSERT_TRUE(a->ReadAt(at, left.data(), count).ok() && b->ReadAt(at, right.data(), count).ok());
      ASSERT_EQ(std::memcmp(left.data(), right.data(), count), 0) << name << " near byte " << at;
    }
  }
}

void GoesInAndOutWithinThePlansBytes(const DecoderConfig& config) {
  if (HasSanitizer()) GTEST_SKIP() << "a sanitizer's memory is not the program's";
  std::string root = JoinPath(::testing::TempDir(), "large_XXXXXX");
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const Paths paths(root);
  int64_t parameters = 0;
  ASSERT_NO_FATAL_FAILURE(WriteInputs(config, paths));
  ASSERT_NO_FATAL_FAILURE(ReadInAndSave(paths, &parameters));
  ASSERT_NO_FATAL_FAILURE(ExportCheckpoint(config, paths));
  ASSERT_NO_FATAL_FAILURE(ExpectSameFiles(paths.in, paths.out));
  std::printf("%ld parameters went in, through a checkpoint of %ld bytes, and out\n", static_cast<long>(parameters),
              static_cast<long>(12 * parameters));
  RemoveTree(root);
}

TEST(LargeFolder, GoesInAndOutWithinThePlansBytes) { GoesInAndOutWithinThePlansBytes(Llama()); }

// Every matrix except the embeddings is transposed when it is read and when it is written.
TEST(LargeFolder, GoesInAndOutTransposedWithinThePlansBytes) { GoesInAndOutWithinThePlansBytes(Gpt2()); }

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--layers=") || !absl::SimpleAtoi(argument, &shale::g_layers)) return 2;
  }
  return RUN_ALL_TESTS();
}
