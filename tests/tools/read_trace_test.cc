#include "tools/read_trace.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "engine/run/runtime/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/flat.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A loop of two iterations, whose second instruction runs in the last one alone, and an instruction after it.
StepProgram TracedProgram() {
  Tensor numbers = Tensor::Contiguous(DType::kFloat32, {10});
  numbers.where.symbol = 0;
  StepProgram program;
  program.units = {"unit"};
  program.buffers = {{.name = "a", .slot_bytes = 4000}};
  program.instructions = {{.action = Op(Copy{numbers, numbers}), .unit = 0, .micro_batch = 0},
                          {.action = Op(Copy{numbers, numbers}), .last_iteration_only = true},
                          {.action = StepItemCopy{StepItem::kInputs, numbers}, .stream = StreamId::kCopy}};
  program.loops = {{0, 2, 2}, {2, 3, 1}};
  return program;
}

// A trace is read as it was written: the last step of rank 0, from its first begin.
TEST(ReadTraceTest, ATraceIsReadForItsOwnProgramAlone) {
  const StepProgram program = TracedProgram();
  const auto step = [](int64_t begin_ns) {
    return std::vector<InstructionTime>{
        {.id = 0, .begin_ns = begin_ns + 1000, .end_ns = begin_ns + 3000},
        {.id = 0, .iteration = 1, .begin_ns = begin_ns + 3000, .end_ns = begin_ns + 4000},
        {.id = 1, .iteration = 1, .begin_ns = begin_ns + 4000, .end_ns = begin_ns + 4500},
        {.id = 2, .begin_ns = begin_ns, .end_ns = begin_ns + 5000}};
  };
  StepTrace trace, other_rank;
  for (StepTrace* of_rank : {&trace, &other_rank}) of_rank->SetRanks(3);
  trace.Add(program, 6, 0, step(0));
  trace.Add(program, 7, 0, step(1'000'000));
  other_rank.Add(program, 8, 1, step(0));
  const std::string json = MergeChromeJson(std::vector<std::string>{other_rank.ChromeJson(), trace.ChromeJson()});
  const absl::StatusOr<MeasuredStep> read = ReadTrace(json, program, 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 7);
  EXPECT_NEAR(read->times.seconds, 5e-6, 1e-12);
  EXPECT_NEAR(read->times.busy_seconds[static_cast<size_t>(StreamId::kCompute)], 3.5e-6, 1e-12);
  ASSERT_EQ(read->times.issues.size(), 4u);
  EXPECT_EQ(read->times.issues[2].issue.id, 1);
  EXPECT_EQ(read->times.issues[2].issue.iteration, 1);
  EXPECT_EQ(read->times.issues[3].issue.loop, 1u);
  EXPECT_NEAR(read->times.issues[3].begin, 0, 1e-12);
  EXPECT_NEAR(read->times.issues[0].end, 3e-6, 1e-12);

  const auto error = [](const std::string& text, const StepProgram& of, int64_t ranks = 3) {
    const absl::Status status = ReadTrace(text, of, ranks).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  StepProgram other = program;
  other.units = {"other"};
  EXPECT_THAT(error(json, other), AllOf(HasSubstr("a trace of another program: its digest is \""),
                                        HasSubstr(ProgramDigest(program, 3)), HasSubstr(ProgramDigest(other, 3))));
  EXPECT_THAT(error(json, program, 2), HasSubstr("a trace of another program"));  // That of a job with fewer ranks.
  EXPECT_THAT(error(absl::StrReplaceAll(json, {{"\"program\"", "\"x\""}}), program),
              HasSubstr("its digest is missing"));
  EXPECT_THAT(error(other_rank.ChromeJson(), program), HasSubstr("no instructions of rank 0"));
  EXPECT_THAT(error(json.substr(0, json.size() / 2), program), HasSubstr("no JSON"));
  StepTrace cut;
  cut.SetRanks(3);
  const std::vector<InstructionTime> times = step(0);
  cut.Add(program, 7, 0, absl::MakeConstSpan(times).subspan(1));
  EXPECT_THAT(error(cut.ChromeJson(), program), HasSubstr("a step of 3 instructions; that of the job has 4"));
  for (const char* wrong :
       {"{}", "[]", "7", "{\"traceEvents\":[3,{\"args\":7},{\"pid\":0,\"ph\":\"X\",\"args\":{}}]}"}) {
    EXPECT_THAT(error(wrong, program), HasSubstr("wanted a file that train --trace wrote")) << wrong;
  }
  for (const char* wrong : {"\"instruction\":-1,", "\"instruction\":1e300,", "\"instruction\":null,"}) {
    error(absl::StrReplaceAll(json, {{"\"instruction\":0,", wrong}}), program);
  }
}

}  // namespace
}  // namespace shale
