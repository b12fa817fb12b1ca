#include "engine/tokenize/template_parser.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"
#include "engine/tokenize/template_lexer.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Expression = TemplateExpression;
using Pointer = TemplateExpression::Pointer;
using Statement = TemplateStatement;
using Token = TemplateToken;

constexpr int kMaxDepth = 100;  // Of expressions and statements in each other, and operators in a row.
constexpr int kMaxTree = 1000;  // Levels of an expression.

// Binary operators, those that bind least first.
constexpr absl::string_view kLevels[][3] = {{"+", "-"}, {"~"}, {"*", "//", "%"}};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Reads statements up to a block whose word is one of `ends`, whose word was then read.
  absl::Status Body(std::initializer_list<absl::string_view> ends, std::vector<Statement>* body, std::string* end) {
    if (++depth_ > kMaxDepth) return Error("statements lie too deep in each other");
    while (true) {
      const Token& token = Next();
      if (token.kind == Token::Kind::kEnd) {
        if (ends.size() > 0) return Error(absl::StrCat("the template ends before ", *ends.begin()));
        break;
      }
      if (token.kind == Token::Kind::kData) {
        Statement text;
        text.text = token.text;
        body->push_back(std::move(text));
      } else if (token.kind == Token::Kind::kVariableBegin) {
        Statement print = New(Statement::Kind::kPrint);
        SHALE_ASSIGN_OR_RETURN(print.expression, Conditional());
        SHALE_RETURN_IF_ERROR(Expect(Token::Kind::kVariableEnd));
        body->push_back(std::move(print));
      } else {
        SHALE_ASSIGN_OR_RETURN(const std::string word, Name());
        if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
          *end = word;
          break;
        }
        SHALE_RETURN_IF_ERROR(Block(word, body));
      }
    }
    --depth_;
    return absl::OkStatus();
  }

 private:
  // The token that is read next. The last one, kEnd, is never passed.
  const Token& Peek() const { return tokens_[at_]; }
  const Token& Next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", Peek().line, ": ", what));
  }
  bool Is(absl::string_view sign) const { return Peek().kind == Token::Kind::kOperator && Peek().text == sign; }
  bool IsWord(absl::string_view word) const { return Peek().kind == Token::Kind::kName && Peek().text == word; }
  bool Take(absl::string_view sign) {
    if (!Is(sign)) return false;
    Next();
    return true;
  }
  bool TakeWord(absl::string_view word) {
    if (!IsWord(word)) return false;
    Next();
    return true;
  }
  absl::Status Wanted(absl::string_view what) const {
    const std::string found = Peek().text.empty() ? "the end of the tag" : Quoted(Peek().text);
    return Error(absl::StrCat("found ", found, "; wanted ", what));
  }
  absl::Status Expect(Token::Kind kind) {
    if (Peek().kind != kind) return Wanted("the end of the tag");
    Next();
    return absl::OkStatus();
  }
  absl::Status Expect(absl::string_view sign) { return Take(sign) ? absl::OkStatus() : Wanted(Quoted(sign)); }
  absl::StatusOr<std::string> Name() {
    if (Peek().kind != Token::Kind::kName) return Wanted("a name");
    return Next().text;
  }
  Statement New(Statement::Kind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = Peek().line;
    return statement;
  }
  Pointer New(Expression::Kind kind, Pointer first = nullptr, std::string name = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = Peek().line;
    expression->name = std::move(name);
    if (first != nullptr) expression->Add(std::move(first));
    return expression;
  }

  absl::Status Block(const std::string& word, std::vector<Statement>* body) {
    if (word == "if") return If(body);
    if (word == "for") return For(body);
    if (word == "set") return Set(body);
    if (word == "generation") {  // Says nothing about the text.
      SHALE_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd));
      std::string end;
      SHALE_RETURN_IF_ERROR(Body({"endgeneration"}, body, &end));
      return Expect(Token::Kind::kBlockEnd);
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return Error(absl::StrCat(word, " stands in no loop"));
      body->push_back(New(word == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue));
      return Expect(Token::Kind::kBlockEnd);
    }
    return Error(absl::StrCat("the statement ", Quoted(word),
                              " is not supported; supported: if, for, set, break, continue, generation"));
  }

  absl::Status If(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kIf);
    for (std::string word = "if"; word != "endif";) {
      Statement::Branch branch;
      const bool last = word == "else";
      if (!last) {
        SHALE_ASSIGN_OR_RETURN(branch.condition, Conditional());
      }
      SHALE_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd));
      if (last) {
        SHALE_RETURN_IF_ERROR(Body({"endif"}, &branch.body, &word));
      } else {
        SHALE_RETURN_IF_ERROR(Body({"endif", "elif", "else"}, &branch.body, &word));
      }
      statement.branches.push_back(std::move(branch));
    }
    body->push_back(std::move(statement));
    return Expect(Token::Kind::kBlockEnd);
  }

  absl::Status For(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kFor);
    do {
      SHALE_ASSIGN_OR_RETURN(std::string name, Name());
      statement.names.push_back(std::move(name));
    } while (Take(","));
    if (!TakeWord("in")) return Wanted("\"in\"");
    SHALE_ASSIGN_OR_RETURN(statement.expression, Or());
    if (TakeWord("if")) {
      SHALE_ASSIGN_OR_RETURN(statement.condition, Conditional());
    }
    if (IsWord("recursive")) return Error("recursive loops are not supported");
    SHALE_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd));
    std::string word;
    ++loops_;
    SHALE_RETURN_IF_ERROR(Body({"endfor", "else"}, &statement.body, &word));
    --loops_;
    if (word == "else") {
      SHALE_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd));
      SHALE_RETURN_IF_ERROR(Body({"endfor"}, &statement.otherwise, &word));
    }
    body->push_back(std::move(statement));
    return Expect(Token::Kind::kBlockEnd);
  }

  absl::Status Set(std::vector<Statement>* body) {
    Statement statement = New(Statement::Kind::kSet);
    SHALE_ASSIGN_OR_RETURN(statement.text, Name());
    if (Take(".")) {
      SHALE_ASSIGN_OR_RETURN(statement.attribute, Name());
    }
    if (!Is("=")) return Error("a set without = is not supported");
    Next();
    SHALE_ASSIGN_OR_RETURN(statement.expression, Conditional());
    body->push_back(std::move(statement));
    return Expect(Token::Kind::kBlockEnd);
  }

  absl::StatusOr<Pointer> Conditional() {
    if (++depth_ > kMaxDepth) return Error("expressions lie too deep in each other");
    SHALE_ASSIGN_OR_RETURN(Pointer value, Or());
    for (int count = 0; TakeWord("if"); ++count) {
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      Pointer both = New(Expression::Kind::kConditional, std::move(value));
      SHALE_ASSIGN_OR_RETURN(Pointer condition, Or());
      both->Add(std::move(condition));
      Pointer otherwise;
      if (TakeWord("else")) {
        SHALE_ASSIGN_OR_RETURN(otherwise, Conditional());
      }
      both->Add(std::move(otherwise));
      value = std::move(both);
    }
    --depth_;
    if (value->depth > kMaxTree) return Error("expressions lie too deep in each other");
    return value;
  }

  absl::StatusOr<Pointer> Or() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, And());
    for (int count = 0; TakeWord("or"); ++count) {
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      SHALE_ASSIGN_OR_RETURN(Pointer right, And());
      left = Binary(std::move(left), "or", std::move(right));
    }
    return left;
  }

  absl::StatusOr<Pointer> And() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, Not());
    for (int count = 0; TakeWord("and"); ++count) {
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      SHALE_ASSIGN_OR_RETURN(Pointer right, Not());
      left = Binary(std::move(left), "and", std::move(right));
    }
    return left;
  }

  absl::StatusOr<Pointer> Not() {
    if (!TakeWord("not")) return Comparison();
    if (++depth_ > kMaxDepth) return Error("expressions lie too deep in each other");
    SHALE_ASSIGN_OR_RETURN(Pointer value, Not());
    --depth_;
    return New(Expression::Kind::kNot, std::move(value));
  }

  absl::StatusOr<Pointer> Comparison() {
    SHALE_ASSIGN_OR_RETURN(Pointer left, Level(0));
    bool compared = false;
    while (true) {
      std::string sign;
      for (const absl::string_view one : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (sign.empty() && Take(one)) sign = std::string(one);
      }
      bool negated = false;
      if (sign.empty() && TakeWord("in")) sign = "in";
      if (sign.empty() && IsWord("not") && tokens_[at_ + 1].text == "in") {
        Next();
        Next();
        sign = "in";
        negated = true;
      }
      if (sign.empty()) return left;
      if (compared) return Error("several comparisons in a row are not supported");
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
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      const auto found = std::find_if(std::begin(kLevels[level]), std::end(kLevels[level]),
                                      [&](absl::string_view sign) { return !sign.empty() && Is(sign); });
      if (found == std::end(kLevels[level])) return left;
      Next();
      SHALE_ASSIGN_OR_RETURN(Pointer right, Level(level + 1));
      left = Binary(std::move(left), std::string(*found), std::move(right));
    }
  }

  absl::StatusOr<Pointer> Unary(bool filters) {
    Pointer value;
    if (Take("-")) {
      if (++depth_ > kMaxDepth) return Error("expressions lie too deep in each other");
      SHALE_ASSIGN_OR_RETURN(value, Unary(/*filters=*/false));
      --depth_;
      value = New(Expression::Kind::kMinus, std::move(value));
    } else {
      SHALE_ASSIGN_OR_RETURN(value, Primary());
    }
    SHALE_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
    return filters ? Filters(std::move(value)) : std::move(value);
  }

  absl::StatusOr<Pointer> Primary() {
    const Token token = Peek();
    if (token.kind == Token::Kind::kString) {
      Pointer value = New(Expression::Kind::kLiteral);
      // Strings that follow each other are one.
      std::string text;
      while (Peek().kind == Token::Kind::kString) text += Next().text;
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
      Next();
      return New(Expression::Kind::kName, nullptr, token.text);
    }
    if (Take("(")) {
      SHALE_ASSIGN_OR_RETURN(Pointer value, Conditional());
      if (Is(",")) return Error("tuples are not supported");
      SHALE_RETURN_IF_ERROR(Expect(")"));
      return value;
    }
    if (Take("[")) {
      Pointer list = New(Expression::Kind::kList);
      while (!Take("]")) {
        SHALE_ASSIGN_OR_RETURN(Pointer element, Conditional());
        list->Add(std::move(element));
        if (!Is("]")) SHALE_RETURN_IF_ERROR(Expect(","));
      }
      return list;
    }
    if (Is("{")) return Error("mappings in a template are not supported");
    return Wanted("a value");
  }

  Pointer Literal(TemplateValue value) {
    Pointer literal = New(Expression::Kind::kLiteral);
    literal->value = std::move(value);
    Next();
    return literal;
  }

  absl::StatusOr<Pointer> Postfix(Pointer value) {
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      if (Take(".")) {
        SHALE_ASSIGN_OR_RETURN(std::string name, Name());
        value = New(Expression::Kind::kAttribute, std::move(value), std::move(name));
      } else if (Take("[")) {
        SHALE_ASSIGN_OR_RETURN(value, Subscript(std::move(value)));
      } else if (Is("(")) {
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
    while (!Take("]")) {
      if (Take(":")) {
        if (++colons > 2) return Wanted("\"]\"");
        continue;
      }
      if (parts[colons] != nullptr) return Wanted("\"]\"");
      SHALE_ASSIGN_OR_RETURN(parts[colons], Conditional());
    }
    if (colons == 0 && parts[0] == nullptr) return Wanted("a value");
    value = New(colons == 0 ? Expression::Kind::kItem : Expression::Kind::kSlice, std::move(value));
    for (int i = 0; i < (colons == 0 ? 1 : 3); ++i) value->Add(std::move(parts[i]));
    return value;
  }

  // Reads arguments in parentheses.
  absl::Status Arguments(Expression& call) {
    SHALE_RETURN_IF_ERROR(Expect("("));
    while (!Take(")")) {
      if (Is("*") || Is("**")) return Error("arguments from a list are not supported");
      const bool keyword = Peek().kind == Token::Kind::kName && tokens_[at_ + 1].text == "=" &&
                           tokens_[at_ + 1].kind == Token::Kind::kOperator;
      std::string name;
      if (keyword) {
        name = Next().text;
        Next();
      }
      SHALE_ASSIGN_OR_RETURN(Pointer value, Conditional());
      if (keyword) {
        call.depth = std::max(call.depth, value->depth + 1);
        call.keywords.emplace_back(std::move(name), std::move(value));
      } else {
        call.Add(std::move(value));
      }
      if (!Is(")")) SHALE_RETURN_IF_ERROR(Expect(","));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Pointer> Filters(Pointer value) {
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) return Error("expressions lie too deep in each other");
      if (Take("|")) {
        SHALE_ASSIGN_OR_RETURN(std::string name, Name());
        value = New(Expression::Kind::kFilter, std::move(value), std::move(name));
        if (Is("(")) SHALE_RETURN_IF_ERROR(Arguments(*value));
      } else if (TakeWord("is")) {
        const bool negated = TakeWord("not");
        SHALE_ASSIGN_OR_RETURN(std::string name, Name());
        value = New(Expression::Kind::kTest, std::move(value), std::move(name));
        if (Is("(")) SHALE_RETURN_IF_ERROR(Arguments(*value));
        if (negated) value = New(Expression::Kind::kNot, std::move(value));
      } else if (Is("(")) {
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TemplateStatement>> ParseTemplate(absl::string_view source) {
  SHALE_ASSIGN_OR_RETURN(std::vector<TemplateToken> tokens, LexTemplate(source));
  std::vector<TemplateStatement> statements;
  std::string end;
  SHALE_RETURN_IF_ERROR(Parser(std::move(tokens)).Body({}, &statements, &end));
  return statements;
}

}  // namespace shale
