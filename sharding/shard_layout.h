// ShardLayout: says where every parameter of a flat group lies, and which elements each shard of the group has. No
// other code knows this. GroupPlacement (placement.h) says which ranks hold which shards.
//
//   Parameters of 200 and 90 elements in three shards, offsets in elements. x: elements of no parameter ("gaps").
//
//   0           128    200  256     346 384
//   |  embed    :      |xxxx|  norm |xxx|
//   |  shard 0  |  shard 1  |  shard 2  |
//
// Every parameter starts at a multiple of kAlignment elements, or of the block of optimizer states if that is more. Its
// offset is therefore the same for every number of shards. The tail is padded, so that all shards have equal size and
// also start at such multiples. A shard may hold part of a parameter, several parameters, or none. Offsets count
// elements, because a group is stored in several dtypes; kAlignment elements of a dtype of two bytes are 256 bytes.
// Saved state names a parameter and a range of it, never an offset in the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/element_range.h"

namespace shale {

// Immutable and copyable. Any thread may read it.
class ShardLayout {
 public:
  static constexpr int64_t kAlignment = 128;

  struct Entry {
    std::string name;
    std::vector<int64_t> shape;  // Empty for a scalar.
  };

  struct PlacedParameter {
    std::string name;
    std::vector<int64_t> shape;
    int64_t offset_elements = 0;  // Offset in the group.
    int64_t elements = 0;
    ElementRange range() const { return {offset_elements, offset_elements + elements}; }
  };

  // The part of one parameter that lies in one shard.
  struct Piece {
    int parameter = 0;         // Index into parameters().
    ElementRange range;        // Elements of the parameter, not of the group. Never empty.
    int64_t shard_offset = 0;  // Offset of the piece in the shard, in elements.
    bool operator==(const Piece&) const = default;
  };

  // Lays out the parameters in the given order for `shards` shards. Parameters and shards start at multiples both of
  // `block` elements and of kAlignment. Returns InvalidArgument for a name that is empty or used twice, for a dimension
  // or number of shards below one, and for a group whose size in bytes might overflow 64 bits. REQUIRES: `block` is a
  // power of two.
  static absl::StatusOr<ShardLayout> Create(absl::Span<const Entry> entries, int shards, int64_t block = 1);

  int shards() const { return shards_; }
  const std::vector<PlacedParameter>& parameters() const { return parameters_; }
  // Returns the parameter of this name, or null if there is none. The pointer is valid as long as the layout.
  const PlacedParameter* Find(absl::string_view name) const;

  // Returns the end of the last parameter, which is the same for every number of shards; 0 without parameters.
  int64_t total_elements() const { return parameters_.empty() ? 0 : parameters_.back().range().end; }
  // Returns the number of elements of a full vector of the group: shards() x shard_elements().
  int64_t padded_elements() const { return shard_elements_ * shards_; }
  // Returns the number of elements of one shard, a multiple of kAlignment.
  int64_t shard_elements() const { return shard_elements_; }

  // Returns the elements of the group that a shard has.
  ElementRange ShardRange(int shard) const;
  // Returns the parts of parameters in a shard, in order of offset. Returns none if the shard is all padding.
  std::vector<Piece> ParameterPieces(int shard) const { return ParameterPieces(shard, 0, 1); }
  // Divide a shard into `parts` parts, and return the elements of part number `part`, and the parts of parameters among
  // them. Each part begins at a multiple of the layout's alignment, so the last parts may be shorter than the others,
  // or empty.
  ElementRange ShardRange(int shard, int part, int parts) const;
  std::vector<Piece> ParameterPieces(int shard, int part, int parts) const;

  // Returns the elements that belong to no parameter, including the padded tail, sorted.
  std::vector<ElementRange> gaps() const;
  // Returns the elements of the parameters that `wanted` accepts, sorted. Adjacent parameters become one range.
  std::vector<ElementRange> Ranges(absl::FunctionRef<bool(const PlacedParameter&)> wanted) const;

 private:
  ShardLayout() = default;

  int shards_ = 1;
  int64_t alignment_ = kAlignment;
  int64_t shard_elements_ = 0;
  std::vector<PlacedParameter> parameters_;  // In order of offset.
  absl::flat_hash_map<std::string, int> index_by_name_;
};

}  // namespace shale
