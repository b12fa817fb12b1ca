#include <algorithm>
#include <iterator>

#include "engine/strings/messages.h"
#include "engine/text/chat/template_parser.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Expression = TemplateExpression;
using Pointer = TemplateExpression::Pointer;
using Token = TemplateToken;

constexpr int kMaxDepth = TemplateCursor::kMaxDepth;
constexpr int kMaxTree = 1000;  // Levels of a tree.
constexpr absl::string_view kTooDeep = "expressions are nested too deeply";

// Binary operators of arithmetic and text. Those of a later level bind tighter.
constexpr absl::string_view kLevels[][3] = {{"+", "-"}, {"~"}, {"*", "//", "%"}};

// A parser by recursive descent: each function parses what its name says, and what binds tighter.
class ExpressionParser {
 public:
  explicit ExpressionParser(TemplateCursor& cursor) : cursor_(cursor) {}

  absl::StatusOr<Pointer> Conditional() {
    SHALE_RETURN_IF_ERROR(cursor_.Down(kTooDeep));
    SHALE_ASSIGN_OR_RETURN(Pointer value, Or());
    for (int count = 0; cursor_.TakeWord("if"); ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      Pointer both = New(Expression::Kind::kConditional, std::move(value));
      SHALE_ASSIGN_OR_RETURN(Pointer condition, Or());
      both->Add(std::move(condition));
      Pointer otherwise;
      if (cursor_.TakeWord("else")) {
        SHALE_ASSIGN_OR_RETURN(otherwise, Conditional());
      }
      both->Add(std::move(otherwise));
      value = std::move(both);
    }
    cursor_.Up();
    if (value->depth > kMaxTree) return cursor_.Error(kTooDeep);
    return value;
  }

