#include "engine/runtime/trace.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/flat.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Tensor Vector(BufferId buffer, int64_t elements) {
  Tensor t = Tensor::Contiguous(DType::kFloat32, {elements});
  t.where.symbol = buffer;
  return t;
}

// An op counts the bytes that it reads and those that it writes. A copy counts its bytes once, because they cross its
// link once.
TEST(StepTrace, CountsBytes) {
  StepProgram program;
  program.units = {"embedding"};
  program.buffers = {{.name = "a", .slot_bytes = 4000},
                     {.name = "b", .slot_bytes = 4000},
                     {.name = "offloaded", .slot_bytes = 4000, .memory = MemoryKind::kHost}};
  program.instructions = {
      {.action = Op(Copy{Vector(0, 1000), Vector(1, 1000)}), .unit = 0, .micro_batch = 0},
      {.action = Transfer{Vector(1, 1000), Vector(2, 1000), true}, .stream = StreamId::kCopy, .unit = 0},
      {.action = HostCopy{HostItem::kInputs, Vector(0, 1000)}, .stream = StreamId::kCopy, .unit = 0},
  };
  program.loops = {{0, 3, 1}};
  StepTrace trace;
  const std::vector<InstructionTime> times = {{.id = 0, .begin_ns = 1000, .end_ns = 3000},
                                              {.id = 1, .begin_ns = 3000, .end_ns = 5000},
                                              {.id = 2, .begin_ns = 5000, .end_ns = 6000}};
  trace.Add(program, 7, 0, times);
  EXPECT_FALSE(trace.empty());
  const std::string json = trace.ChromeJson();
  EXPECT_THAT(json, HasSubstr(R"("ts":0.000,"dur":2.000,"name":"Copy","cat":"forward","args":{"step":7,)"
                              R"("instruction":0,"unit":"embedding","micro_batch":0,"bytes":8000,"flops":0)"));
  EXPECT_THAT(json, HasSubstr(R"("tid":3,"ts":2.000,"dur":2.000,"name":"Offload","cat":"forward","args":{"step":7,)"
                              R"("instruction":1,"unit":"embedding","bytes":4000,)"));
  EXPECT_THAT(json, HasSubstr(R"("name":"ToDevice inputs","cat":"forward","args":{"step":7,"instruction":2,)"
                              R"("unit":"embedding","bytes":4000,)"));
  EXPECT_THAT(trace.Table(), AllOf(HasSubstr("Offload"), HasSubstr("Copy")));
}

// Each process traces its own ranks, from a time that all of them know.
TEST(StepTrace, TracesOfSeveralProcessesAreJoined) {
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 4000}};
  program.instructions = {{.action = Op(Copy{Vector(0, 10), Vector(0, 10)})}};
  program.loops = {{0, 1, 1}};
  StepTrace first, second;
  first.SetOrigin(1000);
  second.SetOrigin(1000);
  first.Add(program, 1, 0, std::vector<InstructionTime>{{.id = 0, .begin_ns = 2000, .end_ns = 3000}});
  second.Add(program, 1, 1, std::vector<InstructionTime>{{.id = 0, .begin_ns = 4000, .end_ns = 6000}});
  second.Add(program, 1, 3, std::vector<InstructionTime>{{.id = 0, .begin_ns = 5000, .end_ns = 6000}});
  EXPECT_FALSE(second.empty());
  EXPECT_EQ(second.Table(), "");
  const std::string joined =
      MergeChromeJson(std::vector<std::string>{first.ChromeJson(), StepTrace().ChromeJson(), second.ChromeJson()});
  for (const char* event : {R"("pid":0,"tid":0,"ts":1.000,"dur":1.000)", R"("pid":1,"tid":0,"ts":3.000,"dur":2.000)",
                            R"("pid":3,"tid":0,"ts":4.000,"dur":1.000)", R"("name":"rank 0")", R"("name":"rank 1")",
                            R"("name":"rank 3")"}) {
    EXPECT_THAT(joined, HasSubstr(event));
  }
  EXPECT_THAT(joined, Not(HasSubstr("rank 2")));
}

// Only the traces of programs that use the host's stream name it.
TEST(StepTrace, ShowsTheStreamOfTheHostIfItIsUsed) {
  for (const StreamId stream : {StreamId::kCopy, StreamId::kHost}) {
    StepProgram program;
    program.buffers = {{.name = "a", .slot_bytes = 4000, .memory = MemoryKind::kHost}};
    program.instructions = {{.action = Op(Copy{Vector(0, 10), Vector(0, 10)}), .stream = stream}};
    program.loops = {{0, 1, 1}};
    StepTrace trace;
    trace.Add(program, 1, 0, std::vector<InstructionTime>{{.id = 0, .begin_ns = 1000, .end_ns = 3000}});
    const auto names_host = HasSubstr(R"("tid":4,"name":"thread_name","args":{"name":"host"})");
    const auto is_busy = HasSubstr(" host 100.0%");
    if (stream == StreamId::kHost) {
      EXPECT_THAT(trace.ChromeJson(), names_host);
      EXPECT_THAT(trace.Table(), is_busy);
    } else {
      EXPECT_THAT(trace.ChromeJson(), Not(names_host));
      EXPECT_THAT(trace.Table(), Not(is_busy));
    }
  }
}

// The counter shows the peak of live bytes even if only an instruction of another stream reaches it.
TEST(StepTrace, CountsMemoryByCategory) {
  StepProgram program;
  program.buffers = {
      {.name = "state", .category = BufferCategory::kOptimizerState, .slot_bytes = 100, .persistent = true},
      {.name = "kept", .category = BufferCategory::kActivations, .slot_bytes = 40},
      {.name = "gathered", .category = BufferCategory::kGatheredParameters, .slot_bytes = 4000}};
  program.instructions = {
      {.action = Op(Copy{Vector(0, 10), Vector(1, 10)})},
      {.action = Op(Copy{Vector(0, 25), Vector(2, 25)}), .stream = StreamId::kGather},
      {.action = Op(Copy{Vector(1, 10), Vector(0, 10)})},
      {.action = Op(Copy{Vector(0, 10), Vector(0, 10)})},
  };
  program.loops = {{0, 4, 1}};
  StepTrace trace;
  const std::vector<InstructionTime> times = {{.id = 0, .begin_ns = 1000, .end_ns = 3000},
                                              {.id = 1, .begin_ns = 1000, .end_ns = 2000},
                                              {.id = 2, .begin_ns = 4000, .end_ns = 5000},
                                              {.id = 3, .begin_ns = 6000, .end_ns = 7000}};
  trace.Add(program, 7, 1, times);
  const std::string json = trace.ChromeJson();
  const auto counter = [](const char* time, int gathered, int kept) {
    return absl::StrCat(R"({"ph":"C","pid":1,"ts":)", time,
                        R"(,"name":"planned memory","args":{"optimizer state":100,)", R"("gathered parameters":)",
                        gathered, R"(,"activations kept":)", kept, "}}");
  };
  EXPECT_THAT(json, HasSubstr(counter("0.000", 0, 40)));
  EXPECT_THAT(json, HasSubstr(counter("3.000", 4000, 40)));
  EXPECT_THAT(json, HasSubstr(counter("5.000", 0, 0)));
}

}  // namespace
}  // namespace shale::testing
