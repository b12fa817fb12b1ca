// The laws of random jobs on text: what counts in the loss, packed or padded documents and mixtures, with every way to
// divide, keep and update; training of all parameters, of some, or of adapters, whose checkpoints leave the base out if
// it came from a folder. SHALE_TEXT_JOBS in the environment is the number of jobs, which is small by default, and
// SHALE_FIRST_TEXT_JOB the seed of the first.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/run/train/text_data_fixture.h"

namespace shale {
namespace {

int NumberIn(const char* variable, int otherwise) {
  const char* const given = std::getenv(variable);
  int number = 0;
  return given != nullptr && absl::SimpleAtoi(given, &number) ? number : otherwise;
}

// A job as overrides of that of the fixture, and what its laws depend on.
struct TextJob {
  std::string data, model;
  std::vector<std::string> overrides;      // But for those below.
  std::vector<std::string> recomputation;  // Changes no bits.
  std::vector<std::string> division;       // Over ranks and micro-batches.
  int64_t global_batch = 0;
  bool bf16 = false;
  bool smooth = true;     // Small differences of gradients make small differences of updates.
  bool has_base = false;  // Adapters train, and the rest of the model is read from a folder.

  std::string Describe(int seed) const {
    return absl::StrCat("seed ", seed, ": ", model, "; ", data, "; ", absl::StrJoin(overrides, " "), " ",
                        absl::StrJoin(recomputation, " "), " ", absl::StrJoin(division, " "));
  }
};

class RandomTextJobs : public TextDataTest {
 protected:
  using Random = std::mt19937_64;

  static int64_t Pick(Random& random, int64_t n) { return static_cast<int64_t>(random() % n); }
  static const char* OneOf(Random& random, const std::vector<const char*>& of) {
    return of[Pick(random, std::ssize(of))];
  }

  static std::string Words(Random& random, int64_t most) {
    std::string text;
    for (int64_t i = Pick(random, most); i >= 0; --i) {
      absl::StrAppend(
          &text, OneOf(random, {"the", "fox", "\u00E9t\u00E9", "it's", "jumps", "42", "\u4F60\u597D", "zzz"}), " ");
    }
    return text;
  }
  static std::string Row(Random& random, int64_t kind) {
    if (kind == 0) return absl::StrCat("{\"text\": \"", Words(random, 25), "\"}\n");
    if (kind == 1) {
      return absl::StrCat("{\"prompt\": \"", Words(random, 9), "\", \"completion\": \"", Words(random, 9), "\"}\n");
    }
    std::string chat = "{\"messages\": [";
    const auto add = [&](const char* role) {
      absl::StrAppend(&chat, "{\"role\": \"", role, "\", \"content\": \"", Words(random, 6), "\"}");
    };
    if (Pick(random, 3) == 0) {
      add("system");
      chat += ", ";
    }
    for (int64_t turn = Pick(random, 3); turn >= 0; --turn) {
      add("user");
      chat += ", ";
      add("assistant");
      chat += turn > 0 ? ", " : "]}\n";
    }
    return chat;
  }
  // Writes the data of a job. Returns what names them.
  std::string WriteData(Random& random) {
    const auto write = [&](const std::string& name, int64_t kind) {
      std::string rows;
      for (int i = 0; i < 24; ++i) rows += Row(random, kind < 3 ? kind : Pick(random, 3));
      folder_.Write(name, rows);
    };
    write("a.jsonl", Pick(random, 4));
    std::string data = "path: \"a.jsonl\" tokenizer: \"tokenizer\"";
    for (const char* name : {"b.jsonl", "c.jsonl"}) {
      if (Pick(random, 2) == 0) continue;
      write(name, Pick(random, 4));
      absl::StrAppend(&data, " mix: \"", 1 + Pick(random, 499), " ", name, "\"");
    }
    return data;
  }

