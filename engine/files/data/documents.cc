#include "engine/files/data/documents.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kTokensPerRead = int64_t{1} << 16;

// Collects the documents of a sequence of tokens, which it sees one after another.
class Finder {
 public:
  Finder(const DocumentMark& mark, int64_t most, LongDocuments longer) : mark_(mark), most_(most) {
    found_.report.longer = longer;
  }

  // Sees the token at `position`, the one after the token that it saw last. `begins_here`: the data says that a
  // document begins with this token.
  void See(int64_t position, int32_t token, bool begins_here) {
    if (mark_.begin_token >= 0 && token == mark_.begin_token) {
      // The token is also a target of the document before, unless it is the first token of all.
      if (position > 0) EndAt(position, position);
      found_mark_ = true;
    } else if (begins_here) {
      EndAt(position - 1, position);
    }
    if (mark_.end_token >= 0 && token == mark_.end_token) {
      EndAt(position, position + 1);
      found_mark_ = true;
    }
  }
  // Ends a document whose last target is at `last`. The next one begins at `next`.
  void EndAt(int64_t last, int64_t next) {
    DocumentsReport& report = found_.report;
    const int64_t targets = std::max<int64_t>(0, last - begin_), parts_before = std::ssize(found_.parts);
    const bool is_long = targets > most_;
    int64_t end = last;
    if (is_long && report.longer == LongDocuments::kTruncate) end = begin_ + most_;
    if (is_long && report.longer == LongDocuments::kDrop) end = begin_;
    for (int64_t at = begin_; at < end; at += most_) {
      found_.parts.push_back({at, static_cast<int32_t>(std::min(most_, end - at))});
      begins_document_.push_back(at == begin_);
    }
    report.documents += targets > 0 ? 1 : 0;
    report.kept_documents += end > begin_ ? 1 : 0;
    report.targets += targets;
    report.longest = std::max(report.longest, targets);
    if (is_long) {
      ++report.long_documents;
      report.long_parts += std::ssize(found_.parts) - parts_before;
      report.lost_targets += last - end;
    }
    begin_ = next;
  }

  bool found_mark() const { return found_mark_; }
  FoundDocuments& found() { return found_; }
  // Says for each part whether it is the first one of its document.
  const std::vector<bool>& begins_document() const { return begins_document_; }

 private:
  const DocumentMark mark_;
  const int64_t most_;
  int64_t begin_ = 0;  // Where the current document begins.
  bool found_mark_ = false;
  FoundDocuments found_;
  std::vector<bool> begins_document_;
};

// Leaves out the parts that have no target that counts in the loss: they would change nothing. Counts the documents of
// which a part is kept.
absl::Status KeepWhatCounts(const TokenSource& source, const std::vector<bool>& begins_document,
                            FoundDocuments& found) {
  std::vector<DocumentPart>& parts = found.parts;
  std::vector<int32_t> targets;
  size_t kept = 0;
  bool has_kept = false;  // Whether a part of the current document is kept.
  found.report.kept_documents = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (begins_document[i]) has_kept = false;
    targets.assign(parts[i].targets, 0);
    SHALE_RETURN_IF_ERROR(source.MaskTargets(parts[i].begin + 1, parts[i].targets, targets.data()));
    if (!absl::c_linear_search(targets, 0)) continue;
    found.report.kept_documents += has_kept ? 0 : 1;
    has_kept = true;
    parts[kept++] = parts[i];
  }
  found.report.without_counts = static_cast<int64_t>(parts.size() - kept);
  parts.resize(kept);
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> BestFit(absl::Span<const int32_t> sizes, int32_t capacity) {
  std::vector<int64_t> items(sizes.size());
  std::iota(items.begin(), items.end(), 0);
  std::stable_sort(items.begin(), items.end(), [&](int64_t a, int64_t b) { return sizes[a] > sizes[b]; });

  std::vector<int64_t> bins(sizes.size());
  std::map<int32_t, std::vector<int64_t>> open;  // The bins that are not full, by the room that they have left.
  int64_t count = 0;
  for (const int64_t item : items) {
    SHALE_CHECK(sizes[item] >= 1 && sizes[item] <= capacity) << "item " << item << " of size " << sizes[item];
    int32_t room = capacity;
    const auto best = open.lower_bound(sizes[item]);
    if (best == open.end()) {
      bins[item] = count++;
    } else {
      room = best->first;
      bins[item] = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    }
    if (room > sizes[item]) open[room - sizes[item]].push_back(bins[item]);
  }

  std::vector<int64_t> number(count, -1);
  int64_t next = 0;
  for (int64_t& bin : bins) {
    if (number[bin] < 0) number[bin] = next++;
    bin = number[bin];
  }
  return bins;
}

std::string DocumentMark::Describe() const {
  if (end_token >= 0) return absl::StrCat("documents end with token ", end_token);
  if (begin_token >= 0) return absl::StrCat("documents begin with token ", begin_token);
  return "documents are files";
}

absl::StatusOr<FoundDocuments> FindDocuments(const TokenSource& source, const DocumentMark& mark, int64_t most,
                                             LongDocuments longer) {
  SHALE_CHECK(mark.end_token < 0 || mark.begin_token < 0) << "two marks";
  SHALE_CHECK(most >= 1) << most;
  SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> begins, source.DocumentBegins());
  if (!mark.given() && begins.empty() && !source.knows_documents()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.Describe(), ": nothing tells documents apart in one file; give data.document_end_token",
                     source.is_text() ? " (10 makes every line a document)" : "", ", or data.document_begin_token"));
  }
  Finder finder(mark, most, longer);
  std::vector<int32_t> tokens(std::min(kTokensPerRead, source.size()));
  size_t next = 0;
  for (int64_t begin = 0; begin < source.size(); begin += kTokensPerRead) {
    const int64_t count = std::min(kTokensPerRead, source.size() - begin);
    SHALE_RETURN_IF_ERROR(source.Read(begin, count, tokens.data()));
    for (int64_t i = 0; i < count; ++i) {
      const bool begins_here = next < begins.size() && begins[next] == begin + i;
      if (begins_here) ++next;
      finder.See(begin + i, tokens[i], begins_here);
    }
  }
  finder.EndAt(source.size() - 1, source.size());
  if (mark.given() && !finder.found_mark()) {
    return absl::InvalidArgumentError(absl::StrCat(source.Describe(), ": ", mark.Describe(),
                                                   ", but no such token was found; give the token that this data has "
                                                   "(data.document_end_token or data.document_begin_token)"));
  }
  FoundDocuments& found = finder.found();
  if (found.report.documents == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.Describe(), ": no document has two tokens, an input and its target"));
  }
  if (found.parts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.Describe(), ": every document has more than ", most,
        " targets, and data.long_documents is DROP; raise batch.sequence_length, or set SPLIT or TRUNCATE"));
  }
  if (source.has_counts()) SHALE_RETURN_IF_ERROR(KeepWhatCounts(source, finder.begins_document(), found));
  if (found.parts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.Describe(), ": no target of a document counts in the loss; set data.loss_on=ALL, or give other data"));
  }
  return std::move(found);
}

}  // namespace shale
