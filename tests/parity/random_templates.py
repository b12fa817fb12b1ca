"""Makes chat templates at random, from the features that templates have, for check_chat_rows.py."""

import random

_NAMES = ["messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt", "nothing", "x", "ns.a"]
_FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "count", "list", "first", "last", "tojson",
            "string", "safe", "reverse", "join", "join(', ')", "default('d')", "default('', true)", "items",
            "replace('a', 'b')", "replace('\\n', ' ')", "map(attribute='role')", "map(attribute='content')",
            "selectattr('role', 'equalto', 'user')", "rejectattr('content')", "tojson(indent=2)",
            "selectattr('role', 'in', ['user', 'tool'])", "tojson(indent=0)", "sort", "unique", "int", "abs"]
_TESTS = ["defined", "undefined", "none", "string", "mapping", "number", "integer", "float", "boolean", "true", "false",
          "iterable", "sequence", "equalto('user')", "ne('a')", "in(['a', 'user'])", "odd", "callable"]
_METHODS = ["strip()", "lstrip()", "rstrip('\\n')", "strip('a \\n')", "startswith('H')", "endswith('.')", "upper()",
            "title()", "capitalize()", "split('\\n')", "split('a')[-1]", "split(' ')[0]", "replace('e', '')",
            "get('role')",
            "get('no', 'd')", "items()", "keys()", "values()", "lower()", "swapcase()"]
_BINARY = ["+", "~", "-", "*", "//", "%", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
_LITERALS = ["'a'", "'user'", "'\\n'", "' x '", "\"q'\"", "0", "1", "-1", "3", "true", "none", "[]", "['a', 1]",
             "'\u00e9'",
             "range(3)", "range(2, -3, -2)", "namespace(a=1).a"]


class Maker:
    """Makes one template."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.names = list(_NAMES)

    def atom(self):
        rng = self.rng
        roll = rng.random()
        if roll < 0.35:
            return rng.choice(_LITERALS)
        if roll < 0.6:
            return rng.choice(self.names)
        return rng.choice(["messages[0].content", "messages[-1]['content']", "messages[1].role", "messages[0]",
                           "messages[-1].tool_calls", "messages|length", "tools[0].function.name", "loop.index",
                           "loop.depth", "loop", "ns", "m.items", "m.title", "m.content.title",
                           "messages[0].items()", "m.keys()",
                           "messages.count", "m['items']", "loop.previtem", "loop.first", "loop.length",
                           "loop.revindex0",
                           "messages|selectattr('role', 'equalto', 'user')",
                           "messages|map(attribute='role')",
                           "messages|reverse", "m.content", "m.role", "m.reasoning_content",
                           "m['content']", "loop.last", "m.tool_calls"])

    def expression(self, depth=0):
        rng = self.rng
        roll = rng.random()
        if depth > 1 or roll < 0.4:
            return self.atom()
        inner = self.expression(depth + 1)
        if roll < 0.45:
            return f"{inner} | {rng.choice(_FILTERS)}"
        if roll < 0.55:
            return f"({inner}).{rng.choice(_METHODS)}"
        if roll < 0.62:
            return f"({inner})[{rng.choice(['0', '-1', '1:', ':2', '::-1', ':-1', '::2', '5', '-2:'])}]"
        if roll < 0.7:
            return f"({inner} is {rng.choice(['', 'not '])}{rng.choice(_TESTS)})"
        if roll < 0.75:
            return f"(not {inner})"
        if roll < 0.8:
            return f"({inner} if {self.expression(depth + 1)} else {self.expression(depth + 1)})"
        return f"({inner} {rng.choice(_BINARY)} {self.expression(depth + 1)})"

    def tag(self, text, block=True):
        left, right = self.rng.choice(["", "", "-"]), self.rng.choice(["", "", "-"])
        return f"{{%{left} {text} {right}%}}" if block else f"{{{{{left} {text} {right}}}}}"

    def statement(self, depth=0):
        rng = self.rng
        roll = rng.random()
        if roll < 0.25:
            return rng.choice(["text", " \n", "\n\n", "<|im_start|>", "  ", "\t\n x", "{# note #}", "{#- note -#}\n"])
        if roll < 0.65 or depth > 1:
            return self.tag(self.expression(), block=False)
        if roll < 0.73:
            name = rng.choice(["x", "y", "ns.a"])
            return self.tag(f"set {name} = {self.expression()}")
        if roll < 0.78:
            return (self.tag(f"if {self.expression()}") + self.body(depth + 1) + self.tag("else") +
                    self.body(depth + 1) + self.tag("endif"))
        if roll < 0.8:
            return self.tag("generation") + self.body(depth + 1) + self.tag("endgeneration")
        condition = rng.choice(["", "", " if m.role == 'user'", " if m"])
        of = rng.choice(["messages", "messages", "messages[1:]", "tools", self.expression()])
        end = rng.choice(["", "", self.tag("if loop.index > 1") +
                          rng.choice(["{% break %}", "{% continue %}"]) + "{% endif %}"])
        otherwise = rng.choice(["", self.tag("else") + self.body(depth + 1)])
        return self.tag(f"for m in {of}{condition}") + self.body(depth + 1) + end + otherwise + self.tag("endfor")

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randrange(1, 3)))

    def make(self):
        return "{% set ns = namespace(a='s') %}" + "".join(self.statement() for _ in range(self.rng.randrange(1, 4)))


def make_template(seed):
    return Maker(seed).make()
