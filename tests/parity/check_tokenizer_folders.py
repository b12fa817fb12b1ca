#!/usr/bin/env python3
"""Compares what Shale reads from folders of tokenizers with AutoTokenizer.from_pretrained, for 200 generated folders.

    bazel build -c opt //tests/engine/text:tokenize_test
    python3 -m venv ~/parity_venv && ~/parity_venv/bin/pip install transformers
    ~/parity_venv/bin/python tests/parity/check_tokenizer_folders.py [--folders N] [--seed N] [--golden]

Each folder has the tokenizer.json of a golden in tests/engine/text/golden, changed at random, and some of the other
files, which name tokens here or there. Shale must give the same ids for texts with special tokens in them, the same
names of special tokens and the same token that ends a document, or refuse the folder by name. --golden writes the first
20 folders, and what transformers makes of them, to tests/engine/text/golden/folders.json.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers  # pylint: disable=wrong-import-position

_ROOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../..")
_GOLDEN = os.path.join(_ROOT, "tests/engine/text/golden")
_TEST = os.path.join(_ROOT, ".out/bin/tests/engine/text/tokenize_test")
_IN_GOLDEN = 20  # A tenth of the folders.

# Families, and what their folders may name: classes and model types.
_FAMILIES = {
    "gpt2": (["GPT2Tokenizer", "GPT2TokenizerFast"], ["gpt2", "llama", "opt"]),
    "llama2": (["LlamaTokenizer", "LlamaTokenizerFast"], ["llama", "mistral", "granite"]),
    "mistral": (["LlamaTokenizer", "LlamaTokenizerFast"], ["llama", "mistral"]),
    "llama3": (["PreTrainedTokenizerFast", "LlamaTokenizerFast"], ["llama", "mistral"]),
    "qwen2": (["Qwen2Tokenizer", "Qwen2TokenizerFast", "GPTNeoXTokenizer"], ["qwen2", "qwen3", "llama"]),
    "falcon": (["PreTrainedTokenizerFast", "PreTrainedTokenizer"], ["falcon", "llama"]),
    "deepseek": (["LlamaTokenizerFast"], ["llama", "deepseek_v2"]),
    "gemma": (["GemmaTokenizer", "GemmaTokenizerFast"], ["gemma2", "gemma3_text", "llama"]),
}
_CLASSES = ["GPT2Tokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast",
            "TokenizersBackend", "PreTrainedTokenizer", "NoSuchTokenizer", "BloomTokenizerFast", "BertTokenizer"]
_TYPES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "falcon", "gpt_neox", "phi3", "starcoder2", "nosuchtype",
          "bert"]
_NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"]
_OTHER_NAMES = ["image_token", "tool_token", "eot_token"]
_TOKENS = ["<|a|>", "<|b|>", "<|c|>", "<|im_end|>", "<s>", "</s>", "<|endoftext|>", "<unk>", "[PAD]", "tool", "in",
           "Caf\u00e9", "\u2047", "<x y>", "the"]
_WORDS = ["Hello", "it's", "123", "  ", " ", "word", "in", "the", "Caf\u00e9", "Cafe\u0301", "\n", "tool", "x", ",",
          "\u4f60\u597d", "toolbox", "a1b22"]


def flags(rng, always=False):
    return {name: rng.random() < 0.3 for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
            if always or rng.random() < 0.5}


def named(rng, kind):
    """Returns a token as a file of this kind may name it."""
    token = rng.choice(_TOKENS)
    if rng.random() < 0.6:
        return token
    found = {"content": token, **flags(rng)}
    if kind == "map":
        found.pop("special", None)
        return found
    return {"__type": "AddedToken", **found}


def names(rng, kind, many):
    found = {name: named(rng, kind) for name in _NAMES if rng.random() < many}
    if kind == "config":
        found.update({name: None for name in _NAMES if rng.random() < 0.04})
    found.update({name: rng.choice(_TOKENS) for name in _OTHER_NAMES if rng.random() < many / 3})
    return found


def token_list(rng, kind):
    return [named(rng, kind) if kind == "config" else rng.choice(_TOKENS) for _ in range(rng.randrange(4))]


def changes_of(rng, own, size):
    """Returns tokens to add to tokenizer.json, and its padding."""
    added = []
    for content in rng.sample(_TOKENS, rng.randrange(4)):
        if content not in own:
            added.append({"content": content, **flags(rng, always=True)})
    padding = None
    if rng.random() < 0.1:
        padding = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": size,
                   "pad_type_id": 0, "pad_token": rng.choice(_TOKENS)}
    return added, padding


def with_ids(added, tokenizer):
    """Gives added tokens the ids that the library gives."""
    vocab = tokenizer["model"]["vocab"]
    after = max([len(vocab)] + [token["id"] + 1 for token in tokenizer["added_tokens"]])
    for token in added:
        new = token["content"] not in vocab
        token["id"] = after if new else vocab[token["content"]]
        after += new


def tokenizer_config(rng, classes, added):
    config = names(rng, "config", 0.35)
    if rng.random() < 0.65:
        config["tokenizer_class"] = rng.choice(classes if rng.random() < 0.7 else _CLASSES)
    if rng.random() < 0.2:
        config["additional_special_tokens"] = token_list(rng, "config")
    if rng.random() < 0.25:
        config["extra_special_tokens"] = (token_list(rng, "config") if rng.random() < 0.6 else
                                          {name: rng.choice(_TOKENS) for name in _OTHER_NAMES[:rng.randrange(1, 3)]})
    if rng.random() < 0.35:
        decoder = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added}
        first = 1000
        for content in rng.sample(_TOKENS, rng.randrange(3)):
            decoder[str(first)] = {"content": content, **flags(rng)}
            first += rng.randrange(1, 3)
        config["added_tokens_decoder"] = decoder
    if rng.random() < 0.3:
        config["add_bos_token"] = rng.random() < 0.5
    for name, often in (("legacy", 0.15), ("add_prefix_space", 0.15)):
        if rng.random() < often:
            config[name] = rng.choice([True, False, None])
    config["model_max_length"] = 1024
    members = list(config.items())
    rng.shuffle(members)
    return dict(members)


def make_case(seed):
    """Returns a folder: the family of its tokenizer.json, what is changed there, and its other files."""
    rng = random.Random(seed)
    family = rng.choice(list(_FAMILIES))
    classes, types = _FAMILIES[family]
    with open(os.path.join(_GOLDEN, family, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    size = len(tokenizer["model"]["vocab"])
    added, padding = changes_of(rng, [token["content"] for token in tokenizer["added_tokens"]], size)
    with_ids(added, tokenizer)
    files = {}
    if rng.random() < 0.85:
        config = {"model_type": rng.choice(types if rng.random() < 0.75 else _TYPES)}
        if rng.random() < 0.5:
            config["eos_token_id"] = rng.choice([2, 5, [3, 4], [7]])
        if rng.random() < 0.1:
            config["tokenizer_class"] = rng.choice(classes + _CLASSES)
        files["config.json"] = config
    if rng.random() < 0.3:
        files["generation_config.json"] = {"eos_token_id": rng.choice([1, 6, [8, 9], None])}
    if rng.random() < 0.85:
        files["tokenizer_config.json"] = tokenizer_config(rng, classes, tokenizer["added_tokens"] + added)
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = names(rng, "map", 0.4)
        if rng.random() < 0.3:
            files["special_tokens_map.json"]["additional_special_tokens"] = token_list(rng, "map")
    if rng.random() < 0.25:
        files["added_tokens.json"] = {content: 1000 + i for i, content in enumerate(rng.sample(_TOKENS, 3))}
    texts = ["".join(rng.choice(_TOKENS if rng.random() < 0.4 else _WORDS) for _ in range(12)) for _ in range(4)]
    return {"seed": seed, "family": family, "added": added, "padding": padding, "files": files, "texts": texts}


def write(case, folder):
    os.makedirs(folder)
    with open(os.path.join(_GOLDEN, case["family"], "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["added_tokens"] += case["added"]
    tokenizer["padding"] = case["padding"]
    for name, contents in {"tokenizer.json": tokenizer, **case["files"]}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(contents, file)


def end_of_model(files):
    """Returns the token that ends a text of the model, where the tokenizer has none: Shale's own rule."""
    for name in ("generation_config.json", "config.json"):
        found = files.get(name, {}).get("eos_token_id")
        if found is not None:
            return found[0] if isinstance(found, list) else found
    return -1