  absl::StatusOr<Pointer> Or() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, And());
    for (int count = 0; cursor_.TakeWord("or"); ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      SHALE_ASSIGN_OR_RETURN(Pointer right, And());
      left = Binary(std::move(left), "or", std::move(right));
    }
    return left;
  }

 private:
  Pointer New(Expression::Kind kind, Pointer first = nullptr, std::string name = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = cursor_.Peek().line;
    expression->name = std::move(name);
    if (first != nullptr) expression->Add(std::move(first));
    return expression;
  }

  absl::StatusOr<Pointer> And() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, Not());
    for (int count = 0; cursor_.TakeWord("and"); ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      SHALE_ASSIGN_OR_RETURN(Pointer right, Not());
      left = Binary(std::move(left), "and", std::move(right));
    }
    return left;
  }

  absl::StatusOr<Pointer> Not() {
    if (!cursor_.TakeWord("not")) return Comparison();
    SHALE_RETURN_IF_ERROR(cursor_.Down(kTooDeep));
    SHALE_ASSIGN_OR_RETURN(Pointer value, Not());
    cursor_.Up();
    return New(Expression::Kind::kNot, std::move(value));
  }

  absl::StatusOr<Pointer> Comparison() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, Level(0));
    bool compared = false;
    while (true) {
      std::string sign;
      for (const absl::string_view one : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (sign.empty() && cursor_.Take(one)) sign = std::string(one);
      }
      bool negated = false;
      if (sign.empty() && cursor_.TakeWord("in")) sign = "in";
      if (sign.empty() && cursor_.IsWord("not") && cursor_.PeekSecond().text == "in") {
        cursor_.Next();
        cursor_.Next();
        sign = "in";
        negated = true;
      }
      if (sign.empty()) return left;
      if (compared) return cursor_.Error("several comparisons in a row are not supported");
      compared = true;
      SHALE_ASSIGN_OR_RETURN(Pointer right, Level(0));
      left = Binary(std::move(left), sign, std::move(right));
      if (negated) left = New(Expression::Kind::kNot, std::move(left));
    }
  }

  absl::StatusOr<Pointer> Level(size_t level) {
    if (level == std::size(kLevels)) return Unary(/*filters=*/true);
    SHALE_ASSIGN_OR_RETURN(Pointer left, Level(level + 1));
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      const auto found = std::find_if(std::begin(kLevels[level]), std::end(kLevels[level]),
                                      [&](absl::string_view sign) { return !sign.empty() && cursor_.Is(sign); });
      if (found == std::end(kLevels[level])) return left;
      cursor_.Next();
      SHALE_ASSIGN_OR_RETURN(Pointer right, Level(level + 1));
      left = Binary(std::move(left), std::string(*found), std::move(right));
    }
  }

  absl::StatusOr<Pointer> Unary(bool filters) {
    Pointer value;
    if (cursor_.Take("-")) {
      SHALE_RETURN_IF_ERROR(cursor_.Down(kTooDeep));
      SHALE_ASSIGN_OR_RETURN(value, Unary(/*filters=*/false));
      cursor_.Up();
      value = New(Expression::Kind::kMinus, std::move(value));
    } else {
      SHALE_ASSIGN_OR_RETURN(value, Primary());
    }
    SHALE_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
    return filters ? Filters(std::move(value)) : std::move(value);
  }

  absl::StatusOr<Pointer> Primary() {
    const Token token = cursor_.Peek();
    if (token.kind == Token::Kind::kString) {
      Pointer value = New(Expression::Kind::kLiteral);
      // Strings that follow each other are one.
      std::string text;
      while (cursor_.Peek().kind == Token::Kind::kString) text += cursor_.Next().text;
      value->value = TemplateValue::Text(text);
      return value;
    }
    if (token.kind == Token::Kind::kInteger) return Literal(TemplateValue::Integer(token.number));
    if (token.kind == Token::Kind::kName) {
      for (const auto& [word, value] : {std::pair("true", TemplateValue::Bool(true)),
                                        {"True", TemplateValue::Bool(true)},
                                        {"false", TemplateValue::Bool(false)},
                                        {"False", TemplateValue::Bool(false)},
                                        {"none", TemplateValue::None()},
                                        {"None", TemplateValue::None()}}) {
        if (token.text == word) return Literal(value);
      }
      cursor_.Next();
      return New(Expression::Kind::kName, nullptr, token.text);
    }
    if (cursor_.Take("(")) {
      SHALE_ASSIGN_OR_RETURN(Pointer value, Conditional());
      if (cursor_.Is(",")) return cursor_.Error("tuples are not supported");
      SHALE_RETURN_IF_ERROR(cursor_.Expect(")"));
      return value;
    }
    if (cursor_.Take("[")) {
      Pointer list = New(Expression::Kind::kList);
      while (!cursor_.Take("]")) {
        SHALE_ASSIGN_OR_RETURN(Pointer element, Conditional());
        list->Add(std::move(element));
        if (!cursor_.Is("]")) SHALE_RETURN_IF_ERROR(cursor_.Expect(","));
      }
      return list;
    }
    if (cursor_.Is("{")) return cursor_.Error("mappings in a template are not supported");
    return cursor_.Wanted("a value");
  }

  Pointer Literal(TemplateValue value) {
    Pointer literal = New(Expression::Kind::kLiteral);
    literal->value = std::move(value);
    cursor_.Next();
    return literal;
  }

  absl::StatusOr<Pointer> Postfix(Pointer value) {
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      if (cursor_.Take(".")) {
        SHALE_ASSIGN_OR_RETURN(std::string name, cursor_.Name());
        value = New(Expression::Kind::kAttribute, std::move(value), std::move(name));
      } else if (cursor_.Take("[")) {
        SHALE_ASSIGN_OR_RETURN(value, Subscript(std::move(value)));
      } else if (cursor_.Is("(")) {
        value = New(Expression::Kind::kCall, std::move(value));
        SHALE_RETURN_IF_ERROR(Arguments(*value));
      } else {
        return value;
      }
    }
  }

  absl::StatusOr<Pointer> Subscript(Pointer value) {
    Pointer parts[3];
    int colons = 0;
    while (!cursor_.Take("]")) {
      if (cursor_.Take(":")) {
        if (++colons > 2) return cursor_.Wanted("\"]\"");
        continue;
      }
      if (parts[colons] != nullptr) return cursor_.Wanted("\"]\"");
      SHALE_ASSIGN_OR_RETURN(parts[colons], Conditional());
    }
    if (colons == 0 && parts[0] == nullptr) return cursor_.Wanted("a value");
    value = New(colons == 0 ? Expression::Kind::kItem : Expression::Kind::kSlice, std::move(value));
    for (int i = 0; i < (colons == 0 ? 1 : 3); ++i) value->Add(std::move(parts[i]));
    return value;
  }

  // Reads arguments in parentheses.
  absl::Status Arguments(Expression& call) {
    SHALE_RETURN_IF_ERROR(cursor_.Expect("("));
    while (!cursor_.Take(")")) {
      if (cursor_.Is("*") || cursor_.Is("**")) return cursor_.Error("arguments from a list are not supported");
      const bool keyword = cursor_.Peek().kind == Token::Kind::kName && cursor_.PeekSecond().text == "=" &&
                           cursor_.PeekSecond().kind == Token::Kind::kOperator;
      std::string name;
      if (keyword) {
        name = cursor_.Next().text;
        cursor_.Next();
      }
      SHALE_ASSIGN_OR_RETURN(Pointer value, Conditional());
      if (keyword) {
        call.depth = std::max(call.depth, value->depth + 1);
        call.keywords.emplace_back(std::move(name), std::move(value));
      } else {
        call.Add(std::move(value));
      }
      if (!cursor_.Is(")")) SHALE_RETURN_IF_ERROR(cursor_.Expect(","));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Pointer> Filters(Pointer value) {
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) return cursor_.Error(kTooDeep);
      if (cursor_.Take("|")) {
        SHALE_ASSIGN_OR_RETURN(std::string name, cursor_.Name());
        value = New(Expression::Kind::kFilter, std::move(value), std::move(name));
        if (cursor_.Is("(")) SHALE_RETURN_IF_ERROR(Arguments(*value));
      } else if (cursor_.TakeWord("is")) {
        const bool negated = cursor_.TakeWord("not");
        SHALE_ASSIGN_OR_RETURN(std::string name, cursor_.Name());
        value = New(Expression::Kind::kTest, std::move(value), std::move(name));
        if (cursor_.Is("(")) SHALE_RETURN_IF_ERROR(Arguments(*value));
        if (negated) value = New(Expression::Kind::kNot, std::move(value));
      } else if (cursor_.Is("(")) {
        value = New(Expression::Kind::kCall, std::move(value));
        SHALE_RETURN_IF_ERROR(Arguments(*value));
      } else {
        return value;
      }
    }
  }

  Pointer Binary(Pointer left, std::string sign, Pointer right) const {
    Pointer both = New(Expression::Kind::kBinary, std::move(left), std::move(sign));
    both->Add(std::move(right));
    return both;
  }

  TemplateCursor& cursor_;
};

}  // namespace

absl::StatusOr<Pointer> ParseTemplateExpression(TemplateCursor& cursor) {
  return ExpressionParser(cursor).Conditional();
}

absl::StatusOr<Pointer> ParseTemplateDisjunction(TemplateCursor& cursor) { return ExpressionParser(cursor).Or(); }

}  // namespace shale
