// Expressions of a chat template.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenize/template_cursor.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// A node of the tree of an expression.
struct TemplateExpression {
  enum class Kind {
    kLiteral,      // value
    kName,         // name
    kAttribute,    // parts[0] . name
    kItem,         // parts[0] [ parts[1] ]
    kSlice,        // parts[0] [ parts[1] : parts[2] : parts[3] ]; a part may be null
    kCall,         // parts[0] ( the other parts, keywords )
    kFilter,       // parts[0] | name ( the other parts, keywords )
    kTest,         // parts[0] is name ( the other parts )
    kNot,          // parts[0]
    kMinus,        // parts[0]
    kBinary,       // parts[0] name parts[1]
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
    kList,         // parts
  };
  using Pointer = std::unique_ptr<TemplateExpression>;

  Kind kind = Kind::kLiteral;
  int line = 1;
  std::string name;
  TemplateValue value;
  std::vector<Pointer> parts;
  std::vector<std::pair<std::string, Pointer>> keywords;
  int depth = 1;  // Levels of the tree. Bounded, so that recursion over a tree is safe.

  // Appends a part, which may be null.
  void Add(Pointer part) {
    if (part != nullptr) depth = std::max(depth, part->depth + 1);
    parts.push_back(std::move(part));
  }
};

// Parses an expression up to the first token that does not belong to it. Refuses, by name and with the line, what is
// not supported: dicts, tuples, floats, and several comparisons in a row.
absl::StatusOr<TemplateExpression::Pointer> ParseTemplateExpression(TemplateCursor& cursor);
// Does the same for an expression without a conditional on its outermost level: "a" of "a if b".
absl::StatusOr<TemplateExpression::Pointer> ParseTemplateDisjunction(TemplateCursor& cursor);

}  // namespace shale
