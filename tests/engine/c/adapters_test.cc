// Tests that the C interface writes adapters as the C++ interface does, and finds their base where it is said to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/shale.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Writes a small model as a Hugging Face folder.
void WriteBase(const std::string& text, const std::string& folder) {
  const absl::StatusOr<Job> job =
      ParseJobText(text + "model { decoder { width: 16 layers: 1 heads: 2 hidden: 24 vocabulary: 256 } }", "job");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto read = [](absl::string_view, int64_t begin, absl::Span<float> values) {
    for (float& value : values) value = 0.1f * static_cast<float>(begin++ * 7 % 11 - 5);
    return absl::OkStatus();
  };
  const absl::Status written = ExportHf(std::get<DecoderConfig>(job->model), {}, read, folder);
  ASSERT_TRUE(written.ok()) << written;
}

// Writes the adapters of a checkpoint with the C++ interface.
void ExportAdapterInCpp(const std::string& path, const std::string& base, const std::string& folder) {
  const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::StatusOr<Job> job = ParseRecordedJob(checkpoint->manifest().job, "the job");
  ASSERT_TRUE(job.ok()) << job.status();
  CheckpointValues values(*checkpoint);
  const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return values.Read(parameter, begin, out);
  };
  const absl::Status written =
      ExportHfAdapter(std::get<DecoderConfig>(job->model), DType::kFloat32, base, read, folder);
  ASSERT_TRUE(written.ok()) << written;
}

TEST_F(CTest, AdaptersGoOutAloneAndTheirBaseMayMove) {
  const std::string text = absl::StrCat(kSmallJob, "data { path: \"", Path("text"), "\" tokenizer: \"bytes\" }\n");
  WriteBase(text, Path("base"));
  const shale_job job = Parse(absl::StrCat(text, "model { hf_folder: \"", Path("base"), "\" adapter { rank: 2 } }"));
  const std::string checkpoints = Path("checkpoints");
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.checkpoint_folder = checkpoints.c_str();
  const shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;
  ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  char path[4096];
  ASSERT_EQ(shale_trainer_save(trainer, path, sizeof(path), nullptr, &error_), SHALE_OK) << error_.message;
  shale_trainer_free(trainer, nullptr);
  shale_job_free(job, nullptr);

  const std::string here = Path("whole"), moved = Path("moved"), there = Path("whole_of_moved");
  ASSERT_EQ(shale_export_parameters(path, SHALE_F32, here.c_str(), &error_), SHALE_OK) << error_.message;
  std::filesystem::rename(Path("base"), moved);
  EXPECT_NE(shale_export_parameters(path, SHALE_F32, there.c_str(), &error_), SHALE_OK);
  EXPECT_THAT(error_.message, HasSubstr("their base cannot be read"));
  ASSERT_EQ(shale_export_parameters_with_base(path, moved.c_str(), SHALE_F32, there.c_str(), &error_), SHALE_OK)
      << error_.message;
  EXPECT_TRUE(BytesOf(here) == BytesOf(there));

  ASSERT_EQ(shale_export_adapter(checkpoints.c_str(), SHALE_F32, Path("adapter").c_str(), &error_), SHALE_OK)
      << error_.message;
  ExportAdapterInCpp(path, Path("base"), Path("adapter_in_cpp"));
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::string bytes = BytesOf(Path(absl::StrCat("adapter/", file)));
    EXPECT_FALSE(bytes.empty()) << file;
    EXPECT_TRUE(bytes == BytesOf(Path(absl::StrCat("adapter_in_cpp/", file)))) << file;
  }

  shale_generator generator = 0;
  for (const char* folder : {static_cast<const char*>(path), checkpoints.c_str()}) {
    EXPECT_EQ(shale_generator_create(folder, nullptr, &generator, &error_), SHALE_FAILED_PRECONDITION);
    EXPECT_THAT(error_.message, AllOf(HasSubstr("their base cannot be read"), Not(HasSubstr("damaged"))));
  }
  ASSERT_EQ(shale_generator_create_with_base(path, nullptr, moved.c_str(), &generator, &error_), SHALE_OK)
      << error_.message;
  const int32_t prompt[] = {'t', 'h', 'e'};
  int64_t drawn = 0;
  const auto count = [](void* user, int32_t) { return ++*static_cast<int64_t*>(user) < 4 ? 0 : 1; };
  EXPECT_EQ(shale_generator_generate(generator, prompt, 3, 9, nullptr, count, &drawn, &error_), SHALE_OK)
      << error_.message;
  EXPECT_EQ(drawn, 4);
  EXPECT_EQ(shale_generator_free(generator, &error_), SHALE_OK);
}

}  // namespace
}  // namespace shale
