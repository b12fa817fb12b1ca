#include <gtest/gtest.h>

#include <memory>

#include "engine/compile/program/live_bytes.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale {

void PrintTo(const Lifetime& lifetime, std::ostream* out) {
  *out << "[" << lifetime.first << ", " << lifetime.last << "]";
}

namespace testing {
namespace {

using enum StreamId;

class Lifetimes : public ::testing::Test {
 protected:
  Lifetime Of(BufferId buffer) { return ComputeLifetimes(builder_.Finish())[buffer]; }
  void Write(BufferId b) { builder_.Touch(kCompute, {}, {builder_.Bytes(b)}); }
  void Read(BufferId b) { builder_.Touch(kCompute, {builder_.Bytes(b)}, {}); }
  void Update(BufferId b) { builder_.Touch(kCompute, {}, {}, {builder_.Bytes(b)}); }
  void Nothing() { builder_.Touch(kCompute, {}, {}); }

  ProgramBuilder builder_;
  const BufferId x_ = builder_.AddBuffer("x", 100);
};

TEST_F(Lifetimes, AreFromTheFirstToTheLastAccess) {
  Nothing();
  Write(x_);
  Nothing();
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{1, 3}));
}

TEST_F(Lifetimes, OfABufferNobodyUsesAreEmpty) {
  Nothing();
  EXPECT_FALSE(Of(x_).used());
}

TEST_F(Lifetimes, OfPersistentBuffersAreTheWholeProgram) {
  const BufferId p = builder_.AddPersistent("p", 8);
  Nothing();
  Nothing();
  EXPECT_EQ(Of(p), (Lifetime{0, 1}));
}

TEST_F(Lifetimes, OfScratchAreItsInstruction) {
  Nothing();
  builder_.Touch(kCompute, {}, {}).scratch = builder_.Bytes(x_);
  EXPECT_EQ(Of(x_), (Lifetime{1, 1}));
}

TEST_F(Lifetimes, EndWhereTheBufferIsHeldUntil) {
  Write(x_);
  Nothing();
  Nothing();
  builder_.program().buffers[x_].held_until = 1;
  EXPECT_EQ(Of(x_), (Lifetime{0, 1}));
}

TEST_F(Lifetimes, AreNotCutShortByHeldUntil) {
  Write(x_);
  Nothing();
  Read(x_);
  builder_.program().buffers[x_].held_until = 1;
  EXPECT_EQ(Of(x_), (Lifetime{0, 2}));
}

TEST_F(Lifetimes, WithinOneIterationOfALoopStayWithinIt) {
  builder_.Loop(3);
  Nothing();
  Write(x_);
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{1, 2}));
}

TEST_F(Lifetimes, CoverALoopThatReadsWhatTheIterationBeforeLeft) {
  builder_.Loop(3);
  Nothing();
  Read(x_);
  Write(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 3}));
}

TEST_F(Lifetimes, CoverALoopThatReadsMoreThanItHasWritten) {
  builder_.Loop(2);
  Nothing();
  builder_.Touch(kCompute, {}, {builder_.Bytes(x_, 0, 60)});
  builder_.Touch(kCompute, {builder_.Bytes(x_, 40, 22)}, {});
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 3}));
}

TEST_F(Lifetimes, TakeSeveralWritesTogether) {
  builder_.Loop(2);
  Nothing();
  builder_.Touch(kCompute, {}, {builder_.Bytes(x_, 60, 40)});
  builder_.Touch(kCompute, {}, {builder_.Bytes(x_, 0, 60)});
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{1, 3}));
}

TEST_F(Lifetimes, CoverALoopThatAccumulates) {
  const BufferId y = builder_.AddBuffer("y", 100);
  builder_.Loop(2);
  Nothing();
  Write(y);
  builder_.AccumulateAfterFirst(kCompute, builder_.Bytes(y), builder_.Bytes(x_));
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 3}));
  EXPECT_EQ(Of(y), (Lifetime{1, 2}));
}

TEST_F(Lifetimes, CoverALoopWhoseFirstIterationWritesForAll) {
  const BufferId y = builder_.AddBuffer("y", 100);
  builder_.Loop(2);
  Nothing();
  Write(y);
  builder_.PackInFirst(kCompute, builder_.Bytes(y), builder_.Bytes(x_), Tensor());
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 3}));
  EXPECT_EQ(Of(y), (Lifetime{1, 2}));
}

TEST_F(Lifetimes, AreTheSameForEveryNumberOfMicroBatchesAboveOne) {
  for (int64_t k : {1, 2, 1000}) {
    ProgramBuilder b;
    const BufferId carried = b.AddBuffer("carried", 10), local = b.AddBuffer("local", 10);
    b.Loop(k);
    b.Touch(kCompute, {}, {b.Bytes(local)});
    b.Touch(kCompute, {b.Bytes(local)}, {}, {b.Bytes(carried)});
    b.Touch(kCompute, {}, {});
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(b.Finish());
    // A single iteration carries nothing over to another.
    EXPECT_EQ(lifetimes[carried], k == 1 ? (Lifetime{1, 1}) : (Lifetime{0, 2})) << k;
    EXPECT_EQ(lifetimes[local], (Lifetime{0, 1})) << k;
  }
}

TEST_F(Lifetimes, CoverEveryLoopOfABufferUsedInSeveralLoops) {
  builder_.Loop(2);  // 0, 1
  Nothing();
  Write(x_);
  builder_.Once();  // 2
  Nothing();
  builder_.Loop(2);  // 3, 4
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 4}));
}

TEST_F(Lifetimes, StayWithinLoopsThatRunOnce) {
  Nothing();
  Write(x_);
  builder_.Loop(2);  // 2
  Nothing();
  builder_.Once();  // 3, 4
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{1, 3}));
}

TEST_F(Lifetimes, HeldIntoALoopCoverIt) {
  Write(x_);
  builder_.Loop(2);
  Nothing();
  Nothing();
  builder_.program().buffers[x_].held_until = 1;
  EXPECT_EQ(Of(x_), (Lifetime{0, 2}));
}

TEST_F(Lifetimes, CountARangeThatIsZeroedAsWritten) {
  // A gradient whose gaps are zeroed in every iteration is written anew in every iteration, although the op leaves the
  // other elements unchanged.
  builder_.Loop(2);
  Nothing();
  builder_.Add(
      kCompute,
      Op(ZeroRanges{.x_N = builder_.Bytes(x_),
                    .ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{30, 50}})}));
  builder_.Touch(kCompute, {}, {builder_.Bytes(x_, 0, 60)});
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{1, 3}));
}

TEST_F(Lifetimes, DoNotCountWhatIsNotZeroed) {
  builder_.Loop(2);
  Nothing();
  builder_.Add(
      kCompute,
      Op(ZeroRanges{.x_N = builder_.Bytes(x_),
                    .ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{30, 50}})}));
  Read(x_);
  Nothing();
  EXPECT_EQ(Of(x_), (Lifetime{0, 3}));
}

}  // namespace
}  // namespace testing
}  // namespace shale
