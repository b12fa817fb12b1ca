// Tests jobs whose program brings the model: training, planning, checkpoints, exports and generation work as with the
// models that a job describes, and a checkpoint belongs to one name and digest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/safetensors.h"
#include "engine/plan/planner/summary.h"
#include "engine/shale.h"
#include "tests/engine/run/train/resume_fixture.h"
#include "tools/examples/table_classifier.h"
#include "tools/examples/universal_transformer.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

CustomModel Transformer() {
  return examples::UniversalTransformer({.width = 16, .heads = 2, .hidden = 24, .steps = 2});
}

class CustomModelTest : public ResumeTest {
 protected:
  absl::StatusOr<Job> Parse(const std::string& more = "") const {
    return ParseJobText(absl::StrCat(R"(
batch { global_batch: 7 micro_batch: 1 sequence_length: 10 }
sharding { ranks: 3 }
optimizer { learning_rate: 1e-2 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
lr_schedule { steps: 6 } data { path: ")",
                                     Path("text"), "\" }\n", more),
                        "job.textproto", {}, ModelFrom::kProgram);
  }
  // Returns a job without a model.
  Job Open(const std::string& more = "") const {
    absl::StatusOr<Job> job = Parse(more);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }
  Job WithModel(const CustomModel& model, const std::string& more = "") const {
    Job job = Open(more);
    const absl::Status set = SetModel(model, job);
    EXPECT_TRUE(set.ok()) << set;
    return job;
  }
  // Returns a job with this model whose data are the rows of table_.
  Job OnTable(const CustomModel& model, const std::string& more = "") {
    Job job = WithModel(model, more);
    job.data.path.clear();
    job.batch.sequence_length = 1;
    data_ = &table_;
    return job;
  }
  // Returns rows of eight cells, whose class says whether the first cell and the fifth have the same sign.
  static examples::Table MakeTable() {
    examples::Table table = {.cells = 8, .classes = 2};
    for (int i = 0; i < 500 * 8; ++i) table.features.push_back(static_cast<float>(i * 7919 % 1009) / 504 - 1);
    for (int row = 0; row < 500; ++row) {
      table.labels.push_back(table.features[row * 8] * table.features[row * 8 + 4] > 0);
    }
    return table;
  }
  // Returns the error of a trainer of a job without a model that is given this one.
  std::string ErrorOf(const CustomModel& model, const std::string& more = "") const {
    const Job job = Open(more);
    return std::string(Trainer::Create(job, {.backend = CreateBackend(job)->get(), .model = model}).status().message());
  }

  examples::TableRows table_{"table", MakeTable()};
};

TEST_F(CustomModelTest, StoppingAndResumingChangesNoBit) { ExpectThatStoppingChangesNoBit(WithModel(Transformer())); }

TEST_F(CustomModelTest, AClassifierStopsAndResumesWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(OnTable(examples::TableClassifier({}), "precision { compute: BF16 }"));
}

// A model whose blocks are in the compute dtype, and whose last norm and head are in fp32.
CustomModel WithWideHead() {
  CustomModel model{.name = "wide_head", .digest = "1", .layers = 1};
  model.build = [](const GraphOptions& options) {
    constexpr Initializer kNormal{Initializer::Kind::kNormal, 0.1};
    GraphBuilder b(options);
    const GroupId block = b.AddGroup("block"), head = b.AddGroup("head");
    b.BeginUnit("block", 0);
    const Tensor x = Embedding(b, b.AddParameter(block, "table", {options.vocabulary, 16}, kNormal), std::nullopt);
    const Tensor up = Linear(b, x, b.AddParameter(block, "up", {24, 16}, kNormal), std::nullopt, "up");
    const Tensor down =
        Linear(b, GeluTanh(b, up), b.AddParameter(block, "down", {16, 24}, kNormal), std::nullopt, "down");
    b.EndUnit(AddResidual(b, x, down, "sum"));
    b.BeginUnit("head");
    const Tensor wide = Cast(b, b.UnitInput(), DType::kFloat32, "wide");
    const ParameterId norm = b.AddParameter(head, "norm", {16}, {Initializer::Kind::kOnes}, DType::kFloat32);
    LinearCrossEntropy(b, Norm(b, wide, {.weight = norm}, "normal"),
                       b.AddParameter(head, "words", {options.vocabulary, 16}, kNormal, DType::kFloat32), std::nullopt);
    b.EndLastUnit();
    return b.Finish();
  };
  return model;
}

TEST_F(CustomModelTest, PartsInFp32StopAndResumeWithTheSameBits) {
  ExpectThatStoppingChangesNoBit(WithModel(WithWideHead(), "precision { compute: BF16 }"));
  EXPECT_THAT(ErrorOf(WithWideHead(), "precision { compute: BF16 master: SPLIT }"),
              HasSubstr("norm is used in f32; use precision.master MASTER_FP32"));
}

TEST_F(CustomModelTest, TheTrainerTakesTheModelToo) {
  const Job job = Open();
  const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .model = Transformer()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::StatusOr<StepReport> report = (*trainer)->Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->peak_bytes_measured, (*trainer)->plan().train.memory.peak_bytes);
  EXPECT_EQ(report->loss, Train(WithModel(Transformer()), "same").losses.at(1));
  // Its vocabulary is that of the data, and the plan says which model it is.
  EXPECT_EQ(Vocabulary((*trainer)->job().model), 256);
  EXPECT_THAT(PlanText((*trainer)->job(), (*trainer)->plan()),
              HasSubstr("custom model universal_transformer (width=16 heads=2 hidden=24 steps=2), 2 blocks"));
}

TEST_F(CustomModelTest, LearnsTheClassesOfATable) {
  Job job = OnTable(examples::TableClassifier({}));
  job.batch = {.global_batch = 60, .micro_batch = 10, .sequence_length = 1};
  job.lr_schedule.steps = 100;
  job.checkpoint = {};
  const Run run = Train(job, "classes");
  ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_GT(run.losses.at(1), 0.5);
  EXPECT_LT(run.losses.at(100), 0.1);  // Guessing a class costs ln 2 = 0.69 at best.
}

TEST_F(CustomModelTest, PlansWithoutATrainer) {
  const Job job = WithModel(Transformer(), "activation_checkpointing { preset: BLOCK recompute: \"steps.*.qkv\" }");
  const auto backend = CreateBackend(job);
  const absl::StatusOr<DataFacts> facts = DataFactsForPlanning(job);
  ASSERT_TRUE(facts.ok()) << facts.status();
  const absl::StatusOr<ResolvedJob> resolved = ResolveJob(job, *facts, (*backend)->machine());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto trainer = Trainer::Create(job, {.backend = backend->get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->Step().ok());
  EXPECT_EQ((*trainer)->Step()->peak_bytes_measured, resolved->plan.train.memory.peak_bytes);
}

TEST_F(CustomModelTest, ItsFlopsAreThoseOfTheGraph) {
  const Job job = WithModel(Transformer());
  const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  // C width, F inner width, V vocabulary, S length. For each block 4 C C + 3 C F weights, each used three times in a
  // multiply-add, and attention over S (S + 1) / 2 pairs of positions; then the head.
  constexpr double C = 16, F = 24, V = 256, S = 10;
  const double block = 6 * (4 * C * C + 3 * C * F) + 3 * 4 * C * (S + 1) / 2;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken((*trainer)->job(), (*trainer)->plan().train.graph), 2 * block + 6 * C * V);
}

TEST_F(CustomModelTest, ACheckpointBelongsToOneNameAndDigest) {
  ASSERT_TRUE(Train(WithModel(Transformer()), "run").status.ok());
  CustomModel other = Transformer();
  other.digest = "width=17";
  EXPECT_THAT(std::string(Train(WithModel(other), "digest", From("run", 3)).status.message()),
              HasSubstr("it has \"digest: \"width=16 heads=2 hidden=24 steps=2\"\", the job's model "
                        "\"digest: \"width=17\"\""));
  other = Transformer();
  other.name = "another";
  EXPECT_THAT(std::string(Train(WithModel(other), "name", From("run", 3)).status.message()),
              HasSubstr("it has \"name: \"universal_transformer\"\", the job's model \"name: \"another\"\""));
  EXPECT_THAT(std::string(Train(MakeJob({}), "decoder", From("run", 3)).status.message()),
              HasSubstr("it has \"custom {\", the job's model \"decoder {\""));
}

TEST_F(CustomModelTest, ItsWeightsAreExportedAndGenerateText) {
  ASSERT_TRUE(Train(WithModel(Transformer()), "run/checkpoints").status.ok());
  const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(Checkpoint("run/checkpoints", 6));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(ExportParameters(*checkpoint, DType::kFloat32, Path("model.safetensors")).ok());
  const absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(Path("model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), checkpoint->manifest().parameters.size());
  const SafetensorsTensor* qkv = file->Find("block.qkv.weight");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->shape, (std::vector<int64_t>{48, 16}));
  std::vector<float> exported(48 * 16);
  ASSERT_TRUE(file->ReadFloat32(*qkv, 0, absl::MakeSpan(exported)).ok());
  EXPECT_EQ(exported, State(checkpoint->folder()).at("block.qkv.weight"));

  auto generator = Generator::FromRun(Path("run"), CreateBackend, Transformer());
  ASSERT_TRUE(generator.ok()) << generator.status();
  const absl::StatusOr<absl::Span<const float>> logits = (*generator)->Logits({'t', 'h', 'e'});
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(logits->size(), 256);
  EXPECT_THAT(std::string(Generator::FromRun(Path("run"), CreateBackend).status().message()),
              HasSubstr("only a program that brings the model can build it"));
  CustomModel other = Transformer();
  other.digest = "width=17";
  EXPECT_EQ(
      Generator::FromRun(Path("run"), CreateBackend, other).status().message(),
      "the job was recorded with custom model universal_transformer (width=16 heads=2 hidden=24 steps=2), and the "
      "program brings universal_transformer (width=17); bring the recorded model, or begin a new run");
}

// Regression: the gradients that 65 units send shared the random bits of weights.
TEST_F(CustomModelTest, UnitsThatShareParametersHaveRandomBitsOfTheirOwnOrAreRefused) {
  const auto error = [&](int64_t steps, const std::string& precision,
                         Accumulation accumulation = Accumulation::kSharded) {
    Job job =
        WithModel(examples::UniversalTransformer({.width = 8, .heads = 2, .hidden = 8, .steps = steps}), precision);
    job.sharding.accumulation = accumulation;
    return std::string(Trainer::Create(job, {.backend = CreateBackend(job)->get()}).status().message());
  };
  EXPECT_EQ(error(64, "precision { reduce: BF16 }"), "");
  EXPECT_EQ(error(65, "precision { reduce: BF16 }"),
            "65 units use the parameters of block, and their gradients in bf16 have random bits for at most 64 units; "
            "set precision.reduce FP32, or let fewer units share these parameters");
  EXPECT_EQ(error(65, ""), "");
  EXPECT_EQ(error(65, "precision { reduce: BF16 }", Accumulation::kNoSync), "") << "it sends once a step";
  EXPECT_EQ(error(127, "precision { gradient_shards: BF16 }"), "");
  EXPECT_THAT(error(128, "precision { gradient_shards: BF16 }"),
              HasSubstr("at most 127 units; set precision.gradient_shards"));
}

TEST_F(CustomModelTest, AJobHasOneModel) {
  EXPECT_THAT(std::string(Parse("model { mlp { embedding: 8 hidden: 16 } }").status().message()),
              HasSubstr("model: the program that runs this job brings its own model; leave `model` out"));
  Job job = MakeJob({});
  const absl::Status both = SetModel(Transformer(), job);
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(both.message(),
            "the job describes a model itself (model.decoder), and the program brings custom model "
            "universal_transformer; leave `model` out of the job, or the custom model out of the program");
  EXPECT_TRUE(std::holds_alternative<DecoderConfig>(job.model));
  job = Open();
  EXPECT_THAT(std::string(Trainer::Create(job, {.backend = CreateBackend(job)->get()}).status().message()),
              HasSubstr("model: missing; the program that runs this job brings its model"));
  const std::string recorded = ResolvedJobText(WithModel(Transformer()));
  EXPECT_THAT(std::string(ParseJobText(recorded, "job.textproto").status().message()),
              HasSubstr("model.custom: stands only in the records of runs"));
  const absl::StatusOr<Job> parsed = ParseRecordedJob(recorded, "job.textproto");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->model, WithModel(Transformer()).model);
}

TEST_F(CustomModelTest, AModelThatIsNotWhatItSaysIsRefused) {
  CustomModel model = Transformer();
  model.name = "two words";
  EXPECT_THAT(ErrorOf(model), HasSubstr("model.custom.name: found \"two words\"; allowed: 1 to 128 letters"));
  model = Transformer();
  model.digest = "";
  EXPECT_THAT(ErrorOf(model), HasSubstr("model.custom.digest: found 0 bytes; allowed: 1 to 256"));
  model = Transformer();
  model.layers = 7;
  EXPECT_EQ(ErrorOf(model),
            "custom model universal_transformer: its graph has 2 blocks (units with an index), and "
            "the model says that it has 7");
  EXPECT_THAT(ErrorOf(Transformer(), "activation_checkpointing { preset: BLOCK segment_blocks: 3 }"),
              HasSubstr("a segment of 3 blocks is longer than the 2 consecutive blocks"));
  EXPECT_THAT(ErrorOf(Transformer(), "activation_checkpointing { recompute: \"blocks.*\" }"),
              HasSubstr("\"blocks.*\" matches no activation"));
  model = Transformer();
  model.build = [](GraphOptions options) {
    options.sequence_length = 3;
    return Transformer().build(options);
  };
  EXPECT_EQ(ErrorOf(model),
            "custom model universal_transformer: its graph was built with other options than those that "
            "its function was given");
  // Regression: the message was that of other options.
  model.build = [](GraphOptions options) {
    options.compute_dtype = DType::kFloat32;
    return Transformer().build(options);
  };
  EXPECT_EQ(ErrorOf(model, "precision { compute: BF16 }"),
            "custom model universal_transformer: wanted parameters in bf16, the compute_dtype of the options that its "
            "function was given (precision.compute), and found all in f32; build the graph with these options, and add "
            "parameters without a dtype of their own where the job's may be used, or set precision.compute FP32");
  model.build = [](const GraphOptions& options) {
    const int64_t hidden = options.mode == GraphMode::kTraining ? 24 : 20;
    return examples::UniversalTransformer({.width = 16, .heads = 2, .hidden = hidden, .steps = 2}).build(options);
  };
  EXPECT_EQ(ErrorOf(model),
            "the model's parameters for training and for evaluation differ, first at "
            "block.gate_up.weight; a model must have the same parameters in every mode");
  model.build = [](const GraphOptions& options) {
    GraphBuilder b(options);
    b.BeginUnit("only");
    return b.Finish();
  };
  EXPECT_EQ(ErrorOf(model),
            "custom model universal_transformer: unit only has no end: call EndUnit, or EndLastUnit "
            "after the loss");
  model.build = nullptr;
  EXPECT_THAT(ErrorOf(model), HasSubstr("only a program that brings the model can build it"));
}

}  // namespace
}  // namespace shale
