#include "engine/run/runtime/trace.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
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
      {.action = StepItemCopy{StepItem::kInputs, Vector(0, 1000)}, .stream = StreamId::kCopy, .unit = 0},
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
  EXPECT_THAT(trace.Table({}), AllOf(HasSubstr("Offload"), HasSubstr("Copy")));
}

Tensor Matrix(BufferId buffer, DType dtype, int64_t rows, int64_t columns) {
  Tensor t = Tensor::Contiguous(dtype, {rows, columns});
  t.where.symbol = buffer;
  return t;
}

// Which matmul is slow is told by its shape, and what an op could reach by its bytes and FLOPs.
TEST(StepTrace, TellsShapesAndRooflines) {
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 1 << 20}};
  const MatMul forward = {.a = Matrix(0, DType::kBFloat16, 64, 32),
                          .b = Matrix(0, DType::kBFloat16, 128, 32),
                          .c_MN = Matrix(0, DType::kBFloat16, 64, 128),
                          .transpose_b = true};
  const MatMul of_weights = {.a = Matrix(0, DType::kBFloat16, 64, 128),
                             .b = Matrix(0, DType::kBFloat16, 64, 32),
                             .c_MN = Matrix(0, DType::kFloat32, 128, 32),
                             .transpose_a = true,
                             .accumulate = true};
  program.instructions = {
      {.action = Op(forward), .phase = Phase::kForward, .micro_batch = 0},
      {.action = Op(of_weights), .phase = Phase::kBackward, .micro_batch = 0, .first_iteration_differs = true},
      {.action = Op(Copy{Vector(0, 1000), Vector(0, 1000)}), .phase = Phase::kUpdate},
  };
  program.loops = {{0, 2, 2}, {2, 3, 1}};
  StepTrace trace;
  const std::vector<InstructionTime> times = {{.id = 0, .iteration = 0, .begin_ns = 0, .end_ns = 1000},
                                              {.id = 1, .iteration = 0, .begin_ns = 1000, .end_ns = 3000},
                                              {.id = 0, .iteration = 1, .begin_ns = 3000, .end_ns = 6000},
                                              {.id = 1, .iteration = 1, .begin_ns = 6000, .end_ns = 8000},
                                              {.id = 2, .iteration = 0, .begin_ns = 8000, .end_ns = 10000}};
  trace.Add(program, 1, 0, times);
  const std::string json = trace.ChromeJson();
  EXPECT_THAT(json, HasSubstr(R"("micro_batch":1,"bytes":28672,"flops":524288,"m":64,"n":128,"k":32,)"
                              R"("transpose_a":false,"transpose_b":true,"dtype":"bf16","result":"bf16",)"
                              R"("accumulate":false}})"));
  // The first micro-batch overwrites the gradient of the weights, the others read it as well.
  const char* of_weights_json =
      R"(,"flops":524288,"m":128,"n":32,"k":64,"transpose_a":true,"transpose_b":false,"dtype":"bf16","result":"f32",)";
  EXPECT_THAT(json, HasSubstr(absl::StrCat("\"bytes\":36864", of_weights_json, "\"accumulate\":false")));
  EXPECT_THAT(json, HasSubstr(absl::StrCat("\"bytes\":53248", of_weights_json, "\"accumulate\":true")));
  EXPECT_THAT(json, HasSubstr(R"("flops":0,"operands":{"from":"f32[1000]","to":"f32[1000]"}})"));

  // 16 GB/s: the copy could take 0.5 us of its 2. 1 TFLOP/s: each matmul could take 0.524 us, but its bytes take
  // longer: 1.792 us forward, of 2 in the mean; 2.304 and 3.328 us for the gradients, of 2.
  const std::string table = trace.Table({.bytes_per_second = 16e9, .flops_per_second = 1e12});
  EXPECT_THAT(table, HasSubstr("\nroofline: 16 GB/s; 1 TFLOP/s\n"));
  EXPECT_THAT(table, ContainsRegex("compute +update +Copy +1 +0.00 +20.0% +4.0 +25.0%\n"));
  EXPECT_THAT(table, ContainsRegex("compute +forward +MatMul +2 +0.00 +40.0% +262.1 +14.3 +89.6%\n"));
  EXPECT_THAT(table, ContainsRegex("compute +backward +MatMul +2 +0.00 +40.0% +262.1 +22.5 +140.8%\n"));
  EXPECT_THAT(table, ContainsRegex("\nforward +64 +128 +32  nt  bf16>bf16 +2 +2.0 +1.0 +0.2621 +40.0% +89.6%\n"));
  EXPECT_THAT(table, ContainsRegex("\nbackward +128 +32 +64  tn  bf16>f32 +2 +2.0 +2.0 +0.2621 +40.0% +140.8%\n"));
  EXPECT_THAT(table, Not(HasSubstr("predicted")));
  // With many FLOPs to a byte, these decide.
  EXPECT_THAT(trace.Table({.bytes_per_second = 1e12, .flops_per_second = 1e12}),
              ContainsRegex("\nforward .* 40.0% +26.2%\n"));
  // Operands of this size may lie in a cache, so that their rate is none of memory.
  EXPECT_THAT(trace.Table({}), HasSubstr("\nroofline: GB/s unknown, no op moves 64 MiB\n"));
}

