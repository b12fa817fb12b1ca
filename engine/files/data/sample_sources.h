// The samples of data as a DataSource: those of one TokenSource whose targets are one token later than the inputs,
// those of packed or padded documents (data.packing), and those of several sources in fixed proportions (data.mix).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/data/documents.h"
#include "engine/files/data/sample_order.h"
#include "engine/files/data/token_source.h"

namespace shale {

// Sample i has inputs [i S, (i + 1) S). Targets that do not count are kMaskedTarget. Safe for concurrent reads by
// multiple threads.
class TokenSamples : public DataSource {
 public:
  // REQUIRES: source.CheckLength(sequence_length) is OK.
  TokenSamples(TokenSource source, int64_t sequence_length);

  // Returns what TokenSource::Read returns. Allocates nothing but what that allocates.
  absl::Status Read(int64_t sample, const SampleParts& out) override;

 private:
  const TokenSource source_;
};

// With Packing::kPack a sample has position ids and holds the documents that BestFit puts into one bin, in the order of
// the data. With kPad it holds one document. The rest of a sample is padding: input 0, no target, and position id 0,
// which makes each token of it a document. Samples depend on the data, the mark and S alone. Takes 12 bytes for every
// part of a document, and 8 for every sample. Safe for concurrent reads by multiple threads.
class DocumentSamples : public DataSource {
 public:
  // Finds the documents and packs them. Returns the errors of FindDocuments. REQUIRES: `packing` is not kCut.
  static absl::StatusOr<std::shared_ptr<DocumentSamples>> Create(TokenSource source, Packing packing,
                                                                 const DocumentMark& mark, int64_t sequence_length,
                                                                 LongDocuments longer = LongDocuments::kSplit);

  // Returns what TokenSource::Read and MaskTargets return. Allocates nothing but what Read allocates.
  absl::Status Read(int64_t sample, const SampleParts& out) override;

  // Returns the number of targets of all samples, including targets that do not count in the loss.
  int64_t targets() const { return targets_; }
  const DocumentsReport& report() const { return report_; }

 private:
  // The parts of all samples, one sample after another. Sample i has the parts [first[i], first[i + 1]).
  struct Table {
    std::vector<int64_t> first;
    std::vector<int64_t> begins;   // DocumentPart::begin
    std::vector<int32_t> targets;  // DocumentPart::targets
  };
  static Table MakeTable(const std::vector<DocumentPart>& parts, Packing packing, int64_t sequence_length);

  DocumentSamples(TokenSource source, Packing packing, const FoundDocuments& found, int64_t sequence_length,
                  Table table);

  const TokenSource source_;
  const Table table_;
  const int64_t targets_;
  DocumentsReport report_;
};

// One of the sources of a mixture.
struct MixedPart {
  std::shared_ptr<DataSource> source;
  int64_t share = 0;  // How many of 1,000 samples come from it.
};

// A source that never ends. Any 1,000 consecutive samples have exactly `share` samples of each part, spread evenly.
// Reads each part in an order of its own, epoch after epoch, so a small part begins again while a large one lasts. The
// sample at a position depends on the shares, the sizes of the parts, the order and the seed alone. Takes a few KB of
// memory. Safe for concurrent reads if the parts are.
class MixedSamples : public DataSource {
 public:
  // REQUIRES: the shares are at least 1 and sum to kMixWindow, and the parts have the same fields in their samples, and
  // no state.
  MixedSamples(std::string name, std::vector<MixedPart> parts, DataOrder order, uint64_t seed);

  // A sample of a part.
  struct SampleOfPart {
    int64_t part = 0;
    int64_t sample = 0;  // The number of the sample in that part.
  };
  // Returns the sample at a position. REQUIRES: position >= 0.
  SampleOfPart At(int64_t position) const;

  // Returns the parts as checkpoints record them: "750 from 5120, 250 from 96", the share and the size of each.
  std::string Describe() const;

  // Returns what the Read of the part returns.
  absl::Status Read(int64_t position, const SampleParts& out) override;

 private:
  struct Slot {
    int16_t part = 0;
    int16_t rank = 0;  // How many slots before this one belong to the same part.
  };

  const std::vector<MixedPart> parts_;
  std::vector<SampleOrder> orders_;  // Of each part.
  std::array<Slot, kMixWindow> slots_;
};

}  // namespace shale
