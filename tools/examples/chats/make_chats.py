#!/usr/bin/env python3
"""Writes short conversations as JSON Lines, for trying out fine-tuning: a user asks for a word in another form, and an
assistant answers.

    tools/examples/chats/make_chats.py [--dialogues=1000] [--seed=1] > chats.jsonl
"""

import argparse
import json
import random
import sys

_WORDS = ("apple bird bridge candle cloud door engine field forest garden hammer island kettle ladder lamp letter "
          "market mirror mountain needle ocean paper pencil planet river road rose shadow ship silver song spoon star "
          "stone summer table thunder tower train tree valley voice wheel window winter wolf").split()
_TASKS = [
    ("Write {} in capitals.", lambda word: word.upper()),
    ("What is the plural of {}?", lambda word: word[:-1] + "ves" if word == "wolf" else word + "s"),
    ("Which letter does {} begin with?", lambda word: word[0]),
    ("Which letter does {} end with?", lambda word: word[-1]),
    ("How many letters does {} have?", lambda word: str(len(word))),
    ("Say {} twice.", lambda word: f"{word} {word}"),
]
_SYSTEM = ["Answer with one word.", "Be brief.", "Say only the answer."]


def dialogue(random_):
    messages = []
    if random_.random() < 0.3:
        messages.append({"role": "system", "content": random_.choice(_SYSTEM)})
    for _ in range(random_.choice([1, 1, 1, 2, 2, 3])):
        question, answer = random_.choice(_TASKS)
        word = random_.choice(_WORDS)
        messages.append({"role": "user", "content": question.format(word)})
        messages.append({"role": "assistant", "content": answer(word)})
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random_ = random.Random(arguments.seed)
    for _ in range(arguments.dialogues):
        sys.stdout.write(json.dumps({"messages": dialogue(random_)}) + "\n")


if __name__ == "__main__":
    main()
