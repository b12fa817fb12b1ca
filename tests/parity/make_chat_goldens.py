#!/usr/bin/env python3
"""Writes tests/engine/text/golden/chat.json: conversations, and what transformers makes of them with the templates
in chat_templates/, which have what those of each family have, in words of our own.

    ~/parity_venv/bin/python tests/parity/make_chat_goldens.py [FOLDER...]

With folders, which hold a chat_template.jinja each, it writes nothing, and prints the cases of these templates instead,
in the form that the test reads (CHAT_GOLDEN=FILE).
"""

import json
import os
import sys

from transformers.utils.chat_template_utils import render_jinja_template

_HERE = os.path.dirname(os.path.realpath(__file__))
_OUT = os.path.join(_HERE, "../../tests/engine/text/golden/chat.json")
_TEMPLATES = os.path.join(_HERE, "chat_templates")

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def message(role, content, **others):
    return {"role": role, "content": content, **others}


_CHATS = [
    [message("user", "Hello there")],
    [message("system", " Be kind.\n"), message("user", "  Hello\u00a0\u2003 "), message("assistant", "Hi!\n\n")],
    [message("user", "one\r\n\r\ntwo"), message("assistant", " first"), message("user", "\u4f60\u597d \U0001f600"),
     message("assistant", "second one ")],
    [message("system", "Short."), message("user", "a b"), message("assistant", "<think>\nhm\n</think>\n\nWell."),
     message("user", "And?"), message("assistant", "Done.", reasoning_content="\nlong\nthoughts\n")],
    [message("user", "no turn"), message("user", "at all")],
]


def case(name, template, tokens, chat, prompt):
    found = {"template": name, "messages": chat, "add_generation_prompt": prompt}
    try:
        texts, _ = render_jinja_template(conversations=[chat], chat_template=template, add_generation_prompt=prompt,
                                         **tokens)
        found["text"] = texts[0]
    except Exception as error:  # Whatever Jinja raises; the test wants a refusal.
        found["refused"] = str(error)
    return found


def main():
    paths = [os.path.join(folder, "chat_template.jinja") for folder in sys.argv[1:]]
    names = [os.path.basename(os.path.normpath(folder)) for folder in sys.argv[1:]]
    if not paths:
        files = sorted(os.listdir(_TEMPLATES))
        paths, names = [os.path.join(_TEMPLATES, file) for file in files], [file.split(".")[0] for file in files]
    templates = {}
    for name, path in zip(names, paths):
        with open(path, encoding="utf-8", newline="") as file:
            templates[name] = file.read()
    cases = [case(name, template, _TOKENS, chat, prompt) for name, template in templates.items() for chat in _CHATS
             for prompt in (False, True)]
    text = json.dumps({"templates": templates, "special_tokens": _TOKENS, "cases": cases}, ensure_ascii=False, indent=1)
    if sys.argv[1:]:
        print(text)
        return
    with open(_OUT, "w", encoding="utf-8") as out:
        out.write(text + "\n")


if __name__ == "__main__":
    main()