  // Writes a model with the decoder of a job as a Hugging Face folder. Returns false if no family has such a model.
  bool WriteBase(const TextJob& job, const std::string& folder) {
    std::vector<std::string> overrides = job.overrides;
    const int64_t vocabulary = Tokenizer::Load(folder_.Path("tokenizer"))->vocabulary();
    overrides.push_back(absl::StrCat("model.decoder.vocabulary=", vocabulary));
    const absl::StatusOr<Job> parsed = ParseSmallJob(job.data, job.model, overrides);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!parsed.ok()) return false;
    const auto read = [](absl::string_view parameter, int64_t begin, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t at = begin + static_cast<int64_t>(i);
        values[i] = static_cast<float>((at * 37 + std::ssize(parameter) * 11) % 101 - 50) * 0.004f;
        if (absl::EndsWith(parameter, "norm.weight")) values[i] += 1;
      }
      return absl::OkStatus();
    };
    std::filesystem::remove_all(folder);
    return ExportHf(std::get<DecoderConfig>(parsed->model), {}, read, folder).ok();
  }
  // Lets all parameters of a job train, some of them, or adapters.
  void ChooseWhatTrains(Random& random, TextJob& job) {
    const int64_t choice = Pick(random, 5);
    if (choice < 2) return;
    if (choice == 2) {
      job.overrides.push_back("optimizer.train_only=[blocks.0.*, *norm*]");
    } else {
      job.has_base = Pick(random, 3) != 0 && WriteBase(job, folder_.Path("base"));
      if (job.has_base) job.model = "hf_folder: \"base\"";
      absl::StrAppend(&job.model, " adapter { rank: ", 1 + Pick(random, 4), " alpha: ", 1 + Pick(random, 8),
                      Pick(random, 2) == 0 ? " rank_stabilized: true" : "",
                      OneOf(random, {"", "", " targets: \"blocks.0.*\"", " targets: \"attention.*\""}), " }");
    }
    job.overrides.push_back(
        absl::StrCat("optimizer.frozen_weights=", OneOf(random, {"AS_COMPUTED", "BF16", "NF4", "NF4"})));
  }

  // Gives a job matmuls in fp8, and sizes that these need.
  static void TakeFloat8(Random& random, TextJob& job) {
    absl::StrReplaceAll({{"width: 16", "width: 64"}, {"hidden: 24", "hidden: 48"}}, &job.model);
    for (std::string& override : job.overrides) {
      if (absl::StartsWith(override, "batch.sequence_length=")) override = "batch.sequence_length=32";
    }
    job.overrides.push_back("precision.matmuls=FP8");
    if (Pick(random, 2) == 0) job.overrides.push_back("precision.fp8_gradients=E4M3");
    if (Pick(random, 2) == 0) job.overrides.push_back("precision.fp8_scaling=BLOCKWISE");
  }

  // Adds an override in one of so many cases. Returns whether it has.
  static bool Sometimes(Random& random, int64_t one_of, const char* override, std::vector<std::string>& to) {
    const bool chosen = Pick(random, one_of) == 0;
    if (chosen) to.push_back(override);
    return chosen;
  }

  // Chooses the rule of the update, dtypes, and whether updates are in backward, which it returns.
  static bool ChooseUpdate(Random& random, TextJob& job) {
    const absl::string_view rule =
        OneOf(random, {"ADAMW", "ADAMW", "ADAMW", "SGD", "LION", "ADAMW_8BIT", "ADAFACTOR", "MUON"});
    job.overrides.push_back(absl::StrCat("optimizer.rule=", rule));
    // A large epsilon, so that AdamW too is smooth.
    if (rule == "ADAMW" || rule == "ADAMW_8BIT") job.overrides.push_back("optimizer.epsilon=1e-3");
    job.smooth = rule == "ADAMW" || rule == "SGD" || rule == "ADAFACTOR";
    if (rule != "ADAMW_8BIT" && Sometimes(random, 4, "optimizer.moments=BF16", job.overrides)) job.smooth = false;
    job.bf16 = Sometimes(random, 3, "precision.compute=BF16", job.overrides);
    if (job.bf16) Sometimes(random, 2, "precision.master=SPLIT", job.overrides);
    if (job.bf16) Sometimes(random, 2, "precision.fp32_logits=true", job.overrides);
    const bool composed = rule == "ADAFACTOR" || rule == "MUON";
    const bool in_backward = !composed && Sometimes(random, 3, "optimizer.update=IN_BACKWARD", job.overrides);
    if (in_backward) {
      job.overrides.insert(job.overrides.end(), {"optimizer.max_gradient_norm=0", "optimizer.non_finite=SKIP"});
    }
    return in_backward;
  }

