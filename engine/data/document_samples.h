// DocumentSamples: the samples of a TokenSource whose documents are packed or padded (data.packing).
//
// S positions in a sample.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/data/data_enums.h"
#include "engine/data/documents.h"
#include "engine/data/documents_report.h"
#include "engine/data/token_source.h"

namespace shale {

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

}  // namespace shale
