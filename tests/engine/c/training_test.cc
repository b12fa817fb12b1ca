// Tests that the C interface trains, resumes, generates and exports with the bits of the C++ interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "engine/shale.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "tests/engine/c/c_fixture.h"

namespace shale {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Trains a job with the C++ interface. Returns the losses.
std::vector<double> LossesInCpp(const std::string& text, std::vector<float>* head) {
  const absl::StatusOr<Job> job = ParseJobText(text, "job.textproto");
  EXPECT_TRUE(job.ok()) << job.status();
  const auto backend = CreateBackend(*job);
  const auto trainer = Trainer::Create(*job, {.backend = backend->get()});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  std::vector<double> losses;
  while (!(*trainer)->done()) losses.push_back((*trainer)->Step()->loss);
  EXPECT_TRUE((*trainer)->state().ReadParameter("head.weight", absl::MakeSpan(*head)).ok());
  return losses;
}

TEST_F(CTest, TrainsToTheBitsOfCpp) {
  const std::string text = kSmallJob + OnText();
  std::vector<float> expected(256 * 8), head(256 * 8);
  const std::vector<double> losses = LossesInCpp(text + kMlp, &expected);
  ASSERT_THAT(losses, SizeIs(6));
  const shale_model mlp = Mlp();
  for (const bool in_c : {false, true}) {
    const shale_job job = Parse(in_c ? text : text + kMlp, in_c ? SHALE_MODEL_FROM_PROGRAM : 0);
    ASSERT_NE(job, 0) << error_.message;
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    if (in_c) options.model = &mlp;
    const shale_trainer trainer = Create(job, options);
    ASSERT_NE(trainer, 0) << error_.message;
    ASSERT_EQ(shale_job_free(job, &error_), SHALE_OK);
    EXPECT_EQ(Losses(trainer), losses);
    EXPECT_EQ(shale_trainer_read_parameter(trainer, "head.weight", 0, head.data(), std::ssize(head), &error_), SHALE_OK)
        << error_.message;
    EXPECT_EQ(head, expected);
    EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK);
  }
}

// Each of these leaves the most likely token alone, so all draw the same.
void ExpectSampling(shale_generator generator, const int32_t* prompt, size_t tokens) {
  const auto keep = [](void* user, int32_t token) {
    static_cast<std::vector<int32_t>*>(user)->push_back(token);
    return 0;
  };
  const auto draw = [&](const shale_sampling& sampling) {
    std::vector<int32_t> drawn;
    shale_error error = SHALE_INIT(shale_error);
    EXPECT_EQ(shale_generator_generate(generator, prompt, tokens, 8, &sampling, keep, &drawn, &error), SHALE_OK)
        << error.message;
    return drawn;
  };
  shale_sampling greedy = SHALE_INIT(shale_sampling);
  const std::vector<int32_t> expected = draw(greedy);
  EXPECT_THAT(expected, SizeIs(8));
  shale_sampling sampling = SHALE_INIT(shale_sampling);
  sampling.temperature = 1;
  sampling.top_p = 1e-9;
  EXPECT_EQ(draw(sampling), expected);
  sampling.top_p = 0;
  sampling.min_p = 1;
  EXPECT_EQ(draw(sampling), expected);
  // What the text has already is never the most likely any more.
  greedy.repetition_penalty = 1e6;
  EXPECT_NE(draw(greedy), expected);
  shale_error error = SHALE_INIT(shale_error);
  sampling.min_p = 2;
  EXPECT_EQ(shale_generator_generate(generator, prompt, tokens, 8, &sampling, keep, nullptr, &error),
            SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "min_p is 2; wanted a number from 0 to 1");
}

