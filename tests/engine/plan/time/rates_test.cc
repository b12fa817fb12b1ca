#include "engine/plan/time/rates.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"

namespace shale {
namespace {

void AddWork(proto::MachineProfile& profile, const Work& work, double seconds, int64_t ranks_on_host = 1) {
  proto::MeasuredWork& added = *profile.add_works();
  added.set_kind(work.kind);
  for (const double size : work.sizes) added.add_sizes(size);
  added.set_flops(work.flops);
  added.set_bytes(work.bytes());
  added.set_seconds(seconds);
  added.set_spread(0.01);
  added.set_count(10);
  added.set_ranks_on_host(ranks_on_host);
}

// Returns the rates of ranks that are threads of one process.
Rates RatesOf(const proto::MachineProfile& profile, int64_t ranks) {
  return Rates(profile, {.ranks_on_host = ranks, .ranks = ranks});
}

Work MatMulOf(double m, double n, double k) {
  return {.work_class = WorkClass::kArithmetic,
          .kind = "MatMul bf16 bf16 bf16",
          .sizes = {m, n, k},
          .flops = 2 * m * n * k,
          .bytes_read = 2 * (m * k + n * k),
          .bytes_written = 2 * m * n};
}

Work NormOf(double rows, double columns) {
  return {.kind = "RmsNormForward bf16",
          .sizes = {rows, columns},
          .bytes_read = 2 * rows * columns,
          .bytes_written = 2 * rows * columns};
}

proto::MachineProfile GpuProfile() {
  proto::MachineProfile profile;
  profile.set_device("CUDA");
  profile.set_peak_flops_f32(5e13);
  profile.set_peak_flops_bf16(1e15);
  profile.set_copy_bytes_per_second(4e12);
  return profile;
}

TEST(Rates, AMeasuredWorkTakesWhatWasMeasured) {
  proto::MachineProfile profile = GpuProfile();
  AddWork(profile, MatMulOf(1024, 512, 256), 1.25e-5);
  AddWork(profile, MatMulOf(1024, 512, 512), 3e-5);
  const WorkTime time = RatesOf(profile, 1).Of(MatMulOf(1024, 512, 256));
  EXPECT_NEAR(time.seconds, 1.25e-5, 1e-18);
  EXPECT_EQ(time.how, Knowledge::kMeasured);
  EXPECT_EQ(time.spread, 0.01);
}

// Matmuls whose speed is a power of each size, as it nearly is between two sizes that lie close.
TEST(Rates, BetweenMatMulsAPowerLawHolds) {
  const auto seconds = [](double m, double n, double k) {
    return 3e-12 * std::pow(m, 0.9) * std::pow(n, 0.95) * std::pow(k, 0.8);
  };
  proto::MachineProfile profile = GpuProfile();
  for (const double m : {512., 2048., 8192.}) {
    for (const double n : {256., 1024., 4096.}) {
      for (const double k : {128., 1024.}) AddWork(profile, MatMulOf(m, n, k), seconds(m, n, k));
    }
  }
  const Rates rates = RatesOf(profile, 1);
  const WorkTime inside = rates.Of(MatMulOf(3000, 700, 500)), beyond = rates.Of(MatMulOf(20000, 700, 500));
  EXPECT_EQ(inside.how, Knowledge::kInterpolated);
  EXPECT_NEAR(inside.seconds / seconds(3000, 700, 500), 1, 2e-3);
  EXPECT_EQ(beyond.how, Knowledge::kExtrapolated);
  EXPECT_NEAR(beyond.seconds / seconds(20000, 700, 500), 1, 2e-2);
  EXPECT_GT(beyond.spread, inside.spread);
}

// On a GPU, an attention is most like those with heads as wide as its own, whatever their tokens.
TEST(Rates, TheRateOfAttentionOnAGpuFollowsTheWidthOfHeads) {
  const auto attention = [](double sequences_and_heads, double tokens, double width) {
    return Work{.work_class = WorkClass::kArithmetic,
                .kind = "AttentionBackward bf16 causal",
                .sizes = {sequences_and_heads, 7, tokens, width, 0},
                .flops = 5 * sequences_and_heads * tokens * tokens * width};
  };
  const Work narrow = attention(64, 4096, 64), wide = attention(192, 1024, 128), asked = attention(256, 1024, 64);
  proto::MachineProfile profile = GpuProfile();
  AddWork(profile, narrow, narrow.flops / 1e14);
  AddWork(profile, wide, wide.flops / 2e14);
  const auto rate = [&] { return asked.flops / RatesOf(profile, 1).Of(asked).seconds; };
  EXPECT_LT(rate(), 1.3e14);
  // Nothing is known of such a law on CPUs: the nearest counts most, which is the wide one.
  profile.set_device("CPU");
  EXPECT_GT(rate(), 1.6e14);
}

// Our own kernels are as fast as they are, whatever cuDNN's rates are, and the other way round.
TEST(Rates, AttentionHasRatesOfTheKernelsThatComputeIt) {
  const auto work = [](absl::string_view kernels, int64_t tokens) {
    const auto tensor = [&](DType dtype) { return Tensor::Contiguous(dtype, {2, tokens, 4, 64}); };
    const AttentionForward op{.q_BSHD = tensor(DType::kBFloat16),
                              .k_BSGD = tensor(DType::kBFloat16),
                              .v_BSGD = tensor(DType::kBFloat16),
                              .out_BSHD = tensor(DType::kBFloat16),
                              .lse_BHS = Tensor::Contiguous(DType::kFloat32, {2, 4, tokens})};
    return WorkOf(Instruction{.action = Op(op), .kernels = kernels}, Mesh{});
  };
  EXPECT_EQ(WorkText(work("", 512)), "AttentionForward bf16 causal 8 x 1 x 512 x 64 x 0");
  EXPECT_EQ(WorkText(work("own", 512)), "AttentionForward own bf16 causal 8 x 1 x 512 x 64 x 0");
  EXPECT_EQ(work("cuDNN", 512).kind, "AttentionForward cuDNN bf16 causal");
  proto::MachineProfile profile = GpuProfile();
  AddWork(profile, work("cuDNN", 512), 1e-3);
  AddWork(profile, work("cuDNN", 1024), 4e-3);
  proto::KindRate& rate = *profile.add_rates();
  rate.set_kind("AttentionForward own bf16");
  rate.set_flops_per_second(1e12);
  const Rates rates = RatesOf(profile, 1);
  EXPECT_EQ(rates.Of(work("cuDNN", 1024)).how, Knowledge::kMeasured);
  EXPECT_EQ(rates.Of(work("own", 1024)).how, Knowledge::kEstimated);
  EXPECT_NEAR(rates.Of(work("own", 1024)).seconds, work("own", 1024).flops / 1e12, 1e-9);
  // Another mask of the same kernels is like them.
  Work both_ways = work("cuDNN", 1024);
  both_ways.kind = "AttentionForward cuDNN bf16";
  EXPECT_NEAR(rates.Of(both_ways).seconds, 4e-3, 1e-3);
}

// What moves bytes takes a latency and a time for each byte.
TEST(Rates, BetweenOpsThatMoveBytesAnAffineLawHolds) {
  const auto seconds = [](const Work& work) { return 5e-6 + work.bytes() / 3e12; };
  proto::MachineProfile profile = GpuProfile();
  for (const double rows : {64., 1024., 16384.}) AddWork(profile, NormOf(rows, 1024), seconds(NormOf(rows, 1024)));
  const Rates rates = RatesOf(profile, 1);
  for (const double rows : {8., 300., 5000., 100000.}) {
    const Work work = NormOf(rows, 1024);
    const WorkTime time = rates.Of(work);
    EXPECT_NEAR(time.seconds / seconds(work), 1, 1e-9) << rows;
    EXPECT_EQ(time.how, rows < 64 || rows > 16384 ? Knowledge::kExtrapolated : Knowledge::kInterpolated);
  }
}

TEST(Rates, AWorkThatWasMeasuredOnceTakesTheSameTimeForEachByte) {
  proto::MachineProfile profile = GpuProfile();
  AddWork(profile, NormOf(100, 1024), 1e-6);
  EXPECT_NEAR(RatesOf(profile, 1).Of(NormOf(300, 1024)).seconds, 3e-6, 1e-12);
}

TEST(Rates, OtherWorksTakeTheRateOfTheLongestKindOrOfLikeWorks) {
  proto::MachineProfile profile = GpuProfile();
  const auto add_rate = [&](const std::string& kind, double flops, double bytes) {
    proto::KindRate& rate = *profile.add_rates();
    rate.set_kind(kind);
    rate.set_flops_per_second(flops);
    rate.set_bytes_per_second(bytes);
    rate.set_latency_seconds(1e-6);
  };
  add_rate("MatMul", 1e14, 0);
  add_rate("MatMul bf16", 5e14, 0);
  add_rate("MatMul bf", 1e10, 0);  // No whole word.
  add_rate("RmsNormForward", 0, 2e12);
  const Rates rates = RatesOf(profile, 1);
  const Work matmul = MatMulOf(4096, 4096, 4096), norm = NormOf(4096, 4096);
  EXPECT_DOUBLE_EQ(rates.Of(matmul).seconds, 1e-6 + matmul.flops / 5e14);
  EXPECT_DOUBLE_EQ(rates.Of(norm).seconds, 1e-6 + norm.bytes() / 2e12);
  EXPECT_EQ(rates.Of(matmul).how, Knowledge::kEstimated);
  // A matmul with other options is more like it than the rate.
  AddWork(profile, matmul, 1e-3);
  Work other = matmul;
  other.kind += " transpose_b";
  EXPECT_NEAR(RatesOf(profile, 1).Of(other).seconds, 1e-3, 1e-9);
  EXPECT_EQ(RatesOf(profile, 1).Of(other).how, Knowledge::kEstimated);
}

// A GPU multiplies in fp8 at a speed of its own. A CPU widens the matrices to bf16.
TEST(Rates, MatMulsInFp8DoNotTakeTheRateOfBf16OnAGpu) {
  proto::MachineProfile profile = GpuProfile();
  profile.set_peak_flops_fp8(2e15);
  Work matmul = MatMulOf(4096, 4096, 4096);
  AddWork(profile, matmul, 1e-3);
  matmul.kind = "MatMul f8e5m2 f8e4m3 bf16 transpose_b";
  const WorkTime by_peak = RatesOf(profile, 1).Of(matmul);
  EXPECT_EQ(by_peak.how, Knowledge::kEstimated);
  EXPECT_NEAR(by_peak.seconds, matmul.flops / (0.6 * 2e15), 1e-9);
  proto::KindRate& rate = *profile.add_rates();
  rate.set_kind("MatMul f8e5m2");
  rate.set_flops_per_second(1e15);
  EXPECT_NEAR(RatesOf(profile, 1).Of(matmul).seconds, matmul.flops / 1e15, 1e-9);
  profile.clear_rates();
  profile.set_device("CPU");
  const WorkTime on_cpu = RatesOf(profile, 1).Of(matmul);
  EXPECT_EQ(on_cpu.how, Knowledge::kEstimated);
  EXPECT_NEAR(on_cpu.seconds, 1e-3, 1e-6);
}

// The gradient of a weight is fp32, but its operands are not.
TEST(Rates, WithoutAPeakOfFp8ThatOfBf16CountsWhateverTheResult) {
  const proto::MachineProfile profile = GpuProfile();
  Work matmul = MatMulOf(4096, 4096, 4096);
  const double in_bf16 = RatesOf(profile, 1).Of(matmul).seconds;
  for (const char* kind : {"MatMul f8e5m2 f8e4m3 bf16 transpose_b", "MatMul f8e5m2 f8e4m3 f32 transpose_b"}) {
    matmul.kind = kind;
    EXPECT_EQ(RatesOf(profile, 1).Of(matmul).seconds, in_bf16) << kind;
  }
}

TEST(Rates, AMatrixThatIsQuantizedInTwoFormsIsAnotherWork) {
  const auto kind = [](bool out, bool transposed) {
    QuantizeFloat8 op{.x_RC = Tensor::Contiguous(DType::kBFloat16, {32, 64}),
                      .maximum_1 = Tensor::Contiguous(DType::kFloat32, {1}),
                      .scale_1 = Tensor::Contiguous(DType::kFloat32, {1})};
    if (out) op.out_RC = Tensor::Contiguous(DType::kFloat8E4M3, {32, 64});
    if (transposed) op.transposed_CR = Tensor::Contiguous(DType::kFloat8E4M3, {64, 32});
    return WorkText(WorkOf(Instruction{.action = Op(op)}, Mesh{}));
  };
  EXPECT_EQ(kind(true, false), "QuantizeFloat8 bf16 f32 f8e4m3 f32 32 x 64");
  EXPECT_EQ(kind(true, true), "QuantizeFloat8 bf16 f32 f8e4m3 f32 both 32 x 64");
  EXPECT_EQ(kind(false, true), "QuantizeFloat8 bf16 f32 f8e4m3 f32 transposed 32 x 64");
}

// An op that computes the matrix which it quantizes reads other operands, and takes longer.
TEST(Rates, AMatrixThatIsComputedOnTheWayIsAnotherWork) {
  AbsMax find{
      .x_RC = Tensor::Contiguous(DType::kBFloat16, {32, 256}),
      .maximum_1 = Tensor::Contiguous(DType::kFloat32, {1}),
      .source = {.kind = Float8Source::Kind::kGateGradient, .d_y_RF = Tensor::Contiguous(DType::kBFloat16, {32, 128})}};
  const auto work = [](Op op) { return WorkOf(Instruction{.action = std::move(op)}, Mesh{}); };
  EXPECT_EQ(WorkText(work(find)), "AbsMax bf16 f32 gate_gradient 32 x 256");
  EXPECT_EQ(work(find).bytes_read, 2 * 32 * (256 + 128));
  find.source = {.kind = Float8Source::Kind::kGate, .gate = GateKind::kGeluTanh};
  EXPECT_EQ(WorkText(work(find)), "AbsMax bf16 f32 gate gelu 32 x 256");
  find.source = {.kind = Float8Source::Kind::kGelu, .gelu = GeluKind::kErf};
  EXPECT_EQ(WorkText(work(find)), "AbsMax bf16 f32 gelu erf 32 x 256");
  find.source = {.kind = Float8Source::Kind::kRope,
                 .position_ids_BS = Tensor::Contiguous(DType::kInt32, {2, 16}),
                 .rotation = {.sequence_length = 16, .heads = 3, .head_width = 64}};
  EXPECT_EQ(WorkText(work(find)), "AbsMax bf16 i32 f32 rope documents 32 x 256");
  RmsNormForward norm{.x = find.x_RC, .rstd_R = Tensor::Contiguous(DType::kFloat32, {32})};
  EXPECT_EQ(WorkText(work(norm)), "RmsNormForward bf16 f32 statistics 32 x 256");
  norm.weight_C = Tensor::Contiguous(DType::kBFloat16, {256});
  norm.y = find.x_RC;
  EXPECT_EQ(WorkText(work(norm)), "RmsNormForward bf16 f32 32 x 256");
}

// Blockwise scales have no operand of a maximum, because nothing looks for one before.
TEST(Rates, BlockwiseScalesAreAnotherWork) {
  const QuantizeFloat8 quantize{.x_RC = Tensor::Contiguous(DType::kBFloat16, {32, 256}),
                                .out_RC = Tensor::Contiguous(DType::kFloat8E4M3, {32, 256}),
                                .out_scales = Tensor::Contiguous(DType::kFloat32, {2, 32}),
                                .scales = Float8Scales::kTiles};
  const Work work = WorkOf(Instruction{.action = Op(quantize)}, Mesh{});
  EXPECT_EQ(WorkText(work), "QuantizeFloat8 bf16 f8e4m3 f32 tiles 32 x 256");
  EXPECT_EQ(work.bytes_read, 2 * 32 * 256);
  EXPECT_EQ(work.bytes_written, 32 * 256 + 4 * 2 * 32);
  const MatMul matmul{.a = quantize.out_RC,
                      .b = Tensor::Contiguous(DType::kFloat8E4M3, {16, 256}),
                      .c_MN = Tensor::Contiguous(DType::kBFloat16, {32, 16}),
                      .scale_a = quantize.out_scales,
                      .scale_b = Tensor::Contiguous(DType::kFloat32, {1, 4}),
                      .transpose_b = true,
                      .scales = Float8Scales::kBlocks};
  EXPECT_EQ(WorkText(WorkOf(Instruction{.action = Op(matmul)}, Mesh{})),
            "MatMul f8e4m3 f8e4m3 bf16 transpose_b blocks 32 x 16 x 256");
}

TEST(Rates, RanksOfAHostDivideItsCores) {
  proto::MachineProfile profile = GpuProfile();
  profile.set_device("CPU");
  AddWork(profile, NormOf(100, 1024), 1e-6);
  EXPECT_NEAR(RatesOf(profile, 2).Of(NormOf(100, 1024)).seconds, 2e-6, 1e-12);
  // Unless it was measured with as many.
  AddWork(profile, NormOf(100, 1024), 1.5e-6, /*ranks_on_host=*/2);
  EXPECT_NEAR(RatesOf(profile, 2).Of(NormOf(100, 1024)).seconds, 1.5e-6, 1e-12);
  EXPECT_TRUE(RatesOf(profile, 2).Of(NormOf(100, 1024)).shared);
  EXPECT_FALSE(RatesOf(profile, 1).Of(NormOf(100, 1024)).shared);
}

// A group within a host goes over the links of the host, one across hosts over those of all its ranks there.
TEST(Rates, CollectivesTakeTheLinksOfTheirGroup) {
  proto::MachineProfile profile = GpuProfile();
  for (const auto& [ends, speed] : {std::pair{proto::Link::DEVICES_OF_HOST, 400e9}, {proto::Link::HOSTS, 50e9}}) {
    proto::Link& link = *profile.add_links();
    link.set_ends(ends);
    link.set_bytes_per_second(speed);
  }
  const Rates rates = RatesOf(profile, 8);
  const auto gather = [](int64_t ranks, int64_t stride) {
    return Work{.work_class = WorkClass::kCollective,
                .kind = "AllGather bf16 shard",
                .sizes = {5e8, static_cast<double>(ranks)},
                .group_ranks = ranks,
                .group_stride = stride,
                .sent_bytes = 1e9};
  };
  EXPECT_DOUBLE_EQ(rates.Of(gather(8, 1)).seconds, 1e9 / 400e9);
  EXPECT_DOUBLE_EQ(rates.Of(gather(16, 1)).seconds, 1e9 / 400e9);
  EXPECT_DOUBLE_EQ(rates.Of(gather(16, 8)).seconds, 1e9 / 50e9);
  EXPECT_DOUBLE_EQ(rates.Of(gather(16, 4)).seconds, 1e9 / 100e9);
  // 8 of the 15 others are on another host, and each rank sends to them by itself.
  const auto exchange = [&](int64_t ranks) {
    Work work = gather(ranks, 1);
    work.kind = "AllToAll bf16 shard";
    return work;
  };
  EXPECT_DOUBLE_EQ(rates.Of(exchange(8)).seconds, 1e9 / 400e9);
  EXPECT_DOUBLE_EQ(rates.Of(exchange(16)).seconds, 8.0 / 15 * 1e9 / 50e9);
}

// Which groups cross processes and hosts, and what the busiest host sends, by hand.
TEST(Crossing, IsThatOfTheGroupsOfAJob) {
  const struct {
    const char* what;
    int64_t size, stride;
    RankLayout layout;
    bool processes, hosts;
    double gathered, reduced;
  } cases[] = {
      {"threads", 4, 1, {.ranks_on_host = 4, .ranks = 4, .processes = 1}, false, false, 0, 0},
      {"a process for each", 4, 1, {.ranks_on_host = 4, .ranks = 4, .processes = 4}, true, false, 0, 0},
      {"rows of a process", 2, 1, {.ranks_on_host = 4, .ranks = 4, .processes = 2}, false, false, 0, 0},
      {"columns", 2, 2, {.ranks_on_host = 4, .ranks = 4, .processes = 2}, true, false, 0, 0},
      {"processes of 1, 1 and 2 ranks", 2, 1, {.ranks_on_host = 4, .ranks = 4, .processes = 3}, true, false, 0, 0},
      {"two hosts", 4, 1, {.ranks_on_host = 2, .ranks = 4, .processes = 2}, true, true, 0.5, 1},
      {"each to two processes", 4, 1, {.ranks_on_host = 2, .ranks = 4, .processes = 4}, true, true, 1, 1},
      {"both columns", 2, 2, {.ranks_on_host = 2, .ranks = 4, .processes = 2}, true, true, 1, 1},
      // Hosts of three. Ranks 2 and 3 are a row on two hosts. Of the columns 0 2 4 and 1 3 5, the first host has two
      // ranks and one.
      {"a row on two hosts", 2, 1, {.ranks_on_host = 3, .ranks = 6, .processes = 2}, true, true, 0.5, 0.5},
      {"uneven columns", 3, 2, {.ranks_on_host = 3, .ranks = 6, .processes = 2}, true, true, 1, 4.0 / 3},
      {"uneven hosts", 5, 1, {.ranks_on_host = 3, .ranks = 5, .processes = 2}, true, true, 0.6, 1.2},
  };
  for (const auto& expected : cases) {
    const Crossing crossing = CrossingOf(expected.size, expected.stride, expected.layout);
    EXPECT_EQ(crossing.processes, expected.processes) << expected.what;
    EXPECT_EQ(crossing.hosts, expected.hosts) << expected.what;
    EXPECT_NEAR(crossing.gathered, expected.gathered, 1e-12) << expected.what;
    EXPECT_NEAR(crossing.reduced, expected.reduced, 1e-12) << expected.what;
  }
}

Work GatherOf(int64_t ranks, int64_t stride) {
  return {.work_class = WorkClass::kCollective,
          .kind = "AllGather f32 shard",
          .sizes = {1e6, static_cast<double>(ranks)},
          .bytes_read = 4e6 / static_cast<double>(ranks),
          .bytes_written = 4e6,
          .group_ranks = ranks,
          .group_stride = stride,
          .sent_bytes = 4e6 * (1 - 1 / static_cast<double>(ranks))};
}

TEST(Rates, OnCpusCollectivesBetweenProcessesHaveARateOfTheirOwn) {
  proto::MachineProfile profile = GpuProfile();
  profile.set_device("CPU");
  const RankLayout threads = {.ranks_on_host = 4, .ranks = 4},
                   processes = {.ranks_on_host = 4, .ranks = 4, .processes = 2};
  AddWork(profile, GatherOf(2, 1), 1e-3, /*ranks_on_host=*/4);
  EXPECT_NEAR(Rates(profile, processes).Of(GatherOf(2, 2)).seconds, 1e-3, 1e-9);
  EXPECT_EQ(Rates(profile, processes).Of(GatherOf(2, 2)).how, Knowledge::kEstimated);
  EXPECT_GT(Rates(profile, processes).Of(GatherOf(2, 2)).spread, Rates(profile, threads).Of(GatherOf(2, 2)).spread);

  proto::MachineProfile rated = profile;  // A rate that names processes comes before what threads took.
  rated.add_rates()->set_kind("AllGather f32 shard processes");
  rated.mutable_rates(0)->set_bytes_per_second(1e9);
  rated.mutable_rates(0)->set_latency_seconds(1);
  EXPECT_NEAR(Rates(rated, processes).Of(GatherOf(2, 2)).seconds, 1 + 6e6 / 0.25e9, 1e-9);
  EXPECT_NEAR(Rates(rated, threads).Of(GatherOf(2, 2)).seconds, 1e-3, 1e-9);

  Work between = GatherOf(2, 1);
  between.kind = KindBetweenProcesses(between.kind);
  EXPECT_EQ(between.kind, "AllGather f32 shard processes");
  AddWork(profile, between, 3e-3, /*ranks_on_host=*/4);
  EXPECT_NEAR(Rates(profile, threads).Of(GatherOf(2, 2)).seconds, 1e-3, 1e-9);
  EXPECT_NEAR(Rates(profile, processes).Of(GatherOf(2, 1)).seconds, 1e-3, 1e-9);
  EXPECT_NEAR(Rates(profile, processes).Of(GatherOf(2, 2)).seconds, 3e-3, 1e-9);
  EXPECT_EQ(Rates(profile, processes).Of(GatherOf(2, 2)).how, Knowledge::kMeasured);
  // Like kinds are of the same dtype, and of processes alone or of threads alone.
  Work like = GatherOf(2, 2);
  like.kind = "AllGather f32 all";
  EXPECT_NEAR(Rates(profile, threads).Of(like).seconds, 1e-3, 1e-9);
  EXPECT_NEAR(Rates(profile, processes).Of(like).seconds, 3e-3, 1e-9);
  // On GPUs processes change nothing.
  profile.set_device("CUDA");
  EXPECT_EQ(Rates(profile, processes).Of(GatherOf(2, 2)).seconds, Rates(profile, threads).Of(GatherOf(2, 2)).seconds);
}

TEST(Rates, OnCpusOfSeveralHostsCollectivesTakeTheirLink) {
  proto::MachineProfile profile = GpuProfile();
  profile.set_device("CPU");
  AddWork(profile, GatherOf(4, 1), 1e-3, /*ranks_on_host=*/2);
  proto::Link& link = *profile.add_links();
  link.set_ends(proto::Link::HOSTS);
  link.set_bytes_per_second(1e6);
  link.set_latency_seconds(0.25);
  const Rates rates(profile, {.ranks_on_host = 2, .ranks = 4, .processes = 2});
  const auto take = [&](const char* kind, double rounds) {
    Work work = GatherOf(4, 1);
    work.kind = kind;
    work.sent_bytes *= rounds;
    const WorkTime time = rates.Of(work);
    EXPECT_EQ(time.how, Knowledge::kEstimated) << kind;
    EXPECT_FALSE(time.shared) << kind;
    EXPECT_EQ(time.link_seconds, time.seconds) << kind;
    return time.seconds;
  };
  EXPECT_DOUBLE_EQ(take("AllGather f32 shard", 1), 2 + 0.25);
  EXPECT_DOUBLE_EQ(take("ReduceScatterSum f32 shard", 1), 4 + 0.25);
  EXPECT_DOUBLE_EQ(take("AllReduceSum f32 shard", 2), 6 + 0.5);
  EXPECT_DOUBLE_EQ(take("AllToAll f32 shard", 1), 4 + 0.5);
  // However fast the link is, nobody measured such a group.
  link.set_bytes_per_second(1e15);
  link.set_latency_seconds(1e-9);
  const WorkTime fast = Rates(profile, {.ranks_on_host = 2, .ranks = 4, .processes = 2}).Of(GatherOf(4, 1));
  EXPECT_NEAR(fast.seconds, 1e-3, 1e-9);
  EXPECT_EQ(fast.how, Knowledge::kEstimated);
  EXPECT_EQ(fast.copy_seconds, fast.seconds);
}

TEST(Rates, NoProfileMakesSecondsThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const std::vector<Work> works = {
      MatMulOf(1000, 1000, 1000),
      MatMulOf(0, 0, 0),
      NormOf(100, 100),
      {.work_class = WorkClass::kCollective, .kind = "AllGather f32 shard", .sizes = {1, 2}},
      {.work_class = WorkClass::kCollective,
       .kind = "AllReduceSum f32 shard",
       .sizes = {1, 14},
       .group_ranks = 14,
       .group_stride = 2,
       .sent_bytes = 1e300},
      {.work_class = WorkClass::kCopy, .kind = "Offload", .sizes = {1e9}},
      {.work_class = WorkClass::kHost, .kind = "Host AdamW f32", .sizes = {1, 1}},
      {}};
  for (const char* device : {"CPU", "CUDA", ""}) {
    for (const double value : {0.0, -1.0, 1e-300, 1e300, nan, infinity}) {
      proto::MachineProfile profile;
      profile.set_device(device);
      profile.set_peak_flops_f32(value);
      profile.set_peak_flops_bf16(value);
      profile.set_copy_bytes_per_second(value);
      proto::Link& link = *profile.add_links();
      link.set_ends(proto::Link::DEVICE_AND_HOST);
      link.set_bytes_per_second(value);
      link.set_latency_seconds(value);
      proto::KindRate& rate = *profile.add_rates();
      rate.set_kind("RmsNormForward");
      rate.set_bytes_per_second(value);
      rate.set_latency_seconds(value);
      for (const Work& work : {MatMulOf(10, 10, 10), MatMulOf(20, 10, 10), NormOf(10, 10), NormOf(20, 10)}) {
        Work absurd = work;
        absurd.sizes[0] = absurd.bytes_read = value;
        AddWork(profile, absurd, value);
        AddWork(profile, work, 1e-9 + work.sizes[0]);
        if (value > 0) AddWork(profile, work, value, /*ranks_on_host=*/-5);
      }
      for (const int64_t ranks : {-1, 0, 1, 7}) {
        for (const int64_t processes : {-1, 1, 3, 14}) {
          const Rates rates(profile, {.ranks_on_host = ranks, .ranks = 28, .processes = processes});
          for (const Work& work : works) {
            const WorkTime time = rates.Of(work);
            EXPECT_TRUE(std::isfinite(time.seconds) && time.seconds > 0) << work.kind << " " << value << " " << device;
            EXPECT_GE(time.spread, 0) << work.kind << " " << value;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shale
