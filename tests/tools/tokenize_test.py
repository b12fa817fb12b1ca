#!/usr/bin/env python3
"""Tests tools/tokenize: what it writes, and which arguments it refuses."""

import os
import resource
import signal
import struct
import subprocess
import tempfile
import unittest

_TOKENIZE = os.path.abspath("tools/tokenize")
_GOLDEN = os.path.abspath("tests/engine/text/golden")


class TokenizeTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def tokenize(self, *arguments, preexec_fn=None):
        environment = dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder)
        return subprocess.run([_TOKENIZE, *arguments], cwd="/", env=environment, capture_output=True, text=True,
                              timeout=120, check=False, preexec_fn=preexec_fn)

    def write(self, name, contents):
        with open(os.path.join(self.folder, name), "wb") as out:
            out.write(contents)

    def test_writes_a_folder_of_tokens(self):
        self.write("text.txt", b"it's a\n")
        result = self.tokenize(f"--tokenizer={_GOLDEN}/gpt2", "--in=text.txt", "--out=tokens",
                               "--end_of_document=<|endoftext|>", "--threads=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^tokenized 1 document, 7 B of text, to tokens in .*")
        self.assertIn("a model with the vocabulary 700 or more\n", result.stdout)
        with open(os.path.join(self.folder, "tokens", "tokens_00000.bin"), "rb") as tokens:
            contents = tokens.read()
        magic, version, count = struct.unpack("<3i", contents[:12])
        self.assertEqual((magic, version, len(contents)), (20240520, 1, 1024 + 2 * count))
        self.assertEqual(contents[-2:], b"\0\0")  # <|endoftext|> is token 0.

    def test_trains_a_vocabulary_that_it_then_reads(self):
        self.write("text.txt", b"one two one two one\n" * 9)
        result = self.tokenize("--train", "--vocabulary=262", "--in=text.txt", "--out=trained")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^trained 262 tokens on 180 B of text with \d different words to trained in ")
        result = self.tokenize("--tokenizer=trained", "--in=text.txt", "--out=tokens")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the vocabulary 262 or more", result.stdout)

    def test_a_disk_that_fills_leaves_nothing(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

        self.write("text.txt", b"one two three\n" * 999)
        result = self.tokenize(f"--tokenizer={_GOLDEN}/gpt2", "--in=text.txt", "--out=tokens", preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stderr, "^tokenize: cannot write .*: File too large\n$")
        self.assertEqual(os.listdir(self.folder), ["text.txt"])

    def test_conversations_become_the_text_of_their_template(self):
        os.mkdir(os.path.join(self.folder, "chat"))
        with open(os.path.join(_GOLDEN, "gpt2", "tokenizer.json"), "rb") as file:
            self.write("chat/tokenizer.json", file.read())
        self.write("chats.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}\n')
        arguments = ["--tokenizer=chat", "--in=chats.jsonl", "--out=tokens"]
        self.refused("^tokenize: chats.jsonl:1: \"messages\" need a chat template: chat has no chat template: neither "
                     "chat_template.jinja nor ", *arguments)
        self.refused('need a chat template: ', "--skip_bad_lines", *arguments)
        self.write("chat/chat_template.jinja", b"{% macro f() %}{% endmacro %}")
        self.refused('need a chat template: chat/chat_template.jinja: line 1: the statement "macro" is not', *arguments)
        # Text without conversations needs no template.
        self.write("text.jsonl", b'{"text": "a<|endoftext|>"}\n')
        result = self.tokenize(arguments[0], "--in=text.jsonl", "--out=text")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.write("chat/chat_template.jinja", b"{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}")
        result = self.tokenize("--tokenizer=chat/tokenizer.json", *arguments[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^tokenized 1 document, 14 B of text, .*: 2 tokens, ")

    def test_bytes_that_are_not_utf8_are_replaced_if_asked(self):
        self.write("text.txt", b"a\n\xff\n")
        result = self.tokenize(f"--tokenizer={_GOLDEN}/gpt2", "--in=text.txt", "--out=tokens", "--replace_bad_bytes")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("U+FFFD took the place of what is not UTF-8, 1 time; the first: text.txt: the byte at offset 2\n",
                      result.stdout)

    def refused(self, wanted, *arguments):
        result = self.tokenize(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertRegex(result.stderr, wanted)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "tokens")))

    def test_refusals(self):
        self.write("text.txt", b"a\n\xff\n")
        gpt2 = f"--tokenizer={_GOLDEN}/gpt2"
        self.refused(r"^tokenize: text.txt is not UTF-8: byte 0xFF at offset 2 \(line 2\) ", gpt2, "--in=text.txt",
                     "--out=tokens")
        self.refused(r"^tokenize: .*missing.*No such file", gpt2, "--in=missing", "--out=tokens")
        self.refused(r"^tokenize: .*tokenizer.json.*No such file", "--tokenizer=.", "--in=text.txt", "--out=tokens")
        self.refused(r'^tokenize: --end_of_document: the tokenizer has no token "<x>"; name one '
                     'that its tokenizer.json lists$', gpt2, "--in=text.txt",
                     "--out=tokens", "--end_of_document=<x>")
        self.refused("^tokenize: give --tokenizer=FOLDER to make token files, or --train to make a tokenizer$",
                     "--in=text.txt", "--out=tokens")
        self.refused("^tokenize: --train needs --vocabulary=N, the tokens to make, such as 8192$", "--train",
                     "--in=text.txt", "--out=tokens")
        self.refused('^tokenize: --pattern: found "X"; allowed: GPT2, LLAMA3, QWEN2$', "--train", "--vocabulary=300",
                     "--pattern=X", "--in=text.txt", "--out=tokens")
        self.write("tokenizer.json", b'{"version": "1.0", "model": {"type": "WordPiece"}}')
        self.refused(r'^tokenize: --tokenizer: ./tokenizer.json: model: the model "WordPiece" is not supported; '
                     r'supported: BPE$', "--tokenizer=.", "--in=text.txt", "--out=tokens")


if __name__ == "__main__":
    unittest.main()