// Text is that of the tokens, up to where a stop text begins. No piece shows a part of one.
void ExpectText(shale_generator generator, const std::string& prompt) {
  shale_error error = SHALE_INIT(shale_error);
  const auto keep = [](void* user, int32_t token) {
    static_cast<std::string*>(user)->push_back(static_cast<char>(token));
    return 0;
  };
  shale_sampling sampling = SHALE_INIT(shale_sampling);
  sampling.temperature = 1;
  sampling.top_k = 3;  // The most likely tokens are characters of the text.
  int32_t tokens[16];
  size_t count = 0;
  ASSERT_EQ(shale_generator_encode(generator, prompt.c_str(), tokens, 16, &count, &error), SHALE_OK) << error.message;
  std::string whole;
  ASSERT_EQ(shale_generator_generate(generator, tokens, count, 30, &sampling, keep, &whole, &error), SHALE_OK);
  ASSERT_EQ(whole.size(), 30);
  const auto text = [&](std::vector<const char*> stops, size_t most_pieces) {
    std::pair<std::vector<std::string>, size_t> shown = {{}, most_pieces};
    const auto show = [](void* user, const char* piece, size_t bytes) {
      auto& [pieces, most] = *static_cast<std::pair<std::vector<std::string>, size_t>*>(user);
      pieces.emplace_back(piece, bytes);
      return pieces.size() < most ? 0 : 1;
    };
    EXPECT_EQ(shale_generator_generate_text(generator, prompt.c_str(), 30, &sampling, stops.data(), stops.size(), show,
                                            &shown, &error),
              SHALE_OK)
        << error.message;
    return absl::StrJoin(shown.first, "");
  };
  EXPECT_EQ(text({}, 100), whole);
  EXPECT_EQ(text({}, 1), whole.substr(0, 1));
  for (const int length : {1, 2, 5}) {
    const std::string stop = whole.substr(7, length);
    EXPECT_EQ(text({"never said", stop.c_str()}, 100), whole.substr(0, whole.find(stop)));
  }
  // What only begins a stop text is shown when the text ends.
  EXPECT_EQ(text({(whole.substr(27) + "?").c_str()}, 100), whole);

  const auto ignore = [](void*, const char*, size_t) { return 0; };
  const char* const none[] = {nullptr};
  EXPECT_EQ(shale_generator_generate_text(generator, "a", 1, nullptr, none, 1, ignore, nullptr, &error),
            SHALE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "stops[0] is NULL");
  EXPECT_EQ(shale_generator_generate_text(generator, "a", 1, nullptr, nullptr, 1, ignore, nullptr, &error),
            SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_generator_generate_text(generator, "a", 1, nullptr, nullptr, 0, nullptr, nullptr, &error),
            SHALE_INVALID_ARGUMENT);
  EXPECT_EQ(shale_generator_set_tokenizer(generator, "/no/such/folder", &error), SHALE_NOT_FOUND);
}

// With a tokenizer, tokens are its own, special ones are not shown, and its end of text ends a text.
void ExpectTokenizer(shale_generator generator, const std::string& folder) {
  shale_error error = SHALE_INIT(shale_error);
  ASSERT_EQ(shale_generator_set_tokenizer(generator, folder.c_str(), &error), SHALE_OK) << error.message;
  int32_t tokens[4];
  size_t count = 0;
  ASSERT_EQ(shale_generator_encode(generator, "ab<|end|>", tokens, 4, &count, &error), SHALE_OK) << error.message;
  EXPECT_EQ(count, 3);
  std::string text;
  const auto add = [](void* user, const char* piece, size_t bytes) {
    static_cast<std::string*>(user)->append(piece, bytes);
    return 0;
  };
  EXPECT_EQ(shale_generator_generate_text(generator, "ab", 4, nullptr, nullptr, 0, add, &text, &error), SHALE_OK)
      << error.message;
  EXPECT_LE(text.size(), 4 * 3);  // A token is a byte, and one that is no character is shown as U+FFFD.
}

// Returns what follows a prompt, up to the fifth token, where the callback ends generation.
std::vector<int32_t> DrawFive(shale_generator generator, const int32_t* prompt, size_t tokens) {
  const auto keep = [](void* user, int32_t token) {
    auto& kept = *static_cast<std::vector<int32_t>*>(user);
    kept.push_back(token);
    return kept.size() < 5 ? 0 : 1;
  };
  std::vector<int32_t> drawn;
  shale_error error = SHALE_INIT(shale_error);
  EXPECT_EQ(shale_generator_generate(generator, prompt, tokens, 20, nullptr, keep, &drawn, &error), SHALE_OK)
      << error.message;
  return drawn;
}

