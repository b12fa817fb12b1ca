#include "sharding/shard_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Keeps offsets in bytes within 63 bits. An element has at most eight bytes.
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;

absl::Status TooLarge(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has more than ", kMaxElements, " elements, the most that a flat group can hold"));
}

absl::StatusOr<int64_t> ElementsOf(const ShardLayout::Entry& entry) {
  int64_t elements = 1;
  for (int64_t dimension : entry.shape) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", entry.name, " has shape [",
                                                     absl::StrJoin(entry.shape, ", "),
                                                     "]; every dimension must be at least 1"));
    }
    if (elements > kMaxElements / dimension) {
      return TooLarge(absl::StrCat("parameter ", entry.name, " of shape [", absl::StrJoin(entry.shape, ", "), "]"));
    }
    elements *= dimension;
  }
  return elements;
}

}  // namespace

absl::StatusOr<ShardLayout> ShardLayout::Create(absl::Span<const Entry> entries, int shards, int64_t block) {
  if (shards < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a layout for ", shards, " shards; there must be at least 1"));
  }
  SHALE_CHECK(block >= 1 && (block & (block - 1)) == 0) << "blocks of " << block << " elements";
  const int64_t alignment = std::max(kAlignment, block);
  ShardLayout layout;
  layout.shards_ = shards;
  layout.alignment_ = alignment;
  int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", layout.parameters_.size(), " of a group has no name"));
    }
    SHALE_ASSIGN_OR_RETURN(const int64_t elements, ElementsOf(entry));
    const int64_t offset = RoundUp(end, alignment);
    if (elements > kMaxElements - alignment - offset) return TooLarge(absl::StrCat("the group up to ", entry.name));
    const int index = static_cast<int>(layout.parameters_.size());
    if (!layout.index_by_name_.try_emplace(entry.name, index).second) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", entry.name, " occurs twice in one group"));
    }
    layout.parameters_.push_back({entry.name, entry.shape, offset, elements});
    end = offset + elements;
  }
  // Shards consist of blocks of `alignment` elements.
  const int64_t blocks = CeilDivide(end, alignment);
  const int64_t blocks_per_shard = CeilDivide(blocks, shards);
  if (blocks_per_shard > kMaxElements / alignment / shards) {
    return TooLarge(absl::StrCat("the group, padded for ", shards, " shards,"));
  }
  layout.shard_elements_ = blocks_per_shard * alignment;
  return layout;
}

const ShardLayout::PlacedParameter* ShardLayout::Find(absl::string_view name) const {
  const auto it = index_by_name_.find(name);
  return it == index_by_name_.end() ? nullptr : &parameters_[it->second];
}

ElementRange ShardLayout::ShardRange(int shard) const {
  SHALE_CHECK(shard >= 0 && shard < shards_) << "shard " << shard << " of " << shards_;
  return {shard * shard_elements_, (shard + 1) * shard_elements_};
}

ElementRange ShardLayout::ShardRange(int shard, int part, int parts) const {
  SHALE_CHECK(part >= 0 && part < parts) << "part " << part << " of " << parts;
  const ElementRange whole = ShardRange(shard);
  const int64_t size = RoundUp(CeilDivide(shard_elements_, parts), alignment_);
  return {std::min(whole.begin + part * size, whole.end), std::min(whole.begin + (part + 1) * size, whole.end)};
}

std::vector<ShardLayout::Piece> ShardLayout::ParameterPieces(int shard, int part, int parts) const {
  const ElementRange range = ShardRange(shard, part, parts);
  const int64_t shard_begin = ShardRange(shard).begin;
  std::vector<Piece> pieces;
  if (range.begin == range.end) return pieces;
  auto it = std::partition_point(parameters_.begin(), parameters_.end(),
                                 [&](const PlacedParameter& p) { return p.range().end <= range.begin; });
  for (; it != parameters_.end() && it->offset_elements < range.end; ++it) {
    const int64_t begin = std::max(range.begin, it->offset_elements);
    const int64_t end = std::min(range.end, it->range().end);
    pieces.push_back({.parameter = static_cast<int>(it - parameters_.begin()),
                      .range = {begin - it->offset_elements, end - it->offset_elements},
                      .shard_offset = begin - shard_begin});
  }
  return pieces;
}

std::vector<ElementRange> ShardLayout::gaps() const {
  std::vector<ElementRange> gaps;
  int64_t at = 0;
  const auto skip_to = [&](int64_t next) {
    if (at < next) gaps.push_back({at, next});
  };
  for (const PlacedParameter& p : parameters_) {
    skip_to(p.offset_elements);
    at = p.range().end;
  }
  skip_to(padded_elements());
  return gaps;
}

std::vector<ElementRange> ShardLayout::Ranges(absl::FunctionRef<bool(const PlacedParameter&)> wanted) const {
  std::vector<ElementRange> ranges;
  for (const PlacedParameter& p : parameters_) {
    if (!wanted(p)) continue;
    if (!ranges.empty() && ranges.back().end == p.offset_elements) {
      ranges.back().end = p.range().end;
    } else {
      ranges.push_back(p.range());
    }
  }
  return ranges;
}

}  // namespace shale
