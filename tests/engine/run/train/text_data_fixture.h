// What tests of training on text share: a tokenizer, jobs, conversations, and what runs of them report.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/data/documents.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {

class TextDataTest : public ::testing::Test {
 protected:
  TextDataTest() {
    std::filesystem::create_directory(folder_.Path("tokenizer"));
    std::filesystem::copy_file("tests/engine/text/golden/gpt2/tokenizer.json",
                               folder_.Path("tokenizer/tokenizer.json"));
  }

  absl::StatusOr<Job> ParseSmallJob(const std::string& data, const std::string& model,
                                    const std::vector<std::string>& overrides = {}) {
    return ParseJobText(absl::StrCat("model { ", model, R"( }
      batch { global_batch: 6 micro_batch: 2 sequence_length: 24 }
      sharding { ranks: 2 }
      optimizer { learning_rate: 1e-2 }
      lr_schedule { steps: 4 }
      runtime { threads_per_rank: 1 }
      telemetry { run_folder: "run" }
      data { )",
                                     data, " }\n"),
                        folder_.Path("job.textproto"), overrides);
  }
  Job SmallJob(const std::string& data, const std::vector<std::string>& overrides = {}) {
    absl::StatusOr<Job> job =
        ParseSmallJob(data, "decoder { family: LLAMA width: 32 layers: 1 heads: 4 hidden: 48 }", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    job->data.cache = folder_.Path("tokens");
    return *std::move(job);
  }
  struct Run {
    absl::Status status;
    std::vector<StepReport> steps;
    int64_t counted = 0;  // Tokens of the text that count.
    DocumentsReport documents;
  };
  Run Train(const Job& job, const std::string& checkpoints = "", const ResumeOptions& resume = {}) {
    const std::unique_ptr<Backend> backend = *CreateBackend(job);
    Run run;
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
        job, {.backend = backend.get(),
              .checkpoint_folder = checkpoints.empty() ? "" : folder_.Path(checkpoints),
              .resume = resume,
              .text_progress = {
                  .ready = [&](const TextReport& text) { run.counted = text.totals.counted; },
                  .packed = [&](const std::string&, const DocumentsReport& report) { run.documents = report; }}});
    run.status = trainer.status();
    if (!trainer.ok()) return run;
    run.status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      EXPECT_EQ(report.peak_bytes_measured, report.peak_bytes_planned);
      run.steps.push_back(report);
      return absl::OkStatus();
    }});
    return run;
  }
  std::vector<double> Losses(const Run& run) {
    EXPECT_TRUE(run.status.ok()) << run.status;
    std::vector<double> losses;
    for (const StepReport& step : run.steps) losses.push_back(step.loss);
    return losses;
  }
  std::vector<double> Losses(const Job& job) { return Losses(Train(job)); }
  ResumeOptions From(const std::string& checkpoints, int64_t step) {
    return {.from = ResumeFrom::kPath,
            .path = absl::StrCat(folder_.Path(checkpoints), "/", CheckpointFolderName(step))};
  }

  // Returns chats as JSON Lines. Some are longer than a sequence, and begin with a question as long.
  static std::vector<std::string> Chats() {
    std::vector<std::string> chats;
    for (int i = 0; i < 12; ++i) {
      chats.push_back(absl::StrCat(R"({"messages": [{"role": "user", "content": "Why )", std::string(i * i % 50, 'q'),
                                   R"(?"}, {"role": "assistant", "content": "Answer )", std::string(i * 3, 'z'), i,
                                   "\"}]}\n"));
    }
    return chats;
  }
  void WriteTemplate() {
    folder_.Write("tokenizer/chat_template.jinja",
                  "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}"
                  "{% if add_generation_prompt %}<assistant>{% endif %}");
  }

  TempFolder folder_;
};

}  // namespace shale