TEST_F(CTest, ResumesGeneratesAndExports) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  const shale_trainer straight = Create(job, options);
  const std::vector<double> losses = Losses(straight);
  shale_trainer_free(straight, nullptr);

  const std::string checkpoints = Path("checkpoints");
  options.checkpoint_folder = checkpoints.c_str();
  options.resume = SHALE_RESUME_LATEST_OR_START;
  shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  char path[4096];
  ASSERT_EQ(shale_trainer_save(trainer, path, sizeof(path), nullptr, &error_), SHALE_OK) << error_.message;
  shale_trainer_free(trainer, nullptr);

  trainer = Create(job, options);
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  ASSERT_EQ(shale_trainer_get_state(trainer, &state, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(state.resumed_from_step, 3);
  EXPECT_EQ(state.steps_done, 3);
  EXPECT_EQ(state.total_steps, 6);
  EXPECT_EQ(Losses(trainer), std::vector<double>(losses.begin() + 3, losses.end()));
  shale_trainer_free(trainer, nullptr);

  const std::vector<std::string> special = {"<|end|>"};
  std::ofstream(Path("tokenizer.json")) << TokenizerJson(TrainBpe({}, special, 257, 1), special, kGpt2Pattern);
  // The folder of checkpoints and the checkpoint in it give the same.
  std::vector<int32_t> drawn[2];
  const char* const folders[] = {checkpoints.c_str(), path};
  for (int i = 0; i < 2; ++i) {
    shale_generator generator = 0;
    ASSERT_EQ(shale_generator_create(folders[i], nullptr, &generator, &error_), SHALE_OK) << error_.message;
    int32_t prompt[16];
    size_t tokens = 0;
    ASSERT_EQ(shale_generator_encode(generator, "the quick", prompt, 16, &tokens, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(tokens, 9);
    drawn[i] = DrawFive(generator, prompt, tokens);
    ExpectSampling(generator, prompt, tokens);
    ExpectText(generator, "the quick");
    ExpectTokenizer(generator, Path(""));
    EXPECT_EQ(shale_generator_free(generator, &error_), SHALE_OK);
    ASSERT_EQ(shale_export_parameters(folders[i], SHALE_BF16, Path("model.safetensors").c_str(), &error_), SHALE_OK)
        << error_.message;
  }
  EXPECT_THAT(drawn[0], SizeIs(5));
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_EQ(shale_export_adapter(path, SHALE_F32, Path("adapter").c_str(), &error_), SHALE_FAILED_PRECONDITION);
  EXPECT_THAT(error_.message, HasSubstr("the model has no adapters (model.adapter)"));
  EXPECT_EQ(shale_export_parameters_with_base(path, Path("base").c_str(), SHALE_F32, "unused", &error_),
            SHALE_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("holds all weights of its model"));
  shale_job_free(job, nullptr);
}

// Regression: the forked process waited forever for threads that only its parent has, also at its end, when it freed
// the trainer.
TEST_F(CTest, AForkedProcessRefusesTrainers) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  const shale_trainer trainer = Create(job, SHALE_INIT(shale_trainer_options));
  ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  const pid_t child = fork();
  if (child == 0) {
    size_t needed = 0;
    shale_trainer other = 0;
    shale_generator generator = 0;
    const shale_code codes[] = {shale_trainer_step(trainer, nullptr, &error_),
                                shale_trainer_request_stop(trainer, &error_), shale_trainer_free(trainer, &error_),
                                shale_trainer_create(job, nullptr, &other, &error_),
                                shale_generator_create("nowhere", nullptr, &generator, &error_)};
    bool refused = absl::StrContains(error_.message, "this process was forked from one that had used a trainer");
    for (const shale_code code : codes) refused = refused && code == SHALE_FAILED_PRECONDITION;
    _exit(refused && shale_job_text(job, nullptr, 0, &needed, &error_) == SHALE_OK ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK);
  shale_job_free(job, nullptr);
}

// Regression: telemetry.sinks was ignored.
TEST_F(CTest, EventsGoWhereTheJobSays) {
  const std::string text = kSmallJob + OnText() + kMlp;
  const auto sinks = [&](const std::string& events) {
    return Parse(absl::StrCat(text, "telemetry { sinks { events: \"", events, "\" } }"));
  };
  const shale_trainer trainer = Create(sinks(Path("events.jsonl")), SHALE_INIT(shale_trainer_options));
  ASSERT_NE(trainer, 0) << error_.message;
  EXPECT_EQ(shale_trainer_run(trainer, nullptr, nullptr, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(shale_trainer_free(trainer, &error_), SHALE_OK) << error_.message;
  std::ifstream file(Path("events.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(file, line);) steps += absl::StrContains(line, "\"event\": \"step\"") ? 1 : 0;
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(Create(sinks("events.jsonl"), SHALE_INIT(shale_trainer_options)), 0);
  EXPECT_THAT(error_.message,
              HasSubstr("telemetry.sinks.events: found \"events.jsonl\", which begins in a run folder"));
  EXPECT_EQ(Create(sinks(Path("text/events")), SHALE_INIT(shale_trainer_options)), 0);
  EXPECT_THAT(error_.message, HasSubstr("telemetry.sinks.events: "));
}

TEST_F(CTest, ALoopOfOnesOwn) {
  const char* const override = "runtime.generate=true";
  shale_job job = 0;
  shale_job_parse(absl::StrCat(kSmallJob, kMlp).c_str(), nullptr, &override, 1, 0, &job, &error_);
  ASSERT_NE(job, 0) << error_.message;
  const shale_data data = MadeUp();
  std::string events;
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.data = &data;
  options.on_event_user = &events;
  options.on_event = [](void* user, const char* json) { static_cast<std::string*>(user)->append(json); };
  const shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;

  // Nothing moves at a rate of 0 but the moments.
  float before[8], after[8], moments[8];
  ASSERT_EQ(shale_trainer_read_parameter(trainer, "head.weight", 16, before, 8, &error_), SHALE_OK) << error_.message;
  const double none = 0;
  ASSERT_EQ(shale_trainer_set_learning_rate(trainer, &none, &error_), SHALE_OK) << error_.message;
  ASSERT_EQ(shale_trainer_add_metric(trainer, "reward", 0.25, &error_), SHALE_OK) << error_.message;
  ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  ASSERT_EQ(shale_trainer_read_parameter(trainer, "head.weight", 16, after, 8, &error_), SHALE_OK);
  EXPECT_THAT(after, ElementsAreArray(before));
  char states[64];
  ASSERT_EQ(shale_trainer_optimizer_states(trainer, states, sizeof(states), nullptr, &error_), SHALE_OK);
  EXPECT_STREQ(states, "m\nv");
  int64_t count = 0;
  ASSERT_EQ(shale_trainer_optimizer_state_count(trainer, "m", "head.weight", &count, &error_), SHALE_OK);
  EXPECT_GT(count, 24);
  EXPECT_EQ(shale_trainer_optimizer_state_count(trainer, "momentum", "head.weight", &count, &error_), SHALE_NOT_FOUND);
  ASSERT_EQ(shale_trainer_read_optimizer_state(trainer, "m", "head.weight", 16, moments, 8, &error_), SHALE_OK);
  EXPECT_THAT(moments, Not(Each(0.0f)));
  ASSERT_EQ(shale_trainer_write_optimizer_state(trainer, "m", "head.weight", 16, before, 8, &error_), SHALE_OK);
  ASSERT_EQ(shale_trainer_read_optimizer_state(trainer, "m", "head.weight", 16, moments, 8, &error_), SHALE_OK);
  EXPECT_THAT(moments, ElementsAreArray(before));

  // Other data, the schedule again, and tokens from the weights as they are.
  int64_t next = 5;
  shale_data other = MadeUp();
  other.name = "other";
  other.user = &next;
  ASSERT_EQ(shale_trainer_set_learning_rate(trainer, nullptr, &error_), SHALE_OK);
  ASSERT_EQ(shale_trainer_set_data(trainer, &other, &error_), SHALE_OK) << error_.message;
  ASSERT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_OK) << error_.message;
  EXPECT_GT(next, 5);
  ASSERT_EQ(shale_trainer_read_parameter(trainer, "head.weight", 16, after, 8, &error_), SHALE_OK);
  EXPECT_THAT(after, Not(ElementsAreArray(before)));
  const int32_t prompt[] = {1, 2, 3};
  std::vector<int32_t> drawn;
  const auto keep = [](void* user, int32_t token) {
    static_cast<std::vector<int32_t>*>(user)->push_back(token);
    return 0;
  };
  ASSERT_EQ(shale_trainer_generate(trainer, prompt, 3, 4, nullptr, keep, &drawn, &error_), SHALE_OK) << error_.message;
  EXPECT_THAT(drawn, SizeIs(4));
  shale_trainer_free(trainer, nullptr);
  EXPECT_THAT(events, HasSubstr("\"reward\": 0.25"));
  shale_job_free(job, nullptr);
}

TEST_F(CTest, PlansToTheByte) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  shale_plan plan = 0;
  ASSERT_EQ(shale_plan_create(job, nullptr, &plan, &error_), SHALE_OK) << error_.message;
  shale_plan_summary summary = SHALE_INIT(shale_plan_summary);
  ASSERT_EQ(shale_plan_get_summary(plan, &summary, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(summary.ranks, 2);
  EXPECT_EQ(summary.micro_batches, 1);
  EXPECT_EQ(summary.parameters, 256 * 4 + 32 * 8 + 8 + 8 * 256 + 256);
  const shale_trainer trainer = Create(job, SHALE_INIT(shale_trainer_options));
  shale_step_report report = SHALE_INIT(shale_step_report);
  ASSERT_EQ(shale_trainer_step(trainer, &report, &error_), SHALE_OK) << error_.message;
  EXPECT_EQ(report.peak_bytes_measured, summary.peak_bytes);
  for (int32_t form = SHALE_PLAN_TEXT; form <= SHALE_PLAN_HTML; ++form) {
    size_t needed = 0, of_trainer = 0;
    ASSERT_EQ(shale_plan_text(plan, form, nullptr, 0, &needed, &error_), SHALE_OK) << error_.message;
    ASSERT_EQ(shale_trainer_plan_text(trainer, form, nullptr, 0, &of_trainer, &error_), SHALE_OK) << error_.message;
    EXPECT_GT(needed, 1000u);
    EXPECT_EQ(needed, of_trainer);
  }
  shale_trainer_free(trainer, nullptr);
  shale_plan_free(plan, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(CTest, AStepTellsOfTheLossScale) {
  const std::string precision = "precision { compute: FP16 init_scale: 1e30 }\n";
  const shale_job job = Parse(absl::StrReplaceAll(kSmallJob, {{"ONEDNN", "PACKED"}}) + precision + OnText() + kMlp);
  const shale_trainer trainer = Create(job, SHALE_INIT(shale_trainer_options));
  for (int64_t skips = 1; skips <= 2; ++skips) {
    shale_step_report report = SHALE_INIT(shale_step_report);
    ASSERT_EQ(shale_trainer_step(trainer, &report, &error_), SHALE_OK) << error_.message;
    EXPECT_EQ(report.updated, 0);
    EXPECT_EQ(report.skips, skips);
    EXPECT_DOUBLE_EQ(report.loss_scale, std::ldexp(1e30, static_cast<int>(-skips)));
  }
  shale_trainer_free(trainer, nullptr);
  shale_job_free(job, nullptr);
}

TEST_F(CTest, RunSavesStopsAndTellsItsEvents) {
  const shale_job job = Parse(kSmallJob + OnText() + kMlp);
  const std::string checkpoints = Path("checkpoints");
  std::vector<std::string> events;
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.checkpoint_folder = checkpoints.c_str();
  options.on_event_user = &events;
  options.on_event = [](void* user, const char* json) {
    static_cast<std::vector<std::string>*>(user)->push_back(json);
  };
  const shale_trainer trainer = Create(job, options);
  ASSERT_NE(trainer, 0) << error_.message;
  const auto until_two = [](void*, const shale_step_report* report) { return report->step < 2 ? 0 : 1; };
  ASSERT_EQ(shale_trainer_run(trainer, until_two, nullptr, &error_), SHALE_OK) << error_.message;
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  shale_trainer_get_state(trainer, &state, nullptr);
  EXPECT_EQ(state.steps_done, 2);
  EXPECT_EQ(state.done, 1);
  EXPECT_EQ(shale_trainer_step(trainer, nullptr, &error_), SHALE_FAILED_PRECONDITION);
  shale_trainer_free(trainer, nullptr);  // Waits for the events.
  shale_job_free(job, nullptr);
  std::string kinds;
  constexpr absl::string_view kBegin = "{\"event\": \"";
  for (const absl::string_view event : events) {
    ASSERT_TRUE(absl::StartsWith(event, kBegin)) << event;
    const absl::string_view rest = event.substr(kBegin.size());
    absl::StrAppend(&kinds, rest.substr(0, rest.find('"')), " ");
  }
  EXPECT_THAT(kinds, HasSubstr("step step checkpoint finished"));
}

}  // namespace
}  // namespace shale
