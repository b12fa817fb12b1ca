#include "engine/run/evaluate/evaluator.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr char kEvaluationText[] = "sphinx of black quartz, judge my vow; pack";  // 42 bytes.
constexpr int64_t kSequence = 12;

class EvaluatorTest : public ::testing::Test {
 protected:
  EvaluatorTest() {
    std::string text;
    for (int i = 0; i < 40; ++i) absl::StrAppend(&text, "pack my box with five dozen liquor jugs; ");
    folder_.Write("text", text);
    folder_.Write("evaluation", kEvaluationText);
  }

  // Writes a tokenizer of bytes and <|end|>, where the run that Train() makes has its copy.
  void WriteTokenizer() {
    const std::vector<std::string> special = {"<|end|>"};
    std::filesystem::create_directories(RunHfPath(run_));
    folder_.Write("run/hf/tokenizer.json", TokenizerJson(TrainBpe({}, special, 257, 1), special, kGpt2Pattern));
    folder_.Write("run/hf/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  }

  // Trains a model, on two ranks, and returns its last evaluation.
  EvaluationReport Train(const std::string& job_text, const std::vector<std::string>& overrides = {}) {
    EvaluationReport evaluation;
    absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat(
            "model { decoder { family: LLAMA width: 32 layers: 1 heads: 4 kv_heads: 2 max_positions: 64 } } batch { "
            "global_batch: 4 micro_batch: 2 sequence_length: ",
            kSequence,
            " } sharding { ranks: 2 } optimizer { learning_rate: 1e-2 } runtime { threads_per_rank: 1 } lr_schedule { "
            "shape: CONSTANT steps: 4 } ",
            job_text),
        folder_.Path("job"), overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return evaluation;
    job->telemetry.run_folder = run_;
    auto trainer = Trainer::Create(*job, {.backend = CreateBackend(*job)->get(),
                                          .checkpoint_folder = RunCheckpointsPath(run_),
                                          .resume = {.from = ResumeFrom::kReplace}});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return evaluation;
    const absl::Status status = (*trainer)->Run({.on_evaluation = [&](const EvaluationReport& report) {
      evaluation = report;
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    return evaluation;
  }

  std::unique_ptr<Evaluator> Load(const EvaluatorOptions& options = {}) {
    absl::StatusOr<std::unique_ptr<Evaluator>> evaluator =
        Evaluator::FromRun(run_, WhichCheckpoint::kNewest, CreateBackend, options);
    EXPECT_TRUE(evaluator.ok()) << evaluator.status();
    return evaluator.ok() ? *std::move(evaluator) : nullptr;
  }

  TempFolder folder_;
  const std::string run_ = folder_.Path("run");
};

// The same tokens and the same weights: only the order of the sums differs, because the run had two ranks.
TEST_F(EvaluatorTest, TheLossIsThatOfTheRun) {
  const EvaluationReport report = Train("data { path: \"text\" evaluation_path: \"evaluation\" }");
  const std::unique_ptr<Evaluator> evaluator = Load();
  ASSERT_NE(evaluator, nullptr);
  EXPECT_EQ(evaluator->step(), 4);
  const absl::StatusOr<DataEvaluation> found = evaluator->Evaluate(folder_.Path("evaluation"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->tokens, 3 * kSequence);
  EXPECT_EQ(found->tokens, report.tokens);
  EXPECT_NEAR(found->loss(), report.loss, 1e-6 * report.loss);
  EXPECT_EQ(found->bytes, found->tokens);
  EXPECT_DOUBLE_EQ(found->bits_per_byte(), found->loss() / std::log(2));
  EXPECT_EQ(evaluator->measured_peak_bytes(), evaluator->planned_peak_bytes());
}

TEST_F(EvaluatorTest, RunsOfEveryPrecisionAreEvaluated) {
  for (const char* const precision : {"compute: BF16", "compute: BF16 master: SPLIT", "compute: BF16 master: NONE",
                                      "compute: FP16 init_scale: 1024"}) {
    SCOPED_TRACE(precision);
    const EvaluationReport report =
        Train("data { path: \"text\" evaluation_path: \"evaluation\" }", {absl::StrCat("precision={", precision, "}")});
    const std::unique_ptr<Evaluator> evaluator = Load();
    ASSERT_NE(evaluator, nullptr);
    const absl::StatusOr<DataEvaluation> found = evaluator->Evaluate(folder_.Path("evaluation"));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_NEAR(found->loss(), report.loss, 1e-2 * report.loss);
  }
}

TEST_F(EvaluatorTest, EachSourceOfAnEvaluationIsReportedByName) {
  folder_.Write("other", "the five boxing wizards jump quickly");
  const EvaluationReport report = Train(
      "data { path: \"text\" evaluation_fraction: 0.1 evaluation_sources: \"vow evaluation\" evaluation_sources: "
      "\"wizards other\" }");
  ASSERT_EQ(report.sources.size(), 3);
  const std::unique_ptr<Evaluator> evaluator = Load();
  ASSERT_NE(evaluator, nullptr);
  double sum = 0;
  int64_t tokens = 0;
  for (const SourceLoss& source : report.sources) {
    sum += source.loss * static_cast<double>(source.tokens);
    tokens += source.tokens;
  }
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_NEAR(report.loss, sum / static_cast<double>(tokens), 1e-12);
  EXPECT_EQ(report.sources[0].name, kHeldOutSource);
  EXPECT_EQ(report.sources[1].name, "vow");
  EXPECT_EQ(report.sources[2].name, "wizards");
  for (const auto& [i, name] : {std::pair(1, "evaluation"), {2, "other"}}) {
    const absl::StatusOr<DataEvaluation> found = evaluator->Evaluate(folder_.Path(name));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->tokens, report.sources[i].tokens);
    EXPECT_NEAR(found->loss(), report.sources[i].loss, 1e-6 * found->loss());
  }
}

TEST_F(EvaluatorTest, CompletionsThatWereLearnedMatch) {
  WriteTokenizer();
  std::string rows;
  const std::string learned[] = {R"({"prompt": "a=", "completion": "xy"})", R"({"prompt": "b=", "completion": " z "})"};
  for (int i = 0; i < 40; ++i) absl::StrAppend(&rows, learned[i % 2], "\n");
  folder_.Write("rows.jsonl", rows);
  const EvaluationReport report =
      Train("data { path: \"rows.jsonl\" evaluation_path: \"rows.jsonl\" tokenizer: \"run/hf\" packing: PACK }",
            {"lr_schedule.steps=60"});
  folder_.Write("test.jsonl",
                absl::StrCat(learned[0], "\n", learned[1], "\n", R"({"prompt": "a=", "completion": "x"})", "\n",
                             R"({"prompt": "a=", "completion": "xyz"})", "\n", R"({"text": "no completion"})", "\n",
                             R"({"prompt": "much longer than the context=", "completion": "z"})", "\n"));
  const std::unique_ptr<Evaluator> evaluator = Load({.answers = 2});
  ASSERT_NE(evaluator, nullptr);
  // The loss of the training data, whose prompts do not count: 2 and 3 tokens, and the end of each.
  const absl::StatusOr<DataEvaluation> loss = evaluator->Evaluate(folder_.Path("rows.jsonl"));
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(loss->tokens, 20 * 3 + 20 * 4);
  EXPECT_EQ(loss->bytes, 20 * 2 + 20 * 3);
  EXPECT_NEAR(loss->loss(), report.loss, 1e-5 * report.loss + 1e-7);

  for (const bool whole : {true, false}) {
    std::vector<Answer> answers;
    const absl::StatusOr<MatchReport> matches =
        evaluator->Match(folder_.Path("test.jsonl"), {.tokens = 8, .whole_answers = whole}, [&](const Answer& answer) {
          answers.push_back(answer);
          return absl::OkStatus();
        });
    ASSERT_TRUE(matches.ok()) << matches.status();
    EXPECT_EQ(matches->completions, 5);
    EXPECT_EQ(matches->matches, 2);
    EXPECT_EQ(matches->unanswered, 1);
    ASSERT_EQ(answers.size(), 5);
    EXPECT_TRUE(answers[0].matches && answers[1].matches);
    EXPECT_EQ(answers[0].answer, "xy");
    EXPECT_EQ(answers[1].answer, " z ");
    EXPECT_TRUE(!answers[2].matches && !answers[3].matches);
    EXPECT_TRUE(answers[4].unanswered);
  }
  EXPECT_LE(evaluator->measured_peak_bytes(), evaluator->planned_peak_bytes()) << "short prompts need no long runs";
  EXPECT_TRUE(*HasCompletions(folder_.Path("test.jsonl"), false));
  EXPECT_FALSE(*HasCompletions(folder_.Path("text"), false));
}

// What ends an answer may be a token, or a text of several. Later answers follow those of the file, not the model's.
TEST_F(EvaluatorTest, AnswersOfConversationsThatWereLearnedMatch) {
  const std::string learned =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "xy"},
                       {"role": "user", "content": "b"}, {"role": "assistant", "content": "z"}]})";
  const std::string other =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"},
                       {"role": "user", "content": "b"}, {"role": "assistant", "content": " z"}]})";
  const auto row = [](std::string text) { return absl::StrReplaceAll(text, {{"\n", ""}}) + "\n"; };
  for (const char* const end : {"<|end|>", ";;"}) {
    SCOPED_TRACE(end);
    WriteTokenizer();
    folder_.Write("run/hf/chat_template.jinja",
                  absl::StrCat("{% for m in messages %}{% if m.role == 'assistant' %}{{ '=' + m.content + '", end,
                               "' }}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}="
                               "{% endif %}"));
    std::string rows;
    for (int i = 0; i < 40; ++i) rows += row(learned);
    folder_.Write("chats.jsonl", rows);
    Train("data { path: \"chats.jsonl\" tokenizer: \"run/hf\" packing: PACK }", {"lr_schedule.steps=60"});
    folder_.Write("test.jsonl", row(learned) + row(other) + R"({"prompt": "a=", "completion": "q"})" + "\n" +
                                    R"({"messages": [{"role": "user", "content": "a"}]})" + "\n");
    const std::unique_ptr<Evaluator> evaluator = Load({.answers = 3});
    ASSERT_NE(evaluator, nullptr);
    for (const bool last : {false, true}) {
      std::vector<Answer> answers;
      const absl::StatusOr<MatchReport> matches =
          evaluator->Match(folder_.Path("test.jsonl"), {.tokens = 5, .last_turns = last}, [&](const Answer& answer) {
            answers.push_back(answer);
            return absl::OkStatus();
          });
      // The assistant says nothing in the last row.
      EXPECT_EQ(matches.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_EQ(answers.size(), last ? 2 : 4);
      EXPECT_EQ(answers[0].prompt, last ? absl::StrCat("a=xy", end, "b=") : "a=");
      EXPECT_EQ(answers[0].completion, last ? "z" : "xy");
      std::vector<bool> found;
      for (const Answer& answer : answers) found.push_back(answer.matches);
      if (!last) {
        EXPECT_EQ(answers[3].prompt, absl::StrCat("a=x", end, "b="));
        EXPECT_EQ(std::vector<bool>(found.begin(), found.begin() + 3), (std::vector<bool>{true, true, false}));
      } else {
        EXPECT_TRUE(found[0]);
      }
    }
  }
  EXPECT_TRUE(*HasCompletions(folder_.Path("chats.jsonl"), false));
  std::filesystem::remove(JoinPath(RunHfPath(run_), "chat_template.jinja"));
  EXPECT_EQ(Load({.answers = 1})->Match(folder_.Path("chats.jsonl"), {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(EvaluatorTest, AFolderOfItsWeightsHasTheLossOfTheRun) {
  WriteTokenizer();
  const std::string data =
      "data { path: \"text\" evaluation_path: \"evaluation\" tokenizer: \"run/hf\" packing: PACK }";
  Train(data);
  const std::unique_ptr<Evaluator> run = Load();
  ASSERT_NE(run, nullptr);
  const absl::StatusOr<CheckpointReader> checkpoint =
      CheckpointReader::Open(JoinPath(RunCheckpointsPath(run_), CheckpointFolderName(4)));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  CheckpointValues values(*checkpoint);
  const std::string exported = folder_.Path("exported");
  const auto read = [&](absl::string_view parameter, int64_t begin, absl::Span<float> out) {
    return values.Read(parameter, begin, out);
  };
  const absl::Status status = ExportHf(std::get<DecoderConfig>(run->job().model), {}, read, exported);
  ASSERT_TRUE(status.ok()) << status;
  const EvaluatorOptions options{.sequence_length = kSequence, .cache = folder_.Path("cache")};
  // Without a tokenizer, nothing is known about text.
  const std::string without(
      (*Evaluator::FromFolder(exported, CreateBackend, options))->Evaluate(folder_.Path("text")).status().message());
  EXPECT_THAT(without, HasSubstr("no tokenizer.json"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(JoinPath(RunHfPath(run_), name), JoinPath(exported, name));
  }
  const absl::StatusOr<std::unique_ptr<Evaluator>> folder = Evaluator::FromFolder(exported, CreateBackend, options);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::StatusOr<DataEvaluation> first = run->Evaluate(folder_.Path("evaluation"));
  const absl::StatusOr<DataEvaluation> second = (*folder)->Evaluate(folder_.Path("evaluation"));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->tokens, 42);  // All bytes but the first, and the end.
  EXPECT_EQ(first->tokens, second->tokens);
  EXPECT_NEAR(first->loss(), second->loss(), 1e-6);
}

TEST_F(EvaluatorTest, WhatCannotBeEvaluatedIsRefused) {
  EXPECT_EQ(Evaluator::FromRun(run_, WhichCheckpoint::kNewest, CreateBackend, {}).status().code(),
            absl::StatusCode::kNotFound);
  Train("data { path: \"text\" }");
  const auto message = [&](const EvaluatorOptions& options) {
    return std::string(Evaluator::FromRun(run_, WhichCheckpoint::kNewest, CreateBackend, options).status().message());
  };
  EXPECT_THAT(message({.budget_bytes = 1000}), HasSubstr("budget 1,000 B"));
  EXPECT_THAT(message({.sequence_length = 65}), HasSubstr("max_positions"));
  EXPECT_THAT(std::string(Evaluator::FromRun(run_, WhichCheckpoint::kBest, CreateBackend, {}).status().message()),
              HasSubstr("checkpoint.keep_best=true"));
  const std::unique_ptr<Evaluator> evaluator = Load();
  ASSERT_NE(evaluator, nullptr);
  folder_.Write("empty", "");
  folder_.Write("short", "short");
  folder_.Write("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  for (const char* name : {"empty", "short", "rows.jsonl"}) {
    EXPECT_EQ(evaluator->Evaluate(folder_.Path(name)).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(evaluator->Evaluate(folder_.Path("nowhere")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(evaluator->Match(folder_.Path("rows.jsonl"), {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace shale
