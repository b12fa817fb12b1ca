// Training starts no OpenMP teams. Their threads wait as the environment of the process says (OMP_WAIT_POLICY), and by
// default spin for milliseconds, which a program that embeds the trainer could not change. oneDNN is built with OpenMP,
// so each of its primitives must be kept to the calling thread. The test runs with OMP_NUM_THREADS=4.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>

#include "oneapi/dnnl/dnnl.hpp"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

std::atomic<int> g_teams = 0;

}  // namespace
}  // namespace shale

// Takes the place of the function of OpenMP's library that runs work on a team, in this program and in oneDNN. OpenMP
// has chosen its name.
extern "C" void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags) {
  static const auto run_on_team = reinterpret_cast<decltype(&GOMP_parallel)>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  ++shale::g_teams;
  run_on_team(work, data, threads, flags);
}

namespace shale {
namespace {

constexpr int64_t kTokens = 128, kWidth = 128, kHidden = 512;

// Computes a product of the model's feed-forward with oneDNN, on as many threads as OpenMP offers it.
void MultiplyWithoutLimit() {
  using dnnl::memory;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto matrix = [](int64_t rows, int64_t columns) {
    return memory::desc({rows, columns}, memory::data_type::f32, memory::format_tag::ab);
  };
  const memory::desc a = matrix(kTokens, kWidth), b = matrix(kWidth, kHidden), c = matrix(kTokens, kHidden);
  dnnl::stream stream(engine);
  dnnl::matmul({dnnl::matmul::desc(a, b, c), engine})
      .execute(stream, {{DNNL_ARG_SRC, memory(a, engine)},
                        {DNNL_ARG_WEIGHTS, memory(b, engine)},
                        {DNNL_ARG_DST, memory(c, engine)}});
  stream.wait();
}

class OpenMpTest : public ResumeTest {};

TEST_F(OpenMpTest, AStepStartsNoTeam) {
  for (const char* const cpu_matmuls : {"ONEDNN", "PACKED"}) {
    for (const char* const compute : {"FP32", "BF16"}) {
      const Job job =
          MakeJob({"runtime.ops=FAST", absl::StrCat("runtime.cpu_matmuls=", cpu_matmuls),
                   absl::StrCat("precision.compute=", compute), "sharding.ranks=2", "runtime.threads_per_rank=2",
                   absl::StrCat("batch.sequence_length=", kTokens), "batch.global_batch=2"},
                  absl::StrCat("decoder { width: ", kWidth, " layers: 1 heads: 2 hidden: ", kHidden, " }"), "steps: 2");
      const Run run = Train(job, absl::StrCat(cpu_matmuls, compute));
      EXPECT_TRUE(run.status.ok()) << run.status;
      EXPECT_EQ(g_teams, 0) << cpu_matmuls << " " << compute;
    }
  }
}

TEST_F(OpenMpTest, ATeamOfOneDnnWouldBeCounted) {
  const int before = g_teams;
  MultiplyWithoutLimit();
  EXPECT_GT(g_teams, before);
}

}  // namespace
}  // namespace shale
