#include "engine/files/hugging_face/weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/files/hugging_face/layout.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kStagingFloats = kHfReadStagingBytes / sizeof(float);

std::string ShapeText(absl::Span<const int64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Returns whether two tensors of equal shape hold the same values, to the bit, after conversion to fp32.
absl::StatusOr<bool> HaveEqualValues(const StoredTensor& a, const StoredTensor& b) {
  const int64_t elements = a.tensor->elements();
  std::vector<float> left(std::min(elements, kStagingFloats)), right(left.size());
  for (int64_t at = 0; at < elements; at += kStagingFloats) {
    const size_t count = std::min(kStagingFloats, elements - at);
    SHALE_RETURN_IF_ERROR(a.Read(at, absl::MakeSpan(left).subspan(0, count)));
    SHALE_RETURN_IF_ERROR(b.Read(at, absl::MakeSpan(right).subspan(0, count)));
    if (std::memcmp(left.data(), right.data(), count * sizeof(float)) != 0) return false;
  }
  return true;
}

// Returns the name of a tensor as a layout has it. The files of some trainers have the name that the adapters have in
// PEFT's memory, lora_A.default.weight; PEFT itself writes lora_A.weight.
std::string BareName(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  for (const absl::string_view matrix : {"lora_A", "lora_B"}) {
    if (absl::EndsWith(name, absl::StrCat(".", matrix, ".default.weight"))) {
      return absl::StrCat(absl::StripSuffix(name, "default.weight"), "weight");
    }
  }
  return std::string(name);
}

// Pairs the tensors that the model needs with those that the files have.
class Matcher {
 public:
  Matcher(const HfLayout& layout, const TensorFiles& files, HfProblems* problems)
      : layout_(layout), problems_(*problems) {
    for (const auto& [name, stored] : files.tensors) {
      const auto [at, is_new] = stored_.try_emplace(BareName(name, layout.prefix), Stored{name, stored});
      if (!is_new) problems_.Add(absl::StrCat(ShownTensorName(name), ": stored twice, also as ", at->second.name));
    }
  }

  // Returns the tensors in the layout's order. The caller must not use the result if there are problems.
  absl::StatusOr<std::vector<StoredTensor>> Match(bool tied) {
    std::optional<Stored> repeat;
    if (tied) repeat = Take(HfLayout::kHeadName);
    if (repeat.has_value() && !stored_.contains(layout_.embedding_name)) {
      stored_.emplace(layout_.embedding_name, *std::exchange(repeat, std::nullopt));
    }
    std::vector<StoredTensor> tensors;
    for (const HfTensor& wanted : layout_.tensors) {
      const std::optional<Stored> found = Take(wanted.name);
      if (!found.has_value()) {
        problems_.Add(absl::StrCat(layout_.FullName(wanted), ": missing, wanted ", ShapeText(wanted.shape)));
      } else {
        CheckTensor(*found, wanted.shape);
      }
      tensors.push_back(found.has_value() ? found->stored : StoredTensor());
    }
    const StoredTensor& embedding = tensors[0];
    if (repeat.has_value() && embedding.tensor != nullptr && CheckTensor(*repeat, layout_.tensors[0].shape) &&
        problems_.empty()) {
      SHALE_ASSIGN_OR_RETURN(const bool equal, HaveEqualValues(embedding, repeat->stored));
      if (!equal) {
        problems_.Add(absl::StrCat(repeat->name, ": differs from ", embedding.tensor->name,
                                   ", though tie_word_embeddings says that they are one; set it to false"));
      }
    }
    for (const auto& [bare, stored] : stored_) {
      if (!IsKnownHfBuffer(bare)) {
        problems_.Add(absl::StrCat(ShownTensorName(stored.name), ": the model has no such tensor; found ",
                                   ShapeText(stored.stored.tensor->shape)));
      }
    }
    return tensors;
  }

 private:
  struct Stored {
    std::string name;  // The name in the file.
    StoredTensor stored;
  };

  std::optional<Stored> Take(const std::string& bare) {
    const auto found = stored_.find(bare);
    if (found == stored_.end()) return std::nullopt;
    const Stored stored = found->second;
    stored_.erase(found);
    return stored;
  }

  bool CheckTensor(const Stored& found, const std::vector<int64_t>& shape) {
    const SafetensorsTensor& tensor = *found.stored.tensor;
    if (tensor.shape != shape) {
      problems_.Add(absl::StrCat(found.name, ": found ", ShapeText(tensor.shape), ", wanted ", ShapeText(shape)));
      return false;
    }
    if (tensor.dtype != SafetensorsDType::kF32 && tensor.dtype != SafetensorsDType::kF16 &&
        tensor.dtype != SafetensorsDType::kBF16) {
      problems_.Add(absl::StrCat(found.name, ": found dtype ", ToString(tensor.dtype), ", wanted F32, F16 or BF16"));
      return false;
    }
    return true;
  }

  const HfLayout& layout_;
  HfProblems& problems_;
  std::map<std::string, Stored> stored_;  // Tensors that are not paired yet, keyed by name without prefix.
};

// Reads elements [begin, begin + values.size()) of a parameter that is stored transposed, as [columns, all rows]. Reads
// one tile at a time, and one column after another within a tile.
absl::Status ReadTransposed(const StoredTensor& stored, int64_t columns, int64_t begin, absl::Span<float> values) {
  if (values.empty()) return absl::OkStatus();
  const int64_t all_rows = stored.tensor->shape[1], end = begin + static_cast<int64_t>(values.size());
  const int64_t first_row = begin / columns, last_row = (end - 1) / columns;
  std::vector<float> staging(std::min(kStagingFloats, static_cast<int64_t>(values.size()) + 2 * columns));
  // A tile has at least this many columns if that is possible, so that writes to `values` fill whole cache lines.
  constexpr int64_t kColumns = 16;
  const int64_t max_rows = static_cast<int64_t>(staging.size()) / kColumns;
  const int64_t tile_rows = std::max<int64_t>(1, max_rows);
  for (int64_t row = first_row; row <= last_row; row += tile_rows) {
    const int64_t row_end = std::min(row + tile_rows, last_row + 1);
    const int64_t tile_columns = std::min(columns, static_cast<int64_t>(staging.size()) / (row_end - row));
    for (int64_t column = 0; column < columns; column += tile_columns) {
      const int64_t column_end = std::min(column + tile_columns, columns);
      // Only the first and the last row may be requested in part.
      const auto first_of = [&](int64_t c) { return row * columns + c >= begin ? row : row + 1; };
      const auto end_of = [&](int64_t c) { return (row_end - 1) * columns + c < end ? row_end : row_end - 1; };
      for (int64_t c = column; c < column_end; ++c) {
        const int64_t from = first_of(c), count = end_of(c) - from;
        if (count <= 0) continue;
        float* run = staging.data() + (c - column) * (row_end - row) + (from - row);
        SHALE_RETURN_IF_ERROR(stored.Read(c * all_rows + from, absl::MakeSpan(run, count)));
      }
      for (int64_t r = row; r < row_end; ++r) {
        for (int64_t c = column; c < column_end; ++c) {
          if (r < first_of(c) || r >= end_of(c)) continue;
          values[r * columns + c - begin] = staging[(c - column) * (row_end - row) + (r - row)];
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct HfWeights::State {
  HfLayout layout;
  std::vector<HfParameterShape> parameters;
  TensorFiles files;
  std::vector<StoredTensor> tensors;  // Indexed like layout.tensors.
};

HfWeights::HfWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
HfWeights::HfWeights(HfWeights&&) noexcept = default;
HfWeights& HfWeights::operator=(HfWeights&&) noexcept = default;
HfWeights::~HfWeights() = default;

namespace {

std::vector<HfParameterShape> ShapesOf(const HfLayout& layout) {
  std::vector<HfParameterShape> shapes;
  for (const HfParameter& parameter : layout.parameters) shapes.push_back({parameter.name, parameter.shape});
  return shapes;
}

}  // namespace

absl::StatusOr<HfWeights> HfWeights::Open(const std::string& folder, const DecoderConfig& config) {
  auto state = std::make_unique<State>();
  SHALE_ASSIGN_OR_RETURN(state->layout, MakeHfLayout(config));
  state->parameters = ShapesOf(state->layout);
  HfProblems problems;
  SHALE_ASSIGN_OR_RETURN(state->files, OpenTensorFiles(folder, &problems));
  Matcher matcher(state->layout, state->files, &problems);
  SHALE_ASSIGN_OR_RETURN(state->tensors, matcher.Match(config.tied_head));
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        problems.ToString(absl::StrCat(folder, " does not hold the weights that its config.json describes")));
  }
  return HfWeights(std::move(state));
}

absl::StatusOr<HfWeights> HfWeights::OpenAdapter(const std::string& folder, const DecoderConfig& config) {
  constexpr absl::string_view kFile = "adapter_model.safetensors";
  auto state = std::make_unique<State>();
  SHALE_ASSIGN_OR_RETURN(state->layout, MakeHfAdapterLayout(config));
  state->parameters = ShapesOf(state->layout);
  absl::StatusOr<TensorFiles> files = OpenTensorFile(folder, kFile);
  if (absl::IsNotFound(files.status())) {
    return absl::NotFoundError(absl::StrCat(folder, " has no ", kFile, "; adapters must be safetensors of PEFT"));
  }
  SHALE_RETURN_IF_ERROR(files.status());
  state->files = *std::move(files);
  HfProblems problems;
  Matcher matcher(state->layout, state->files, &problems);
  SHALE_ASSIGN_OR_RETURN(state->tensors, matcher.Match(/*tied=*/false));
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        problems.ToString(absl::StrCat(folder, " does not hold the adapters of the model")));
  }
  return HfWeights(std::move(state));
}

const std::vector<HfParameterShape>& HfWeights::parameters() const { return state_->parameters; }

bool HfWeights::Has(absl::string_view parameter) const { return state_->layout.parameter_index.contains(parameter); }

absl::Status HfWeights::Read(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  const auto found = state_->layout.parameter_index.find(name);
  if (found == state_->layout.parameter_index.end()) {
    return absl::NotFoundError(absl::StrCat("the model has no parameter ", name));
  }
  const HfParameter& parameter = state_->layout.parameters[found->second];
  const int64_t size = values.size(), columns = parameter.columns();
  SHALE_RETURN_IF_ERROR(CheckElements(absl::StrCat("parameter ", name), parameter.elements(), begin, size));
  for (const HfPiece& piece : parameter.pieces) {
    const int64_t from = std::max(begin, piece.row * columns);
    const int64_t to = std::min(begin + size, (piece.row + piece.rows) * columns);
    if (from >= to) continue;
    const absl::Span<float> out = values.subspan(from - begin, to - from);
    const StoredTensor& stored = state_->tensors[piece.tensor];
    const int64_t at = from + (piece.tensor_row - piece.row) * columns;  // Offset in the tensor if not transposed.
    if (state_->layout.tensors[piece.tensor].transposed) {
      SHALE_RETURN_IF_ERROR(ReadTransposed(stored, columns, at, out));
    } else {
      SHALE_RETURN_IF_ERROR(stored.Read(at, out));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