  // Gives some jobs without adapters groups of the optimizer. Block 0 trains, whatever else does.
  static void ChooseGroups(Random& random, bool in_backward, TextJob& job) {
    if (job.model.find("adapter") != std::string::npos || Pick(random, 3) != 0) return;
    job.overrides.push_back(absl::StrCat("optimizer.groups={parameters: \"blocks.0.*norm*\" rule: SGD momentum: 0.5 ",
                                         "learning_rate_factor: 0.25",
                                         in_backward ? "}" : " max_gradient_norm: 0.05}"));
    job.overrides.push_back(absl::StrCat("optimizer.groups={parameters: \"blocks.0.*\" rule: ",
                                         OneOf(random, {"ADAMW epsilon: 1e-3", "SGD nesterov: true"}),
                                         " learning_rate_factor: 0.5 weight_decay: 0}"));
  }

  // Gives some jobs in bf16 whose loss can be scaled fp16.
  static void ChooseFp16(Random& random, TextJob& job) {
    const bool scales = std::none_of(job.overrides.begin(), job.overrides.end(), [](absl::string_view override) {
      return override == "precision.master=SPLIT" || override == "optimizer.update=IN_BACKWARD" ||
             absl::StartsWith(override, "optimizer.frozen_weights=");
    });
    if (job.bf16 && scales && Pick(random, 2) == 0) {
      std::replace(job.overrides.begin(), job.overrides.end(), std::string("precision.compute=BF16"),
                   std::string("precision.compute=FP16"));
    }
  }

  static void ChooseDivision(Random& random, TextJob& job) {
    const std::vector<std::pair<const char*, const char*>> pairs = {
        {"DDP", "NO_SYNC"},        {"DDP", "LAYERED"},        {"ZERO1", "NO_SYNC"},
        {"ZERO1", "LAYERED"},      {"ZERO2", "SHARDED"},      {"ZERO2", "LAYERED"},
        {"FULL_SHARD", "SHARDED"}, {"FULL_SHARD", "NO_SYNC"}, {"FULL_SHARD", "LAYERED"}};
    const auto& [strategy, accumulation] = pairs[Pick(random, std::ssize(pairs))];
    const int64_t ranks = 1 + Pick(random, 4);
    job.division = {absl::StrCat("sharding.ranks=", ranks), absl::StrCat("sharding.strategy=", strategy),
                    absl::StrCat("sharding.accumulation=", accumulation),
                    absl::StrCat("batch.micro_batch=", 1 + Pick(random, 3))};
    if (ranks == 4 && strategy[0] != 'D' && Pick(random, 2) == 0) job.division.push_back("sharding.shard_ranks=2");
    if (strategy[0] != 'D' && Sometimes(random, 3, "precision.reduce=BF16", job.overrides)) job.smooth = false;
  }

  TextJob Make(Random& random) {
    TextJob job;
    const std::string data = WriteData(random);
    const absl::string_view packing = OneOf(random, {"CUT", "PACK", "PACK", "PAD"});
    job.data =
        absl::StrCat(data, " packing: ", packing, " loss_on: ", OneOf(random, {"COMPLETIONS", "COMPLETIONS", "ALL"}),
                     " order: ", OneOf(random, {"SHUFFLED", "SEQUENTIAL"}));
    const int64_t length = 12 + Pick(random, 30);
    // A short beginning of every document may hold nothing that counts.
    if (length > 30 && Pick(random, 2) == 0 && packing != "CUT") job.data += " long_documents: TRUNCATE";
    const int64_t layers = 1 + Pick(random, 3);
    // Layers with a window need one.
    const bool mixed = Pick(random, 4) == 0, has_window = mixed || Pick(random, 3) == 0;
    job.model = absl::StrCat(
        "decoder { family: ",
        OneOf(random, {"LLAMA", "GPT2", "QWEN2", "QWEN3", "MISTRAL", "FALCON", "GEMMA2", "GEMMA3", "STARCODER2"}),
        " width: 16 layers: ", layers, " heads: 4 hidden: 24 init_std: 0.1 ", has_window ? "attention_window: 5 " : "",
        mixed ? "layer_pattern: \"WF\" attention_cap: 0.5 logit_cap: 3 " : "", "}");
    job.global_batch = 1 + Pick(random, 7);
    job.overrides = {absl::StrCat("batch.global_batch=", job.global_batch),
                     absl::StrCat("batch.sequence_length=", length), "checkpoint.every_steps=2"};
    const bool in_backward = ChooseUpdate(random, job);
    if (job.bf16 && Pick(random, 2) == 0) TakeFloat8(random, job);  // Before a base gets its sizes.
    job.recomputation.push_back(absl::StrCat("activation_checkpointing.preset=",
                                             OneOf(random, {"CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"})));
    if (layers > 1 && Pick(random, 2) == 0) job.recomputation.push_back("activation_checkpointing.segment_blocks=2");
    ChooseWhatTrains(random, job);
    ChooseGroups(random, in_backward, job);
    ChooseFp16(random, job);
    ChooseDivision(random, job);
    return job;
  }

