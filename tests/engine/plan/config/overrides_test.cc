#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/config/specs.h"

namespace shale {
namespace {

Job With(const std::vector<std::string>& overrides, const char* text = kDecoderJob) {
  const absl::StatusOr<Job> job = ParseJobText(text, "/jobs/job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

TEST(Overrides, ReplaceScalarsOfEveryType) {
  const Job job = With({"optimizer.learning_rate=1e-3", "model.decoder.layers=5", "sharding.strategy=ZERO2",
                        "runtime.synchronous=true", "name=night.run", "data.seed=18446744073709551615",
                        "telemetry.run_folder=\"/tmp/quoted\"", " batch.micro_batch = 2 "});
  EXPECT_EQ(job.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(std::get<DecoderConfig>(job.model).layers, 5);
  EXPECT_EQ(job.sharding.strategy, Strategy::kZero2);
  EXPECT_TRUE(job.runtime.synchronous);
  EXPECT_EQ(job.name, "night.run");
  EXPECT_EQ(job.data.seed, 18446744073709551615u);
  EXPECT_EQ(job.telemetry.run_folder, "/tmp/quoted");
  EXPECT_EQ(job.batch.micro_batch, 2);
}

TEST(Overrides, TheLastOneWins) {
  EXPECT_EQ(With({"batch.micro_batch=2", "batch.micro_batch=4"}).batch.micro_batch, 4);
}

TEST(Overrides, ListsGrowOrAreReplaced) {
  EXPECT_EQ(With({"activation_checkpointing.recompute=a.*", "activation_checkpointing.recompute=\"b\""})
                .activation_checkpointing.recompute,
            (std::vector<std::string>{"a.*", "b"}));
  EXPECT_EQ(With({"activation_checkpointing.recompute=a", "activation_checkpointing.recompute=[b, 'c']"})
                .activation_checkpointing.recompute,
            (std::vector<std::string>{"b", "c"}));
  EXPECT_TRUE(With({"activation_checkpointing.recompute=a", "activation_checkpointing.recompute=[]"})
                  .activation_checkpointing.recompute.empty());
}

TEST(Overrides, MessagesTakeBraces) {
  const Job job = With({"model.decoder.rope_scaling={ factor: 2 }"});
  ASSERT_TRUE(std::get<DecoderConfig>(job.model).rope_scaling.has_value());
  EXPECT_EQ(std::get<DecoderConfig>(job.model).rope_scaling->factor, 2);
  EXPECT_EQ(std::get<DecoderConfig>(job.model).rope_scaling->high_freq_factor, 4);
}

TEST(Overrides, AnEmptyValueSetsTheDefaultBack) {
  const Job job = With({"lr_schedule.steps=", "lr_schedule.epochs=2"});
  EXPECT_EQ(job.lr_schedule.steps, 0);
  EXPECT_EQ(job.lr_schedule.epochs, 2);
  // Clearing a field of a model that is not chosen does not choose that model.
  EXPECT_EQ(With({"model.mlp.hidden="}), With({}));
}

TEST(Overrides, CanChooseAnotherModel) {
  const Job job = With({"model.mlp.hidden=16", "model.mlp.embedding=8"});
  EXPECT_EQ(std::get<MlpConfig>(job.model).hidden, 16);
}

TEST(Overrides, DataPathsStartAtTheFileAndOverridesAtTheWorkingDirectory) {
  std::string text = kDecoderJob;
  text.replace(text.find("/text"), 5, "../text");
  EXPECT_EQ(With({}, text.c_str()).data.path, "/text");
  EXPECT_EQ(With({"data.path=/else"}, text.c_str()).data.path, "/else");
  const std::string here = With({"data.path=here/./it"}, text.c_str()).data.path;
  EXPECT_EQ(here.front(), '/');
  EXPECT_EQ(here.substr(here.size() - 8), "/here/it");
  EXPECT_NE(here.substr(0, 6), "/jobs/");
}

TEST(Overrides, FailWithTheMessagesOfAFile) {
  EXPECT_EQ(SetError({"sharding.strategy=FULL_SHARDED"}),
            "--set: sharding.strategy: found \"FULL_SHARDED\"; allowed: DDP, ZERO1, ZERO2, FULL_SHARD; did you mean "
            "FULL_SHARD?");
  EXPECT_EQ(SetError({"batch.micro_batch=two"}),
            "--set: batch.micro_batch: found \"two\"; expected a whole number, 1 to 1048576");
  EXPECT_EQ(SetError({"batch.micro_batch=0"}), "--set: batch.micro_batch: found 0; allowed: 1 to 1048576");
  EXPECT_EQ(SetError({"optimizer.beta1=inf"}), "--set: optimizer.beta1: found inf; allowed: 0 to 0.999999");
  EXPECT_EQ(
      SetError({"optimiser.beta1=0.5"}),
      "--set: optimiser: no such field; allowed: name, model, data, batch, sharding, precision, memory, "
      "activation_checkpointing, optimizer, lr_schedule, checkpoint, telemetry, runtime; did you mean optimizer?");
  EXPECT_EQ(SetError({"layers=3"}),
            "--set: layers: no such field; allowed: name, model, data, batch, sharding, precision, memory, "
            "activation_checkpointing, optimizer, lr_schedule, checkpoint, telemetry, runtime; did you mean "
            "model.decoder.layers?");
  EXPECT_EQ(SetError({"batch.micro_batch.x=3"}),
            "--set: batch.micro_batch.x: micro_batch is a value and has no fields; leave .x out");
  EXPECT_EQ(SetError({"batch.micro_batch"}),
            "--set: found \"batch.micro_batch\"; expected path=value, as in batch.micro_batch=2");
  EXPECT_EQ(SetError({"=3"}), "--set: found \"=3\"; expected path=value, as in batch.micro_batch=2");
  EXPECT_EQ(SetError({"batch=3"}), "--set: found \"3\" after batch; expected \"{\"");
  EXPECT_EQ(SetError({"batch.micro_batch=-"}),
            "--set: batch: found the end after batch.micro_batch:; expected a "
            "value");
}

TEST(Overrides, HoldOneValue) {
  EXPECT_EQ(SetError({"batch.micro_batch=2 global_batch: 9"}),
            "--set: batch: found \"global_batch\" after the value; give one value");
  EXPECT_EQ(SetError({"batch.micro_batch=2 }"}), "--set: batch: found \"}\" after the value; give one value");
}

TEST(Overrides, BytesMayHaveAUnit) {
  const auto bytes = [](const std::string& value) {
    return With({"memory.budget_bytes=" + value}).memory.budget_bytes;
  };
  EXPECT_EQ(bytes("10485760"), 10485760);
  EXPECT_EQ(bytes("10KiB"), 10240);
  EXPECT_EQ(bytes("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(bytes("2 TiB"), int64_t{1} << 41);
  for (const char* wrong : {"10MB", "0.1GiB", "1e9", "10MiBs", "9999999TiB"}) {
    EXPECT_EQ(SetError({absl::StrCat("memory.budget_bytes=", wrong)}),
              absl::StrCat("--set: memory.budget_bytes: found \"", wrong,
                           "\"; expected a whole number of bytes, as in 10485760, 10MiB or 1.5GiB"));
  }
  EXPECT_EQ(SetError({"batch.micro_batch=10MiB"}),
            "--set: batch: found letters behind a number; write numbers without units, 10 MiB as 10485760");
}

TEST(Overrides, AreAllReported) {
  EXPECT_EQ(SetError({"batch.micro_batch=0", "sharding.ranks=-1"}),
            "--set: batch.micro_batch: found 0; allowed: 1 to 1048576\n"
            "--set: sharding.ranks: found -1; allowed: 1 to 1048576");
}

}  // namespace
}  // namespace shale
