// The classes of tokenizers that transformers has, by name (tests/parity/make_tokenizer_classes.py). Names lack "Fast".
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

// The model types for which transformers takes a class, with spaces between. The class is "" if it reads tokenizer.json
// as it stands.
struct TypesOfClass {
  absl::string_view name, types;
};
extern const absl::Span<const TypesOfClass> kTypesOfClasses;

// A name that tokenizer_class may have, and the class that it names. A name that is not among these means a class that
// reads tokenizer.json as it stands.
struct ClassName {
  absl::string_view name, means;
};
extern const absl::Span<const ClassName> kClassNames;

// The model types, with spaces between, whose own class transformers takes whatever tokenizer_class says.
extern const absl::string_view kTypesWithWrongClass;

}  // namespace shale
