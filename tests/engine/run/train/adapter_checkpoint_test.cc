// A checkpoint of a run that trains adapters of a Hugging Face folder holds what trains, and the digest of the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/export.h"
#include "engine/api/generator.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/checkpoint/base_values.h"
#include "tests/engine/run/train/bytes_read.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AdapterCheckpoint : public ResumeTest {
 protected:
  void SetUp() override {
    ResumeTest::SetUp();
    WriteBase("base", 0);
  }

  // Writes a model. `change` is added to one of its weights.
  void WriteBase(const std::string& folder, float change) {
    const Job job = MakeJob({}, "decoder { family: LLAMA width: 24 layers: 2 heads: 2 hidden: 40 }");
    auto model = std::get<DecoderConfig>(job.model);
    model.vocabulary = 256;
    const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t at = begin + static_cast<int64_t>(i);
        values[i] = static_cast<float>((at * 37 + std::ssize(parameter) * 11) % 101 - 50) * 0.004f;
        if (absl::StrContains(parameter, "norm")) values[i] += 1;
        if (parameter == "blocks.1.ffn.down.weight" && at == 77) values[i] += change;
      }
      return absl::OkStatus();
    };
    const absl::Status written = ExportHf(model, {}, read, Path(folder));
    ASSERT_TRUE(written.ok()) << written;
  }

  Job Tune(std::vector<std::string> overrides = {}, const std::string& base = "base") const {
    overrides.insert(overrides.begin(), "data.tokenizer=bytes");
    return MakeJob(overrides, absl::StrCat("hf_folder: \"", Path(base), "\" adapter { rank: 3 alpha: 6 }"));
  }
  std::unique_ptr<Trainer> Start(const Job& job, const std::string& folder, const ResumeOptions& resume = {}) const {
    auto trainer = Trainer::Create(
        job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path(folder), .resume = resume});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  }
  CheckpointReader Open(const std::string& path) const { return CheckpointReader::Open(path).value(); }
  std::string Refusal(const Job& job) {
    const absl::Status status = Train(job, "run", {.from = ResumeFrom::kLatest}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }
};

struct Form {
  const char* name;
  std::vector<std::string> overrides;
};
class AdapterCheckpointOf : public AdapterCheckpoint, public ::testing::WithParamInterface<Form> {};

TEST_P(AdapterCheckpointOf, StoppingAndGoingOnChangesNoBit) {
  const Job job = Tune(GetParam().overrides);
  ExpectThatStoppingChangesNoBit(job);
  const CheckpointReader reader = Open(Checkpoint("resumed", 6));
  ASSERT_TRUE(reader.manifest().base);
  EXPECT_EQ(reader.manifest().base->folder, Path("base"));
  // The reader refuses pieces of parameters that are in the base.
  for (const SavedParameter& parameter : reader.manifest().parameters) {
    EXPECT_EQ(parameter.in_base, !IsAdapterParameter(parameter.name)) << parameter.name;
  }
}

