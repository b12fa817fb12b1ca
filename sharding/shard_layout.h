// ShardLayout: where every parameter of a flat group lies, and which rank owns what. Nothing else knows.
//
//   Parameters of 200 and 90 elements on three ranks, offsets in elements; x: elements of no parameter ("gaps").
//
//   0           128    200  256     346 384
//   |  embed    :      |xxxx|  norm |xxx|
//   |  rank 0   |  rank 1   |  rank 2   |
//
// Every parameter starts at a multiple of kAlignment elements, whatever the world size, so that offsets never change
// with it; the tail is padded so that the slices of all ranks are equal and start at such multiples too. A slice may
// hold part of a parameter, several, or none. Offsets count elements, for a group is stored in several dtypes; in the
// narrowest, of two bytes, kAlignment elements are 256 bytes. Saved state names a parameter and a range of it, never an
// offset of here.
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

// Immutable, copyable; any thread may read it.
class ShardLayout {
 public:
  static constexpr int64_t kAlignment = 128;

  struct Entry {
    std::string name;
    std::vector<int64_t> shape;  // Empty: a scalar.
  };

  struct Placement {
    std::string name;
    std::vector<int64_t> shape;
    int64_t offset_elements = 0;  // In the group.
    int64_t elements = 0;
    ElementRange range() const { return {offset_elements, offset_elements + elements}; }
  };

  // The part of one parameter that lies in one rank's slice.
  struct Piece {
    int parameter = 0;         // Index into parameters().
    ElementRange range;        // Of the parameter, not of the group; never empty.
    int64_t slice_offset = 0;  // Where it starts in the rank's slice, in elements.
    bool operator==(const Piece&) const = default;
  };

  // Lays the parameters out in the order given, for `world_size` ranks. Refuses a name that is empty or used twice, a
  // dimension below one, a world size below one, and groups of more elements than 64 bits can count the bytes of.
  static absl::StatusOr<ShardLayout> Create(absl::Span<const Entry> entries, int world_size);

  int world_size() const { return world_size_; }
  const std::vector<Placement>& parameters() const { return parameters_; }
  // Null: no such parameter. Valid as long as the layout.
  const Placement* Find(absl::string_view name) const;

  // One past the last parameter's last element: the same for every world size. 0: a group without parameters.
  int64_t total_elements() const { return parameters_.empty() ? 0 : parameters_.back().range().end; }
  // What a full vector of the group holds: world_size() x shard_elements().
  int64_t padded_elements() const { return shard_elements_ * world_size_; }
  // What each rank owns, a multiple of kAlignment.
  int64_t shard_elements() const { return shard_elements_; }

  // The elements of the group that `rank` owns.
  ElementRange ShardRange(int rank) const;
  // The parameters in the slice of `rank`, in order of offset. None: all of the slice is padding.
  std::vector<Piece> ParameterPieces(int rank) const;

  // The elements of no parameter, the tail included, sorted.
  std::vector<ElementRange> gaps() const;
  // The elements of the parameters that `wanted` accepts, sorted; parameters that touch become one range.
  std::vector<ElementRange> Ranges(absl::FunctionRef<bool(const Placement&)> wanted) const;

 private:
  ShardLayout() = default;

  int world_size_ = 1;
  int64_t shard_elements_ = 0;
  std::vector<Placement> parameters_;  // By offset.
  absl::flat_hash_map<std::string, int> index_by_name_;
};

}  // namespace shale
