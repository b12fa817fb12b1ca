#include "kernels/cpu/update_ops.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"
#include "kernels/reference/host_ops.h"

namespace shale {
namespace {

template <class OpType, class... Kinds>
constexpr bool kIsOneOf = (std::is_same_v<OpType, Kinds> || ...);

template <class OpType>
constexpr bool kRuns = kIsOneOf<OpType, Update, Sum, SumSquares, Copy, Add, Accumulate, ZeroRanges, MeanFactor,
                                FlagNonFinite, CombineTotals, PrepareUpdate, RecordNorm>;

class UpdateOps : public HostOps {
 public:
  explicit UpdateOps(int threads) : context_{.team = std::make_shared<cpu::Team>(threads)} {}

  int64_t ScratchBytes(const Op& op) const override {
    return std::visit(
        [&]<class OpType>(const OpType& o) -> int64_t {
          if constexpr (kRuns<OpType>) return cpu::ScratchBytesOf(o, context_);
          return 0;
        },
        op.kinds());
  }
  absl::Status Prepare(const Op& op, int64_t /*scratch_bytes*/) override {
    SHALE_RETURN_IF_ERROR(context_.team->Start());
    return std::visit([&]<class OpType>(const OpType&) { return Check(op, kRuns<OpType>); }, op.kinds());
  }
  absl::Status Run(const Op& op, Scratch scratch) const override {
    SHALE_RETURN_IF_ERROR(context_.team->Start());
    return std::visit(
        [&]<class OpType>(const OpType& o) -> absl::Status {
          if constexpr (kRuns<OpType>) return cpu::RunAny(o, scratch, context_);
          return Check(op, false);
        },
        op.kinds());
  }

 private:
  static absl::Status Check(const Op& op, bool runs) {
    if (runs) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(NameOf(op), " does not run on the host of a GPU"));
  }

  cpu::Context context_;
};

}  // namespace

std::unique_ptr<Ops> CreateCpuUpdateOps(int threads) {
  cpu::UsedInstructionSet();  // Limits the instructions of all kernels.
  SHALE_CHECK(threads >= 1) << "threads is " << threads;
  return std::make_unique<UpdateOps>(threads);
}

}  // namespace shale