// The digest is that of the folder, by whatever ranks it was read, and what is read for an export is what the run has.
TEST_P(AdapterCheckpointOf, ItsBaseIsWhatTheRunComputesWith) {
  const Job job = Tune(GetParam().overrides);
  ASSERT_TRUE(Train(job, "run", {}, 3).status.ok());
  std::vector<std::string> alone = GetParam().overrides;
  alone.insert(alone.end(), {"sharding=", "sharding={ranks: 1 strategy: DDP accumulation: NO_SYNC}"});
  const auto one = Start(Tune(alone), "one", From("run", 3));
  ASSERT_NE(one, nullptr);
  const CheckpointReader first = Open(Checkpoint("run", 3)), second = Open(Checkpoint("one", 3));
  EXPECT_EQ(first.manifest().base, second.manifest().base);
  const absl::StatusOr<OpenedBase> base = OpenVerifiedBase(first, job.model, "");
  ASSERT_TRUE(base.ok()) << base.status();
  CheckpointValues values(first, base->read), without(first);
  for (const SavedParameter& parameter : first.manifest().parameters) {
    std::vector<float> of_run(parameter.elements()), read(parameter.elements());
    ASSERT_TRUE(one->state().ReadParameter(parameter.name, absl::MakeSpan(of_run)).ok());
    // In two ranges, which begin inside of blocks.
    const size_t middle = read.size() / 3;
    ASSERT_TRUE(values.Read(parameter.name, 0, absl::MakeSpan(read).subspan(0, middle)).ok());
    ASSERT_TRUE(values.Read(parameter.name, middle, absl::MakeSpan(read).subspan(middle)).ok());
    EXPECT_TRUE(of_run == read) << parameter.name;
    if (!parameter.in_base) continue;
    EXPECT_THAT(std::string(without.Read(parameter.name, 0, absl::MakeSpan(read)).message()),
                HasSubstr(absl::StrCat(parameter.name, " is in their base, ", Path("base"))));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, AdapterCheckpointOf,
    ::testing::Values(
        Form{"Fp32", {"precision.compute=FP32"}},
        Form{"Bf16Blocking", {"precision.compute=BF16", "checkpoint.asynchronous=false"}},
        Form{"Fp32OnBf16", {"precision.compute=FP32", "optimizer.frozen_weights=BF16", "sharding.strategy=ZERO2"}},
        Form{"Nf4", {"precision.compute=BF16", "optimizer.frozen_weights=NF4"}},
        Form{"Nf4Replicated",
             {"precision.compute=FP32", "optimizer.frozen_weights=NF4", "sharding={ranks: 4 shard_ranks: 2}"}},
        Form{"LionDdp",
             {"precision.compute=BF16", "optimizer={rule: LION learning_rate: 1e-3}",
              "sharding={ranks: 3 strategy: DDP accumulation: NO_SYNC}"}}),
    [](const auto& test) { return test.param.name; });

TEST_F(AdapterCheckpoint, AnotherBaseIsRefusedAndTheSameElsewhereIsNot) {
  ASSERT_TRUE(Train(Tune(), "run", {}, 3).status.ok());
  WriteBase("other", 1e-6f);
  const auto digest = [&](const std::string& folder) {
    const CheckpointReader reader = Open(Checkpoint("run", 3));
    return DigestText(*DigestOfBase(reader.manifest(), OpenBase(reader, Tune().model, Path(folder))->read));
  };
  EXPECT_THAT(Refusal(Tune({}, "other")),
              AllOf(HasSubstr("holds adapters of another base"), HasSubstr(Path("base")), HasSubstr(Path("other")),
                    HasSubstr(digest("base")), HasSubstr(digest("other")), HasSubstr("model.hf_folder")));
  const auto generator = [&](const std::string& base) {
    return Generator::Create(Open(Checkpoint("run", 3)), CreateBackend, std::nullopt, {}, base);
  };
  EXPECT_THAT(std::string(generator(Path("other")).status().message()),
              AllOf(HasSubstr("holds adapters of another base"), HasSubstr("--base=FOLDER")));

  // A damaged base is not taken for a damaged checkpoint.
  std::filesystem::resize_file(Path("other/model.safetensors"), 100);
  const absl::Status damaged = generator(Path("other")).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("their base cannot be read"));

  std::filesystem::rename(Path("base"), Path("moved"));
  EXPECT_THAT(std::string(generator("").status().message()),
              AllOf(HasSubstr("their base cannot be read"), HasSubstr(Path("base")), HasSubstr("--base=FOLDER")));
  EXPECT_TRUE(generator(Path("moved")).ok()) << generator(Path("moved")).status();
  const Job of_no_folder = MakeJob({"data.tokenizer=bytes"},
                                   "decoder { family: LLAMA width: 24 layers: 2 heads: 2 hidden: 40 } "
                                   "adapter { rank: 3 alpha: 6 }");
  EXPECT_THAT(Refusal(of_no_folder), HasSubstr("the job has no model.hf_folder"));
  EXPECT_TRUE(Train(Tune({}, "moved"), "run", {.from = ResumeFrom::kLatest}).status.ok());
  EXPECT_EQ(Open(Checkpoint("run", 6)).manifest().base->folder, Path("moved"));
}

