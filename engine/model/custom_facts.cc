// The facts of custom models (engine/model/config.h).
#include "absl/strings/str_cat.h"
#include "engine/model/config.h"
#include "engine/text/numbers.h"

namespace shale {

std::string CustomModel::Description() const {
  return absl::StrCat("custom model ", name, " (", digest, "), ", Plural(layers, "block"),
                      vocabulary > 0 ? absl::StrCat(", vocabulary ", WithCommas(vocabulary)) : "");
}

bool CustomModel::operator==(const CustomModel& other) const {
  return name == other.name && digest == other.digest && layers == other.layers &&
         last_target_only == other.last_target_only && vocabulary == other.vocabulary;
}

}  // namespace shale
