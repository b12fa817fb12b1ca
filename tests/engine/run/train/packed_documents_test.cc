// Laws of runs whose documents are packed or padded (data.packing).
#include <fstream>

#include "engine/files/data/sample_sources.h"
#include "tests/engine/run/train/own_data.h"

namespace shale {
namespace {

// As in own_data_test.cc: fp32 sums of some hundred terms in another order, through six steps.
constexpr double kPackedReordered = 1e-4;

class PackedDocuments : public OwnDataTest {
 protected:
  void SetUp() override {
    OwnDataTest::SetUp();
    std::ofstream text(Path("text"));
    for (int i = 0; i < 40; ++i) text << std::string("the quick brown fox").substr(0, i * i % 17) << i << "\n";
  }
  // Returns a job whose documents are lines of at most 21 targets, in sequences of `length`.
  Job MakeJob(const std::string& packing, const std::vector<std::string>& overrides = {}, int64_t length = 10) const {
    std::vector<std::string> all = {absl::StrCat("data.path=", Path("text")), absl::StrCat("data.packing=", packing),
                                    absl::StrCat("batch.sequence_length=", length)};
    if (packing != "CUT") all.push_back("data.document_end_token=10");
    all.insert(all.end(), overrides.begin(), overrides.end());
    return OwnDataTest::MakeJob(all);
  }
};

TEST_F(PackedDocuments, HaveTheLossThatTheyHaveAlone) {
  for (const char* position : {"ROTARY", "LEARNED"}) {
    // The first step takes all samples.
    const std::vector<std::string> all = {absl::StrCat("model.decoder.position=", position),
                                          "lr_schedule.steps=", "lr_schedule.epochs=1", "batch.global_batch=64",
                                          "sharding.ranks=2"};
    const Run packed = Train(MakeJob("PACK", all, 24), nullptr), padded = Train(MakeJob("PAD", all, 24), nullptr);
    ASSERT_EQ(packed.losses.size(), 1) << packed.status;
    ASSERT_EQ(padded.losses.size(), 1) << padded.status;
    EXPECT_NEAR(packed.losses[0], padded.losses[0], kPackedReordered);
    EXPECT_EQ(packed.steps[0].step_tokens, padded.steps[0].step_tokens);
    EXPECT_NEAR(packed.steps[0].gradient_norm, padded.steps[0].gradient_norm, kPackedReordered);
  }
}

TEST_F(PackedDocuments, TrainTheSameOnEveryNumberOfRanks) {
  for (const char* packing : {"PACK", "PAD"}) {
    const std::vector<std::string> evaluate = {"data.evaluation_fraction=0.25", "telemetry.evaluate_every=6"};
    std::vector<std::string> whole = evaluate;
    whole.push_back("batch.micro_batch=7");
    const Run one = Train(MakeJob(packing, whole), nullptr);
    ASSERT_EQ(one.losses.size(), 6) << one.status;
    for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
      std::vector<std::string> divided = evaluate;
      divided.push_back(ranks);
      const Run several = Train(MakeJob(packing, divided), nullptr);
      ASSERT_EQ(several.losses.size(), 6) << several.status;
      for (int i = 0; i < 6; ++i) {
        EXPECT_NEAR(several.losses[i], one.losses[i], kPackedReordered) << packing << " " << ranks;
        EXPECT_EQ(several.steps[i].step_tokens, one.steps[i].step_tokens);
      }
      EXPECT_NEAR(several.evaluations.at(6), one.evaluations.at(6), kPackedReordered);
    }
  }
}

TEST_F(PackedDocuments, GoOnFromACheckpointWithTheSameBits) {
  for (const char* packing : {"PACK", "PAD"}) {
    const Job job = MakeJob(packing, {"sharding.ranks=3"});
    const Run whole = Train(job, nullptr, packing);
    ASSERT_EQ(whole.losses.size(), 6) << whole.status;
    const Run rest = Train(job, nullptr, "", From(packing, 3));
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end())) << rest.status;
    const Run other = Train(MakeJob("CUT"), nullptr, "", From(packing, 3));
    EXPECT_NE(other.status.message().find(absl::StrCat("its tokens are of \"bytes; ", packing,
                                                       ", documents end with token 10\", those of this run of "
                                                       "\"bytes\"")),
              std::string::npos)
        << other.status;
  }
}

TEST_F(PackedDocuments, OfAProgramTrainAsThoseOfAFile) {
  const auto source = TokenSource::Open(Path("text"));
  ASSERT_TRUE(source.ok()) << source.status();
  const auto data = DocumentSamples::Create(*source, Packing::kPack, {.end_token = 10}, kPositions);
  ASSERT_TRUE(data.ok()) << data.status();
  const Run file = Train(MakeJob("PACK"), nullptr);
  ASSERT_EQ(file.losses.size(), 6) << file.status;
  const Job own = OwnDataTest::MakeJob({"data.packing=PACK", "model.decoder.vocabulary=256"});
  EXPECT_EQ(Train(own, data->get()).losses, file.losses);

  // An iterator over the same samples.
  int64_t next = 0;
  PullSource pulled((*data)->description(), {.next = [&](PulledSample& sample) -> absl::StatusOr<bool> {
                      for (auto* part : {&sample.inputs, &sample.targets, &sample.position_ids}) part->resize(10);
                      const absl::Status status =
                          (*data)->Read(next++, {.inputs = absl::MakeSpan(sample.inputs),
                                                 .targets = absl::MakeSpan(sample.targets),
                                                 .position_ids = absl::MakeSpan(sample.position_ids)});
                      if (!status.ok()) return status;
                      return true;
                    }});
  Job in_order = own;
  in_order.data.order = DataOrder::kSequential;
  in_order.lr_schedule.steps = 2;
  EXPECT_EQ(Train(in_order, &pulled).losses, Train(in_order, data->get()).losses);
}