  Run TrainWith(const TextJob& job, const std::vector<std::vector<std::string>>& parts,
                const std::string& checkpoints = "", const ResumeOptions& resume = {}) {
    std::vector<std::string> overrides = job.overrides;
    for (const auto& part : parts) overrides.insert(overrides.end(), part.begin(), part.end());
    absl::StatusOr<Job> parsed = ParseSmallJob(job.data, job.model, overrides);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!parsed.ok()) return {.status = parsed.status()};
    parsed->data.cache = folder_.Path("tokens");
    return Train(*parsed, checkpoints, resume);
  }
};

void ExpectEqualBits(const std::vector<StepReport>& a, const std::vector<StepReport>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].step, b[i].step);
    EXPECT_EQ(a[i].loss, b[i].loss) << "step " << a[i].step;
    // A step that is skipped, because its loss scale is too large, may have a norm that is not a number.
    if (!std::isnan(a[i].gradient_norm) || !std::isnan(b[i].gradient_norm)) {
      EXPECT_EQ(a[i].gradient_norm, b[i].gradient_norm) << "step " << a[i].step;
    }
    EXPECT_EQ(a[i].step_tokens, b[i].step_tokens) << "step " << a[i].step;
  }
}

// The fixture compares the measured peak of every step with the plan.
TEST_F(RandomTextJobs, ObeyEveryLaw) {
  WriteTemplate();
  const int first = NumberIn("SHALE_FIRST_TEXT_JOB", 0), jobs = NumberIn("SHALE_TEXT_JOBS", 5);
  for (int seed = first; seed < first + jobs; ++seed) {
    Random random(seed);
    const TextJob job = Make(random);
    SCOPED_TRACE(job.Describe(seed));
    const std::string saved = absl::StrCat("saved", seed);
    const Run run = TrainWith(job, {job.division}, saved);
    ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_EQ(run.steps.size(), 4);
    const Run resumed = TrainWith(job, {job.division}, "", From(saved, 2));
    ASSERT_TRUE(resumed.status.ok()) << resumed.status;
    ExpectEqualBits(resumed.steps, {run.steps.begin() + 2, run.steps.end()});
    const Run recomputed = TrainWith(job, {job.division, job.recomputation});
    ASSERT_TRUE(recomputed.status.ok()) << recomputed.status;
    ExpectEqualBits(recomputed.steps, run.steps);
    EXPECT_EQ(CheckpointReader::Open(From(saved, 2).path)->manifest().base.has_value(), job.has_base);

    // One batch on one rank.
    const std::vector<std::string> undivided = {"sharding.ranks=1",
                                                absl::StrCat("batch.micro_batch=", job.global_batch)};
    const Run whole = TrainWith(job, {undivided});
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    // In fp32, sums of some hundred terms in another order, through four steps. In bf16, and with what rounds or
    // takes signs, only the first step has the same weights.
    const double tolerance = job.bf16 ? 2e-2 : 1e-4;
    for (size_t i = 0; i < whole.steps.size(); ++i) {
      EXPECT_EQ(whole.steps[i].step_tokens, run.steps[i].step_tokens) << i;
      if (i > 0 && (job.bf16 || !job.smooth)) continue;
      EXPECT_NEAR(whole.steps[i].loss, run.steps[i].loss, tolerance * std::abs(run.steps[i].loss)) << i;
    }
    if (job.has_base) {
      // One rank goes on from what the others saved, and reads the whole base.
      const Run gathered = TrainWith(job, {undivided}, "", From(saved, 2));
      ASSERT_TRUE(gathered.status.ok()) << gathered.status;
      EXPECT_NEAR(gathered.steps[0].loss, run.steps[2].loss, tolerance * std::abs(run.steps[2].loss));
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace shale
