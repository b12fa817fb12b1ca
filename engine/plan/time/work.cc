#include "engine/plan/time/work.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"

namespace shale {
namespace {

constexpr char kProcesses[] = " processes";  // The last word of a kind between processes.

double ElementsOf(const Tensor& t) { return t.present() ? static_cast<double>(t.elements()) : 0; }
double BytesOf(const Tensor& t) { return ElementsOf(t) * static_cast<double>(SizeOf(t.dtype)); }
double Size(int64_t size) { return static_cast<double>(size); }

void AddWords(Work& work, absl::string_view words) { absl::StrAppend(&work.kind, " ", words); }

void Describe(const MatMul& op, Work& work) {
  work.kind = absl::StrCat("MatMul ", ToString(op.a.dtype), " ", ToString(op.b.dtype), " ", ToString(op.c_MN.dtype));
  if (op.transpose_a) AddWords(work, "transpose_a");
  if (op.transpose_b) AddWords(work, "transpose_b");
  if (op.accumulate) AddWords(work, "accumulate");
  if (op.bias_N.present()) AddWords(work, "bias");
  if (op.packed_b.present()) AddWords(work, op.b_is_packed ? "packed" : "packs");
  if (op.fast_accumulation) AddWords(work, "fast");
  if (op.scales != Float8Scales::kOne) AddWords(work, ToString(op.scales));
  work.sizes = {Size(op.m()), Size(op.n()), Size(op.k())};
}

// `kernels`: those that compute it (Ops::KernelsOf). cuDNN's and our own have rates of their own.
template <class Attention>
void DescribeAttention(const Attention& op, absl::string_view kernels, Work& work) {
  const Tensor& q = op.q_BSHD;
  if (!kernels.empty()) AddWords(work, kernels);
  AddWords(work, ToString(q.dtype));
  if (op.causal) AddWords(work, "causal");
  if (op.cap > 0) AddWords(work, "cap");
  if (op.position_ids_BS.present()) AddWords(work, "documents");
  work.sizes = {Size(q.dim(0) * q.dim(2)), Size(q.dim(2) / op.k_BSGD.dim(2)), Size(q.dim(1)), Size(q.dim(3)),
                Size(op.window)};
}

// Describes an op by the dtypes of its operands and the shape of the largest one.
void DescribeOperands(const Op& op, Work& work) {
  const Tensor* largest = nullptr;
  absl::string_view last;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
    if (!t.present()) return;
    // Operands of one dtype are named once, so that the kind stays short.
    if (ToString(t.dtype) != last) AddWords(work, last = ToString(t.dtype));
    if (largest == nullptr || BytesOf(t) > BytesOf(*largest)) largest = &t;
  });
  if (largest == nullptr) {
    work.sizes = {0, 0};
    return;
  }
  const double columns = Size(largest->dim(-1));
  work.sizes = {ElementsOf(*largest) / std::max(columns, 1.0), columns};
}

void DescribeSource(const Float8Source& source, Work& work) {
  if (source.kind == Float8Source::Kind::kMatrix) return;
  AddWords(work, ToString(source.kind));
  if (source.gate == GateKind::kGeluTanh) AddWords(work, "gelu");
  if (source.gelu == GeluKind::kErf) AddWords(work, "erf");
  if (source.position_ids_BS.present()) AddWords(work, "documents");
}

void Describe(const Op& op, absl::string_view kernels, Work& work) {
  work.flops = FlopsOf(op);
  work.work_class = work.flops > 0 ? WorkClass::kArithmetic : WorkClass::kMemory;
  const OpTraffic traffic = TrafficOf(op);
  work.bytes_read = traffic.bytes_read;
  work.bytes_written = traffic.bytes_written;
  if (const auto* matmul = op.As<MatMul>()) return Describe(*matmul, work);
  if (const auto* forward = op.As<AttentionForward>()) return DescribeAttention(*forward, kernels, work);
  if (const auto* backward = op.As<AttentionBackward>()) return DescribeAttention(*backward, kernels, work);
  DescribeOperands(op, work);
  if (const auto* quantize = op.As<QuantizeFloat8>()) {
    if (quantize->transposed_CR.present()) AddWords(work, quantize->out_RC.present() ? "both" : "transposed");
    if (quantize->scales != Float8Scales::kOne) AddWords(work, ToString(quantize->scales));
    DescribeSource(quantize->source, work);
  }
  if (const auto* find = op.As<AbsMax>()) DescribeSource(find->source, work);
  if (const auto* norm = op.As<RmsNormForward>(); norm != nullptr && !norm->y.present()) AddWords(work, "statistics");
  if (const auto* norm = op.As<LayerNormForward>(); norm != nullptr && !norm->y.present()) AddWords(work, "statistics");
}

// Describes a copy of `bytes` between device and host.
void DescribeCopy(double bytes, bool to_host, Work& work) {
  work.work_class = WorkClass::kCopy;
  work.sizes = {bytes};
  (to_host ? work.bytes_read : work.bytes_written) = bytes;
}

void Describe(const Collective& collective, const Mesh& mesh, Work& work) {
  AddWords(work, absl::StrCat(ToString(collective.full.dtype), " ", ToString(collective.axis)));
  work.sizes = {ElementsOf(collective.full), Size(mesh.size(collective.axis))};
  const bool gathers = collective.kind == CollectiveKind::kAllGather;
  work.bytes_read = BytesOf(gathers ? collective.local : collective.full);
  const bool scatters =
      collective.kind == CollectiveKind::kReduceScatterSum || collective.kind == CollectiveKind::kAllToAll;
  work.bytes_written = BytesOf(scatters ? collective.local : collective.full);
  work.work_class = WorkClass::kCollective;
  work.group_ranks = mesh.size(collective.axis);
  work.group_stride = collective.axis == MeshAxis::kReplicate ? mesh.shard : 1;
  const double rounds = collective.kind == CollectiveKind::kAllReduceSum ? 2 : 1;
  work.sent_bytes = rounds * BytesOf(collective.full) * (1 - 1 / Size(work.group_ranks));
}

}  // namespace

std::string KindBetweenProcesses(absl::string_view kind) { return absl::StrCat(kind, kProcesses); }
bool IsBetweenProcesses(absl::string_view kind) { return absl::EndsWith(kind, kProcesses); }

bool MultipliesFloat8(absl::string_view kind) { return absl::StartsWith(kind, "MatMul f8"); }

Work WorkOf(const Instruction& issued, const Mesh& mesh) {
  Work work{.kind = NameOf(issued)};
  if (const auto* op = std::get_if<Op>(&issued.action)) {
    Describe(*op, issued.kernels, work);
    if (issued.stream == StreamId::kHost) {
      work.work_class = WorkClass::kHost;
      work.kind = absl::StrCat("Host ", work.kind);
    }
  } else if (const auto* collective = std::get_if<Collective>(&issued.action)) {
    Describe(*collective, mesh, work);
  } else if (const auto* transfer = std::get_if<Transfer>(&issued.action)) {
    DescribeCopy(BytesOf(transfer->device), transfer->to_host, work);
  } else {
    const auto& copy = std::get<StepItemCopy>(issued.action);
    DescribeCopy(BytesOf(copy.device), ToHost(copy.item), work);
  }
  return work;
}

std::string WorkText(const Work& work) {
  const auto whole = [](std::string* text, double size) { absl::StrAppendFormat(text, "%.0f", size); };
  return absl::StrCat(work.kind, " ", absl::StrJoin(work.sizes, " x ", whole));
}

}  // namespace shale
