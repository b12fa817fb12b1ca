#!/usr/bin/env python3
"""Writes tests/engine/text/golden/: small tokenizers with the parts of each family, and what the library makes of
the documents of tokenize_corpus.py with them. Bytes that are not UTF-8 are decoded with replacement first.

    ~/parity_venv/bin/python tests/parity/make_tokenizer_goldens.py
"""

import json
import os
import random
import tempfile

import tokenize_corpus
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

_OUT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../tests/engine/text/golden")
_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, special=("<|endoftext|>",), lines=None, size=700):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines or tokenize_corpus.training_lines(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_only(add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)


def gpt2(**how):
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), **how)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3(special=("<|begin_of_text|>", "<|endoftext|>"), **how):
    tokenizer = byte_level(pre_tokenizers.Sequence([split(_WORDS.replace("DIGITS", "{1,3}")), bytes_only()]),
                           ignore_merges=True, special=special, **how)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", 0)])])
    return tokenizer


def qwen2(**how):
    return byte_level(pre_tokenizers.Sequence([split(_WORDS.replace("DIGITS", "")), bytes_only()]), normalizers.NFC(),
                      **how)


def falcon(**how):
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]), **how)


def starcoder():
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]))


def deepseek():
    """Splits by expressions that have no scanner."""
    return byte_level(pre_tokenizers.Sequence([
        split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
        split(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
              r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), bytes_only()]))


def added():
    """Has added tokens of all kinds, and splits of all kinds."""
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_previous"), pre_tokenizers.Split(Regex(","), "merged_with_next"),
        pre_tokenizers.Split(".", "removed"), pre_tokenizers.Split(Regex("[a-z]+"), "contiguous", invert=True),
        bytes_only()]), normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex("e+"), "e"),
                                              normalizers.Replace("x", "xy")]))
    tokenizer.add_tokens([
        AddedToken("free", single_word=True, normalized=True), AddedToken("Café", normalized=True),
        AddedToken("in", lstrip=True, normalized=False), AddedToken("i", normalized=False),
        AddedToken("and", rstrip=True, normalized=False), AddedToken("x", normalized=True),
        AddedToken("return", lstrip=True, rstrip=True, normalized=True), AddedToken("\n\n", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False, special=True)])
    return tokenizer


def sentencepiece(lines=None, size=500):
    """Returns a model as those converted from SentencePiece: characters, merges of them, and bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    lines = [line for line in lines or tokenize_corpus.training_lines() if ord(max(line, default="a")) < 0x530]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=120))
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += sorted(model["vocab"], key=model["vocab"].get)
    return models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[tuple(m) for m in model["merges"]],
                      unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def with_sentencepiece(**how):
    tokenizer = Tokenizer(sentencepiece(**how))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)
                                  for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def llama2():
    tokenizer = with_sentencepiece()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def mistral(**how):
    tokenizer = with_sentencepiece(**how)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def metaspace():
    """Has an unknown token instead of bytes, and splits at spaces."""
    model = sentencepiece()
    model.byte_fallback = False
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def gemma():
    """Spaces become marks before all else, and lines and runs of spaces are added tokens."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    model = json.loads(Tokenizer(sentencepiece()).to_str())["model"]
    tokens = special + [token for token in model["vocab"] if token not in ("<unk>", "<s>", "</s>")]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B",
                                                             special_tokens=[("<bos>", 2)])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "▁▁", "▁▁▁▁", "<td>")])
    return tokenizer