def ask(case, folder):
    """Adds what transformers makes of the folder."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        case["ids"] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in case["texts"]]
        surrounded = tokenizer(case["texts"][0])["input_ids"]
        case["around"] = len(surrounded) - len(case["ids"][0])
        case["special_tokens"] = dict(tokenizer.special_tokens_map)
        end = tokenizer.eos_token_id
        case["end"] = end_of_model(case["files"]) if end is None else end
        case["vocabulary"] = len(tokenizer)
    except Exception as error:  # pylint: disable=broad-except
        case["error"] = f"{type(error).__name__}: {error}"[:120]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first folder")
    parser.add_argument("--golden", action="store_true")
    flags_given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    cases = [make_case(flags_given.seed + i) for i in range(flags_given.folders)]
    with tempfile.TemporaryDirectory() as place:
        for case in cases:
            folder = os.path.join(place, str(case["seed"]))
            write(case, folder)
            ask(case, folder)
        for case in cases:  # The order of members decides ids.
            case["files"] = {name: json.dumps(contents) for name, contents in case["files"].items()}
        golden = os.path.join(_GOLDEN, "folders.json") if flags_given.golden else os.path.join(place, "folders.json")
        with open(golden, "w", encoding="utf-8") as out:
            json.dump({"cases": cases[:_IN_GOLDEN] if flags_given.golden else cases}, out, separators=(",", ":"))
            out.write("\n")
        if flags_given.golden:
            return
        result = subprocess.run([_TEST, "--gtest_filter=FolderGoldenTest.*"], cwd=_ROOT, check=False,
                                env={**os.environ, "FOLDER_GOLDEN": golden})
        sys.exit(result.returncode)


if __name__ == "__main__":
    main()