// Matrices in fp8 have a roofline of their own, with half of the bytes.
TEST(StepTrace, TellsTheRooflineOfFloat8) {
  const MatMul matmul = {.a = Matrix(0, DType::kFloat8E4M3, 64, 32),
                         .b = Matrix(0, DType::kFloat8E4M3, 128, 32),
                         .c_MN = Matrix(0, DType::kBFloat16, 64, 128),
                         .transpose_b = true};
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 1 << 20}};
  program.instructions = {{.action = Op(matmul), .phase = Phase::kForward, .micro_batch = 0}};
  program.loops = {{0, 1, 1}};
  StepTrace trace;
  trace.Add(program, 1, 0, std::vector<InstructionTime>{{.id = 0, .begin_ns = 0, .end_ns = 1000}});
  EXPECT_THAT(trace.Table({.bytes_per_second = 1e12, .flops_per_second = 1e12, .float8_flops_per_second = 2e12}),
              AllOf(HasSubstr("; 1 TFLOP/s, in fp8 2\n"), ContainsRegex("\nforward .* 100.0% +26.2%\n")));
}

// What was predicted stands beside what was measured, and what is slowest against it is named.
TEST(StepTrace, TellsWhatWasPredicted) {
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 4000}};
  program.instructions = {{.action = Op(Copy{Vector(0, 10), Vector(0, 10)}), .phase = Phase::kForward},
                          {.action = Op(Copy{Vector(0, 10), Vector(0, 10)}), .phase = Phase::kUpdate}};
  program.loops = {{0, 2, 1}};
  StepTrace trace;
  trace.SetPredicted([](const Instruction& issued) { return issued.phase == Phase::kForward ? 4e-3 : 1e-3; });
  trace.Add(program, 1, 0,
            std::vector<InstructionTime>{{.id = 0, .begin_ns = 0, .end_ns = 5'000'000},
                                         {.id = 1, .begin_ns = 5'000'000, .end_ns = 8'000'000}});
  const std::string table = trace.Table({});
  EXPECT_THAT(table, ContainsRegex("ms/step +predicted +share"));
  EXPECT_THAT(table, ContainsRegex("compute +forward +Copy +1 +5.00 +4.00 +62.5%"));
  EXPECT_THAT(table, ContainsRegex("compute +update +Copy +1 +3.00 +1.00 +37.5%"));
  EXPECT_THAT(table,
              HasSubstr("slowest against its prediction: compute update Copy, 3.00 ms of a step instead of 1.00"));
}

// Without a rate of memory, the op that moves most bytes in a second gives it.
TEST(StepTrace, TheBestOpOfATraceGivesTheRateOfMemory) {
  constexpr int64_t kElements = int64_t{8} << 20;  // 64 MiB read and written.
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 4 * kElements}};
  program.instructions = {{.action = Op(Copy{Vector(0, kElements), Vector(0, kElements)})},
                          {.action = Op(Copy{Vector(0, 10), Vector(0, 10)})},
                          {.action = Op(Copy{Vector(0, kElements + 1), Vector(0, kElements + 1)})}};
  program.loops = {{0, 3, 1}};
  StepTrace trace;
  trace.Add(program, 1, 0,
            std::vector<InstructionTime>{{.id = 0, .begin_ns = 0, .end_ns = 67109},
                                         {.id = 1, .begin_ns = 67109, .end_ns = 67110},
                                         {.id = 2, .begin_ns = 70000, .end_ns = 204218}});
  EXPECT_THAT(trace.Table({}), HasSubstr("\nroofline: 1000 GB/s, the best of an op here\n"));
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
  EXPECT_EQ(second.Table({}), "");
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
      EXPECT_THAT(trace.Table({}), is_busy);
    } else {
      EXPECT_THAT(trace.ChromeJson(), Not(names_host));
      EXPECT_THAT(trace.Table({}), Not(is_busy));
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
