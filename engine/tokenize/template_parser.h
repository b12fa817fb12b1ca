// The tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

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
  int depth = 1;  // Of the tree. It is bounded, so that a tree may be walked by recursion.

  void Add(Pointer part) {
    if (part != nullptr) depth = std::max(depth, part->depth + 1);
    parts.push_back(std::move(part));
  }
};

struct TemplateStatement {
  enum class Kind {
    kText,   // text
    kPrint,  // expression
    kIf,     // branches: the first with a true condition, or none
    kFor,    // text: names, in expression, if condition; body; otherwise
    kSet,    // text, or text.attribute
    kBreak,  // of the innermost loop
    kContinue,
  };
  struct Branch {
    TemplateExpression::Pointer condition;  // Null: else.
    std::vector<TemplateStatement> body;
  };

  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  std::string attribute;
  std::vector<std::string> names;
  TemplateExpression::Pointer expression, condition;
  std::vector<TemplateStatement> body, otherwise;
  std::vector<Branch> branches;
};

// Parses the statements if, for, set, break, continue and generation, and expressions without lambdas, tuples and
// floats. Refuses others by name, with the line.
absl::StatusOr<std::vector<TemplateStatement>> ParseTemplate(absl::string_view source);

}  // namespace shale
