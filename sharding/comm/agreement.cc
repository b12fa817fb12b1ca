#include "sharding/comm/agreement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shale {

std::string CollectiveText(CollectiveKind kind, int64_t elements, DType dtype) {
  if (kind == CollectiveKind::kAllToAll) return absl::StrCat(ToString(kind), " of ", ToString(dtype));
  return absl::StrCat(ToString(kind), " of ", elements, " ", ToString(dtype));
}

std::string ToString(const CollectiveWish& wish) {
  const std::string what = CollectiveText(wish.kind, wish.elements, wish.dtype);
  if (wish.place.instruction < 0) return what;
  return absl::StrCat(what, " for instruction ", wish.place.instruction, " in iteration ", wish.place.iteration,
                      " of run ", wish.place.run);
}

std::string RankList(absl::Span<const int> ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

absl::Status CheckAgreement(absl::Span<const CollectiveWish> wishes, absl::Span<const int> ranks, uint64_t number) {
  // Each party is the ranks that want the same collective. Parties are in the order of their first ranks.
  struct Party {
    CollectiveWish wish;
    std::vector<int> ranks;
  };
  std::vector<Party> parties;
  for (size_t i = 0; i < wishes.size(); ++i) {
    auto party = std::find_if(parties.begin(), parties.end(), [&](const Party& p) { return p.wish == wishes[i]; });
    if (party == parties.end()) party = parties.insert(party, {.wish = wishes[i]});
    party->ranks.push_back(ranks[i]);
  }
  if (parties.size() <= 1) return absl::OkStatus();
  std::string message = absl::StrCat("the ranks of a group disagree about collective ", number);
  absl::string_view separator = ": ";
  for (const Party& party : parties) {
    absl::StrAppend(&message, separator, RankList(party.ranks), party.ranks.size() == 1 ? " wants " : " want ",
                    ToString(party.wish));
    separator = "; ";
  }
  return absl::InvalidArgumentError(message);
}

absl::Status CheckPiece(int from, int64_t sent, int to, int64_t received, uint64_t number) {
  if (sent == received) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ranks of a group disagree about collective ", number,
                                                 ", AllToAll: rank ", from, " sends ", sent, " elements to rank ", to,
                                                 ", which wants ", received));
}

}  // namespace shale