TEST_F(AdapterCheckpoint, ABaseThatAProgramWroteToIsSaved) {
  const Job job = Tune({"sharding.ranks=2", "optimizer.frozen_weights=NF4"});
  auto trainer = Start(job, "run");
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->Step().ok());
  const std::string alone = trainer->SaveCheckpoint().value();
  std::vector<float> norm(24);
  ASSERT_TRUE(trainer->state().ReadParameter("final_norm.weight", absl::MakeSpan(norm)).ok());
  ASSERT_TRUE(trainer->state().WriteParameter("final_norm.weight", norm).ok());
  ASSERT_TRUE(trainer->Step().ok());
  const std::string whole = trainer->SaveCheckpoint().value();
  EXPECT_TRUE(Open(alone).manifest().base);
  EXPECT_FALSE(Open(whole).manifest().base);
  trainer.reset();

  // A run that goes on from such a checkpoint needs no base, and keeps saving it.
  std::filesystem::rename(Path("base"), Path("gone"));
  const Job without = MakeJob({"data.tokenizer=bytes", "sharding.ranks=2", "optimizer.frozen_weights=NF4"},
                              "decoder { family: LLAMA width: 24 layers: 2 heads: 2 hidden: 40 } "
                              "adapter { rank: 3 alpha: 6 }");
  const Run resumed = Train(without, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_FALSE(Open(Checkpoint("run", 6)).manifest().base);
}

// All ranks need the mean of a matrix in 4 bits of which they hold a part, so each reads all of it, but no other one.
// Here each of four ranks holds one matrix of each block, because every matrix is padded to 16,384 weights.
TEST_F(AdapterCheckpoint, ARankReadsTheMatricesIn4BitsOfWhichItHoldsAPart) {
  const auto read_by = [&](int ranks) {
    const Job job = Tune({"optimizer.frozen_weights=NF4", absl::StrCat("sharding={ranks: ", ranks, "}")});
    const int64_t before = BytesRead();
    EXPECT_TRUE(Trainer::Create(job, {.backend = CreateBackend(job)->get()}).ok());
    return BytesRead() - before;
  };
  // The matrices of the two blocks have 41,472 bytes. Four ranks read them four times if each reads all.
  read_by(1);  // The first trainer of a process reads more, such as what the machine is.
  const int64_t one = read_by(1), four = read_by(4);
  EXPECT_GT(one, 41'472);
  EXPECT_NEAR(four, one, 16'000);
}

TEST_F(AdapterCheckpoint, GeneratesWithTheBaseAsItsRunDoes) {
  const Job job = Tune({"runtime.generate=true", "sharding={ranks: 1 strategy: DDP accumulation: NO_SYNC}",
                        "optimizer.frozen_weights=NF4"});
  const auto trainer = Start(job, "run");
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->Step().ok());
  const CheckpointReader reader = Open(trainer->SaveCheckpoint().value());
  ASSERT_TRUE(reader.manifest().base);
  const std::vector<int32_t> prompt = {116, 104, 101, 32};
  const absl::Span<const float> of_run = trainer->generator().Logits(prompt).value();
  const auto generator = Generator::Create(reader, CreateBackend);
  ASSERT_TRUE(generator.ok()) << generator.status();
  const absl::Span<const float> logits = (*generator)->Logits(prompt).value();
  ASSERT_EQ(logits.size(), of_run.size());
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], of_run[i], 1e-4) << i;
  EXPECT_EQ((*generator)->measured_peak_bytes(), (*generator)->planned_peak_bytes());
}

}  // namespace
}  // namespace shale
