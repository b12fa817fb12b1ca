// Laws of generation with a cache ([Note: generation] in engine/plan/planner/generation.h).
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner/generation.h"
#include "engine/run/generate/next_tokens.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/generation_rig.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

using Setting = GenerationSetting;
using Rig = GenerationRig;

std::vector<int32_t> Text(int64_t length, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % SmallDecoder().vocabulary);
  return tokens;
}

std::vector<int32_t> Part(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

// Expects that logits agree but for the order of fp32 sums of a few dozen terms, or in bf16 for its 8 bits through
// three blocks. A token that is seen too much or too little moves them by about 1.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, ComputePrecision precision) {
  ASSERT_EQ(got.size(), want.size());
  const double tolerance = precision == ComputePrecision::kFloat32 ? 2e-5 : 0.1;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

std::vector<Setting> Settings() {
  std::vector<Setting> all = {{.name = "rotary, grouped heads"}};
  const auto add = [&](const std::string& name, const std::function<void(Setting&)>& change) {
    Setting setting{.name = name};
    change(setting);
    all.push_back(setting);
  };
  add("learned positions", [](Setting& s) {
    s.model.position = PositionKind::kLearned;
    s.model.norm = NormKind::kLayerNorm;
    s.model.activation = Activation::kGeluTanh;
    s.model.qkv_bias = s.model.linear_bias = s.model.tied_head = true;
  });
  add("window", [](Setting& s) { s.model.attention_window = 5; });
  add("parallel block with one key head", [](Setting& s) {
    s.model.kv_heads = 1;
    s.model.parallel_block = s.model.parallel_norms = true;
  });
  add("scaled rope, head norms", [](Setting& s) {
    s.model.qk_norm = true;
    s.model.rope_scaling = RopeScalingConfig{.original_context = 8};
  });
  add("two kinds of layers, soft caps", [](Setting& s) {
    s.model = GemmaLike(s.model);
    s.model.attention_window = 5;
  });
  add("adapters", [](Setting& s) { s.model.adapter = AdapterConfig{.rank = 3, .alpha = 3, .targets = {"*"}}; });
  add("bf16", [](Setting& s) { s.precision = ComputePrecision::kBFloat16; });
  add("fp16", [](Setting& s) { s.precision = ComputePrecision::kFloat16; });
  add("bf16 with logits in fp32", [](Setting& s) {
    s.precision = ComputePrecision::kBFloat16;
    s.fp32_logits = true;
  });
  add("three ranks", [](Setting& s) { s.ranks = 3; });
  return all;
}

// The law of generation: a token gets the logits that a program of the whole window computes for it, in whatever chunks
// the tokens come.
TEST(GenerationLaw, ACacheComputesWhatTheWholeWindowComputes) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name);
    Rig cached(setting, true), windows(setting, false);
    ASSERT_GT(cached.programs().size(), 1);
    const std::vector<int32_t> text = Text(setting.window);
    for (const std::vector<int64_t>& chunks :
         std::vector<std::vector<int64_t>>{std::vector<int64_t>(16, 1), {16}, {9, 1, 6}, {3, 12, 1}}) {
      cached.sequences().Restart();
      int64_t end = 0;
      for (const int64_t chunk : chunks) {
        const std::vector<float> got = cached.Append(Part(text, end, end + chunk));
        end += chunk;
        ExpectNear(got, windows.After(Part(text, 0, end)), setting.precision);
      }
    }
    EXPECT_EQ(cached.measured_peak_bytes(), cached.planned_peak_bytes());
  }
}

TEST(GenerationLaw, GreedyTokensAreThoseOfWholeWindows) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name);
    if (setting.precision != ComputePrecision::kFloat32) continue;
    Rig cached(setting, true), windows(setting, false);
    std::vector<int32_t> tokens[2];
    const auto generate = [](Rig& rig, std::vector<int32_t>& to) {
      const absl::Status status =
          NextTokens(rig.sequences()).Generate(Text(3), 14, {.temperature = 0}, [&](int32_t token) {
            to.push_back(token);
            return true;
          });
      EXPECT_TRUE(status.ok()) << status;
    };
    generate(cached, tokens[0]);
    generate(windows, tokens[1]);
    EXPECT_EQ(tokens[0].size(), 14);
    EXPECT_EQ(tokens[0], tokens[1]);
  }
}

