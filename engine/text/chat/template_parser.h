// Parses and renders a chat template: its statements, and the expressions in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/chat/template_lexer.h"
#include "engine/text/chat/template_value.h"

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

struct TemplateStatement {
  enum class Kind {
    kText,        // Writes text.
    kPrint,       // Writes expression.
    kIf,          // Runs the first of branches whose condition is true, if there is one.
    kFor,         // Runs body for the names in expression that pass condition, or otherwise if there are none.
    kSet,         // Sets the variable text, or text.attribute, to expression.
    kBreak,       // Ends the innermost loop.
    kContinue,    // Goes on with the next element of the innermost loop.
    kGeneration,  // Runs body, which writes what the assistant says.
  };
  struct Branch {
    TemplateExpression::Pointer condition;  // Null for "else".
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

// Parses a template: text, expressions, and the statements if, for, set, break, continue and generation. Refuses other
// statements by name, with the line.
absl::StatusOr<std::vector<TemplateStatement>> ParseTemplate(absl::string_view source);
// Returns whether the statements have {% generation %}.
bool HasGeneration(const std::vector<TemplateStatement>& statements);

struct RenderedTemplate {
  TemplateText text;
  // What the statements {% generation %} wrote: bytes [first, second) of the text, in order.
  std::vector<std::pair<size_t, size_t>> generations;
  int64_t steps = 0;  // How many steps it took.
};

// Returns what the statements write. They may read the elements of the dict `variables`, whose texts have `input_bytes`
// bytes, and the date (ApplyFunction). Returns InvalidArgument with the line for an error in the template, and for a
// template that takes too many steps or builds too much (TemplateBudget).
absl::StatusOr<RenderedTemplate> RenderTemplate(const std::vector<TemplateStatement>& statements,
                                                const TemplateValue& variables, const std::string& date,
                                                double input_bytes);

}  // namespace shale