def trained(pre_tokenizer, texts):
    """Returns the merges of a vocabulary that the library trains."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8", newline="") as file:
        file.write("".join(text + "\n" for text in texts))
        file.flush()
        tokenizer.train([file.name], trainers.BpeTrainer(
            vocab_size=900, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tokenizer.to_str())["model"]["merges"]


# Expressions of tokenizers, and others with each thing that Oniguruma and PCRE2 write in different ways.
_CASED = r"\p{Lm}\p{Lo}\p{M}"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_EXPRESSIONS = [
    r"\s+$", r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-Ρ]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "[一-龥ࠀ-一가-퟿]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_CASED}]*[\p{{Ll}}{_CASED}]+{_CONTRACTIONS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_CASED}]+[\p{{Ll}}{_CASED}]*{_CONTRACTIONS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+", r"\p{Han}|\p{Hiragana}|\p{Katakana}+", r"\p{Cyrillic}+", r"\P{Latin}+", r"[\p{Thai}\p{Arabic}]+",
    r"\w+", r"\W+", r"[\w'-]+", r"[^\w]", r"\d+", r"\D+", r"[\d.]+", r"\b\w", r"\w\b", r"\B\w", r"\w\B.", r"^\s*.",
    r"^.", r".$", r"$\n", r"\n^.", r"\A..", r"..\z", r".\Z", r".+", r"\s\S", r"[ \t\v\f]+", r"\x{4F60}.", r"\u4f60.",
    r"(?<=\s)\w+(?=$)", r"(?<![^\n])[a-c].*", r"\s++$", r"(?:^|\s)\d", r"[\]\[]+", r"\.+",
]
_LINES = [
    "a b\n", "a  \n\n b \t", "\n", "x\r\ny\r\n", "  # 12.5 don't\n#3 你好, 你!\u3000",
    "Café e\u0301te\u0301 naïve_x-1\n\n", "हिन्दी Ⓐⓐ Ⅷ ² ٠١ ไทย",
    "カタカナー ひらがな 々〆〇 Привет", "\x0b\x0c\x85\u2028z\u2029", "[a]..[b]", "trailing \u00a0 ", "",
]


def pieces(expression):
    """Returns the pieces of each line."""
    split_ = split(expression)
    return [[piece for piece, _ in split_.pre_tokenize_str(line)] for line in _LINES]


def main():
    os.makedirs(_OUT, exist_ok=True)
    with open(os.path.join(_OUT, "expressions.json"), "w", encoding="utf-8") as out:
        json.dump({"lines": _LINES, "expressions": [
            {"expression": expression, "pieces": pieces(expression)} for expression in _EXPRESSIONS]}, out,
                  ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    documents = tokenize_corpus.documents()
    with open(os.path.join(_OUT, "documents.json"), "w", encoding="utf-8") as out:
        json.dump({"hex": [document.hex() for document in documents]}, out)
    texts = [document.decode(errors="replace") for document in documents]
    with open(os.path.join(_OUT, "trained.json"), "w", encoding="utf-8") as out:
        json.dump({"gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False), texts),
                   "llama3": trained(pre_tokenizers.Sequence([split(_WORDS.replace("DIGITS", "{1,3}")), bytes_only()]),
                                     texts)}, out)
    families = [gpt2, llama3, qwen2, falcon, starcoder, deepseek, added, llama2, mistral, metaspace, gemma]
    for family in families:
        tokenizer = family()
        random_ = random.Random(3)
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        size = tokenizer.get_vocab_size()
        random_ids = [[random_.randrange(size + 3) for _ in range(n)] for n in (1, 1, 2, 3, 5, 8, 13, 40, 40, 40)]
        golden = {
            "ids": encoded,
            "text": [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded],
            "surrounded": tokenizer.encode(texts[0], add_special_tokens=True).ids[:3],
            "random_ids": random_ids,
            "random_text": [tokenizer.decode(ids, skip_special_tokens=False) for ids in random_ids],
            "random_text_without_special": [tokenizer.decode(ids, skip_special_tokens=True) for ids in random_ids],
        }
        folder = os.path.join(_OUT, family.__name__)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as out:
            out.write(tokenizer.to_str(pretty=False) + "\n")
        with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as out:
            json.dump(golden, out, ensure_ascii=False, separators=(",", ":"))
            out.write("\n")


if __name__ == "__main__":
    main()