// Sequences of different lengths share chunks, and a sequence without new tokens stays as it is, even if it is full.
TEST(GenerationLaw, SequencesDoNotChangeEachOther) {
  for (Setting setting : Settings()) {
    SCOPED_TRACE(setting.name);
    setting.size.sequences = 3;
    Rig together(setting, true), windows(setting, false);
    const std::vector<int32_t> a = Text(16, 1), b = Text(11, 2), c = Text(16, 3);
    const auto append = [&](const std::vector<std::vector<int32_t>>& tokens) {
      const absl::Status status = together.sequences().Append(tokens);
      EXPECT_TRUE(status.ok()) << status;
    };
    const auto expect = [&](int64_t sequence, const std::vector<int32_t>& context) {
      ExpectNear(together.Logits(sequence), windows.After(context), setting.precision);
    };
    append({a, Part(b, 0, 4), {}});
    append({{}, Part(b, 4, 5), Part(c, 0, 9)});
    expect(0, a);
    expect(1, Part(b, 0, 5));
    expect(2, Part(c, 0, 9));
    for (int i = 5; i < 11; ++i) append({{}, {b[i]}, {c[i + 4]}});
    append({{}, {}, {c[15]}});
    expect(0, a);
    expect(1, b);
    expect(2, c);
  }
}

// The prompt of several samples runs through programs of one sequence alone, and each goes on from it as if it had
// computed it by itself.
TEST(GenerationLaw, ThePromptOfSeveralSamplesIsComputedOnce) {
  for (Setting setting : Settings()) {
    SCOPED_TRACE(setting.name);
    setting.model.max_positions = setting.window = 24;
    Rig alone(setting, true);
    setting.size.sequences = 3;
    Rig together(setting, true);
    const std::vector<int32_t> prompt = Text(13);
    const std::vector<float> want = alone.Append(prompt);
    ASSERT_TRUE(together.sequences().Append(std::vector(3, prompt)).ok());
    int64_t peak_bytes = 0;
    for (const PlannedProgram& program : together.programs()) {
      if (program.graph.micro_batch == 1) peak_bytes = std::max(peak_bytes, program.memory.peak_bytes);
    }
    ASSERT_LT(peak_bytes, together.planned_peak_bytes());
    EXPECT_LE(together.measured_peak_bytes(), peak_bytes);
    for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(together.Logits(b), want) << b;
    // They part, so that each reads a copy of its own.
    for (int64_t end = 1; end <= 10; ++end) {
      std::vector<std::vector<int32_t>> tokens;
      for (int64_t b = 0; b < 3; ++b) tokens.push_back({Text(10, b + 5)[end - 1]});
      ASSERT_TRUE(together.sequences().Append(tokens).ok());
      if (end % 5 != 0) continue;
      for (int64_t b = 0; b < 3; ++b) {
        std::vector<int32_t> context = prompt;
        const std::vector<int32_t> own = Text(10, b + 5);
        context.insert(context.end(), own.begin(), own.begin() + end);
        ExpectNear(together.Logits(b), alone.After(context), setting.precision);
      }
    }
  }
}

// Whatever sequences have in common, keep and forget, each has the logits of its own tokens.
TEST(GenerationLaw, SequencesThatShareSomeTokensDoNotChangeEachOther) {
  std::mt19937_64 random(3);
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  for (Setting setting : Settings()) {
    SCOPED_TRACE(setting.name);
    setting.model.max_positions = setting.window = 70;
    if (setting.ranks > 1 || setting.precision != ComputePrecision::kFloat32) continue;
    setting.size.sequences = 3;
    Rig together(setting, true), windows(setting, false);
    std::vector<std::vector<int32_t>> held(3);
    for (int step = 0; step < 30; ++step) {
      if (step % 10 == 0) together.sequences().Restart();
      const std::vector<int32_t> common = Text(below(2) == 0 ? 0 : below(30), step);
      std::vector<std::vector<int32_t>> tokens(3);
      for (int64_t b = 0; b < 3; ++b) {
        const int64_t have = step % 10 == 0 ? 0 : std::ssize(held[b]);
        const int64_t kept = below(4) == 0 ? below(have + 1) : have;
        if (kept < have) together.sequences().Keep(b, kept);
        held[b].resize(kept);
        if (below(5) == 0) continue;
        tokens[b] = common;
        const std::vector<int32_t> own = Text(below(2) == 0 ? 0 : below(10), 100 * step + b);
        tokens[b].insert(tokens[b].end(), own.begin(), own.end());
        tokens[b].resize(std::min<size_t>(tokens[b].size(), setting.window - held[b].size()));
        held[b].insert(held[b].end(), tokens[b].begin(), tokens[b].end());
      }
      ASSERT_TRUE(together.sequences().Append(tokens).ok());
      for (int64_t b = 0; b < 3; ++b) {
        if (!tokens[b].empty()) ExpectNear(together.Logits(b), windows.After(held[b]), setting.precision);
      }
    }
  }
}