// By hand: a token of a document sees the tokens before it and, as MFU counts, half of itself.
TEST_F(PackedDocuments, CountTheFlopsOfTheAttentionThatTheyHave) {
  const auto source = TokenSource::Open(Path("text"));
  ASSERT_TRUE(source.ok()) << source.status();
  const auto data = DocumentSamples::Create(*source, Packing::kPack, {.end_token = 10}, 24);
  ASSERT_TRUE(data.ok()) << data.status();
  const int64_t samples = (*data)->description().samples;
  double keys = 0, keys_in_window = 0;
  for (int64_t number = 0; number < samples; ++number) {
    std::vector<int32_t> inputs(24), targets(24), ids(24);
    ASSERT_TRUE((*data)
                    ->Read(number, {.inputs = absl::MakeSpan(inputs),
                                    .targets = absl::MakeSpan(targets),
                                    .position_ids = absl::MakeSpan(ids)})
                    .ok());
    for (const int32_t id : ids) {
      keys += id + 0.5;
      keys_in_window += std::min(id + 0.5, 5.0);
    }
  }
  EXPECT_LT(keys, 0.6 * static_cast<double>(samples) * 24 * 24 / 2);  // Sequences hold several documents.
  // Two blocks have four matmuls of 12 x 12, three of 12 x 20 and two norms; then come a norm and the head.
  const double tokens = static_cast<double>(samples) * 24, block = 4 * 144 + 3 * 240 + 24;
  const double linear = 6 * tokens * (2 * block + 12 + 256 * 12), attention = 12 * 12 * (keys + keys_in_window);
  for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
    // The first step takes all samples, and has room for more.
    const Job job =
        MakeJob("PACK",
                {ranks, "lr_schedule.steps=", "lr_schedule.epochs=1", "batch.global_batch=64", "model.decoder.layers=2",
                 "model.decoder.layer_pattern=FW", "telemetry.peak_flops=1e15", "model.decoder.attention_window=5"},
                24);
    const Run run = Train(job, nullptr);
    ASSERT_EQ(run.steps.size(), 1) << run.status;
    const StepReport& step = run.steps[0];
    EXPECT_EQ(step.processed_tokens, tokens);
    const double flops = step.mfu * step.seconds * 1e15 * static_cast<double>(job.sharding.ranks);
    EXPECT_NEAR(flops, linear + attention, 1e-9 * linear) << ranks;
  }
}

TEST_F(PackedDocuments, DoNotChangeWhatIsGenerated) {
  std::vector<std::vector<float>> logits;
  for (const char* packing : {"CUT", "PACK", "PAD"}) {
    const auto trainer = Create(MakeJob(packing, {"runtime.generate=true", "model.decoder.vocabulary=256"}), nullptr);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const auto of_prompt = (*trainer)->generator().Logits({'t', 'h', 'e'});
    ASSERT_TRUE(of_prompt.ok()) << of_prompt.status();
    logits.emplace_back(of_prompt->begin(), of_prompt->end());
  }
  EXPECT_EQ(logits[1], logits[0]);
  EXPECT_EQ(logits[2], logits[0]);
}

TEST_F(PackedDocuments, AreRefusedWhereTheyCannotBe) {
  const auto refusal = [&](const Job& job, DataSource* data) { return std::string(Train(job, data).status.message()); };
  MadeUpData plain(Describe(false));
  EXPECT_NE(refusal(OwnDataTest::MakeJob({"data.packing=PACK"}), &plain).find("its samples have no position ids"),
            std::string::npos);
  DataDescription documents = Describe(false);
  documents.has_position_ids = true;
  MadeUpData with_ids(documents);
  EXPECT_NE(refusal(OwnDataTest::MakeJob({}), &with_ids)
                .find("its samples hold documents that must not see each other; set data.packing=PACK"),
            std::string::npos);
  class Skips : public MadeUpData {
   public:
    using MadeUpData::MadeUpData;
    absl::Status Read(int64_t number, const SampleParts& out) override {
      for (int64_t i = 0; i < kPositions; ++i) out.position_ids[i] = static_cast<int32_t>(2 * i);
      return MadeUpData::Read(number, out);
    }
  } skips(documents);
  EXPECT_NE(refusal(OwnDataTest::MakeJob({"data.packing=PACK"}), &skips)
                .find("position id 1 is 2; wanted 0, where a document begins, or 1"),
            std::string::npos);
  Job no_mark = MakeJob("PACK");
  no_mark.data.document_end_token = -1;
  EXPECT_NE(refusal(no_mark, nullptr).find("give data.document_end_token (10 makes every line a document)"),
            std::string::npos);
}

}  // namespace
}  // namespace shale