// A text that is longer than a sequence may be goes on: of the tokens, the later half counts.
TEST(GenerationLaw, AFullSequenceForgetsItsOlderHalf) {
  Setting setting;
  Rig rig(setting, true), fresh(setting, true);
  EXPECT_EQ(rig.sequences().positions(), 16);
  const std::vector<int32_t> text = Text(50);
  std::vector<float> got = rig.Append(Part(text, 0, 16));
  for (int64_t end = 17; end <= 50; ++end) {
    got = rig.Append(Part(text, end - 1, end));
    // It forgets when a 17th token comes, and then holds 8 of them: at 17, 26, 35 and 44.
    const int64_t held = 8 + (end - 17) % 9;
    ExpectNear(got, fresh.After(Part(text, end - held, end)), setting.precision);
  }
  // A prompt that is too long counts with its last tokens.
  const std::vector<float> after = fresh.After(Part(text, 34, 50));
  EXPECT_EQ(rig.After(text), after);
}

// Where every token sees a window only, at rotary positions, a sequence has no end, and its cache does not grow.
TEST(GenerationLaw, AWindowSlidesForever) {
  Setting setting;
  setting.model.attention_window = 5;
  setting.model.max_positions = 64;
  setting.window = 64;
  Rig rig(setting, true), windows(setting, false);
  EXPECT_EQ(rig.sequences().positions(), kNoLastPosition);
  // Rows: the window, and the longest chunk of 16 tokens but one.
  for (const Buffer& buffer : rig.programs()[0].step.program.buffers) {
    if (buffer.category != BufferCategory::kCache) continue;
    EXPECT_EQ(buffer.size_bytes(), 2 * 20 * 6 * 4) << buffer.name;
  }
  const std::vector<int32_t> text = Text(200);
  int64_t end = 0;
  for (const int64_t chunk : {1, 16, 40, 1, 1, 15, 90, 1, 1, 30}) {
    const std::vector<float> got = rig.Append(Part(text, end, end + chunk));
    end += chunk;
    // Through three blocks, a token sees 3 x 4 tokens before it. Distances alone count.
    ExpectNear(got, windows.After(Part(text, std::max<int64_t>(0, end - 20), end)), setting.precision);
  }
  EXPECT_EQ(rig.measured_peak_bytes(), rig.planned_peak_bytes());
}

TEST(GenerationLaw, MorePositionsThanTheModelHasAreRefused) {
  Job job;
  job.model = SmallDecoder();
  job.batch = {.global_batch = 1, .micro_batch = 1, .sequence_length = 16};
  const absl::Status status = BuildGeneration(job, {.positions = 17}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "a sequence of 17 tokens is wanted, and the model has 16 positions (model.decoder.max_positions); ask for "
            "at most 16");
  MlpConfig mlp = SmallMlp();
  job.model = mlp;
  EXPECT_THAT(std::string(BuildGeneration(job, {.positions = 17}).status().message()),
              HasSubstr("the model reads windows of 16 tokens (batch.sequence_length); ask for 16"));
}

// Several samples are those that each seed gives alone, and a sequence ends by itself.
TEST(GenerationLaw, SamplesAreDrawnAtOnceAsTheyAreAlone) {
  Setting setting;
  setting.model.max_positions = setting.window = 40;
  Rig alone(setting, true);
  setting.size.sequences = 3;
  Rig together(setting, true);
  const std::vector<std::vector<int32_t>> prompts = {Text(5, 1), Text(12, 2), Text(1, 3)};
  GenerateOptions options = {.count = 20, .sampling = {.temperature = 1, .top_k = 0, .seed = 7}};
  const auto generate = [&](Rig& rig, const std::vector<std::vector<int32_t>>& of, int64_t stop_third_after) {
    std::vector<std::vector<int32_t>> drawn(of.size());
    const absl::Status status = NextTokens(rig.sequences()).GenerateAll(of, options, [&](int64_t i, int32_t token) {
      drawn[i].push_back(token);
      return i != 2 || std::ssize(drawn[i]) < stop_third_after;
    });
    EXPECT_TRUE(status.ok()) << status;
    return drawn;
  };
  std::vector<std::vector<int32_t>> want;
  for (const std::vector<int32_t>& prompt : prompts) {
    want.push_back(generate(alone, {prompt}, 20)[0]);
    EXPECT_EQ(want.back().size(), 20);
    ++options.sampling.seed;
  }
  options.sampling.seed = 7;
  want[2].resize(4);
  EXPECT_EQ(generate(together, prompts, 4), want);
  // A stop token ends its sequence alone, and is not emitted.
  options.stop_tokens = {want[0][3]};
  for (std::vector<int32_t>& tokens : want) {
    tokens.erase(std::find(tokens.begin(), tokens.end(), options.stop_tokens[0]), tokens.end());
  }
  EXPECT_EQ(generate(together, prompts, 4), want);
  EXPECT_EQ(want[0].size(), 3);
  EXPECT_EQ(
      NextTokens(alone.sequences()).GenerateAll(prompts, options, [](int64_t, int32_t) { return true; }).message(),
      "found 3 prompts; wanted 1 to 1, as many as sequences");
}

// A conversation goes on behind what its sequence holds, and begins anew where it differs.
TEST(GenerationLaw, APromptThatGoesOnGetsTheTokensOfOneThatBegins) {
  for (const auto& [window, position] :
       {std::pair(0, PositionKind::kRotary), {5, PositionKind::kRotary}, {5, PositionKind::kLearned}}) {
    SCOPED_TRACE(absl::StrCat(window, position == PositionKind::kLearned ? ", learned" : ""));
    Setting setting;
    setting.model.attention_window = window;
    setting.model.position = position;
    setting.model.max_positions = setting.window = 64;
    Rig going(setting, true), fresh(setting, true);
    std::vector<int32_t> conversation = Text(9);
    for (int turn = 0; turn < 4; ++turn) {
      const auto generate = [&](Rig& rig, bool goes_on) {
        std::vector<int32_t> drawn;
        const absl::Status status =
            NextTokens(rig.sequences())
                .GenerateAll({conversation}, {.count = 6, .sampling = {.temperature = 0}, .goes_on = goes_on},
                             [&](int64_t, int32_t token) {
                               drawn.push_back(token);
                               return true;
                             });
        EXPECT_TRUE(status.ok()) << status;
        return drawn;
      };
      const std::vector<int32_t> answer = generate(going, true);
      EXPECT_EQ(answer, generate(fresh, false));
      // The answer is cut, as by a stop string, and the next message follows.
      conversation.insert(conversation.end(), answer.begin(), answer.end() - 2);
      // So much of it may be taken back that a ring of keys no longer has those that come next.
      if (turn == 2) conversation.resize(8);
      const std::vector<int32_t> more = Text(5, turn + 10);
      conversation.insert(conversation.end(), more.begin(), more.end());
    }
  }
}

// What a step stores in the bytes of the cache is forgotten, and the state lies where steps have it.
TEST(GenerationLaw, ProgramsOfGenerationShareTheirBuffers) {
  Setting setting;
  setting.size = {.sequences = 2, .positions = 16};
  Rig rig(setting, true), windows(setting, false);
  const PlannedProgram& window = windows.programs()[0];
  const auto persistent = [](const PlannedProgram& program) {
    std::vector<std::string> buffers;
    for (size_t b = 0; b < program.step.program.buffers.size(); ++b) {
      const Buffer& buffer = program.step.program.buffers[b];
      if (!buffer.persistent) continue;
      buffers.push_back(absl::StrCat(buffer.name, " of ", buffer.size_bytes(), " at ", program.memory.addresses[b]));
    }
    return buffers;
  };
  const std::vector<std::string> state = persistent(window), all = persistent(rig.programs()[0]);
  // Keys and values of three blocks.
  ASSERT_EQ(all.size(), state.size() + 6);
  EXPECT_TRUE(std::equal(state.begin(), state.end(), all.begin()));
  for (const PlannedProgram& program : rig.programs()) EXPECT_EQ(persistent(program), all);
}

}  // namespace
}  // namespace shale::testing
