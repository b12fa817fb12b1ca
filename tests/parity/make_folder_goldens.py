#!/usr/bin/env python3
"""Writes what datasets.load_dataset takes of folders of data to tests/engine/text/golden/data_folders.json.

    tests/parity/make_folder_goldens.py [--folders=200] [--seed=1] [--out=FILE]

Each folder has a few files, whose text is their own path: rows in *.jsonl, *.ndjson and *.json (a list), also packed,
and lines in *.txt. The golden has the paths of each folder, and those that load_dataset takes for training (null: it
takes none, or refuses the folder). Needs datasets.
"""

import argparse
import gzip
import json
import logging
import os
import pathlib
import random
import tempfile
import warnings

_FOLDERS = ["", "", "", "data/", "data/", "train/", "test/", "a/b/", "dev/", "my-training-2/", "__cache/", ".hidden/"]
_STEMS = ["train", "test", "validation", "valid", "dev", "x", "y", "pretrain", "latest", "my_test", "eval.2",
          "training", "devices", "Z", "train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
_ENDINGS = [".jsonl", ".jsonl", ".jsonl", ".json", ".ndjson", ".jsonl.gz", ".txt"]
_BESIDE = ["README.md", "dataset_infos.json", ".gitattributes", "dataset_info.json", "config.json"]


def contents(name):
    """Returns the bytes of a file."""
    row = json.dumps({"text": name})
    if name.endswith(".txt"):
        return name.encode()
    if name.endswith(".json"):
        return f"[{row}]".encode()
    return gzip.compress(row.encode(), mtime=0) if name.endswith(".gz") else (row + "\n").encode()


def random_name(source):
    """Returns the path of a file. Most files in a folder that names a split name none themselves."""
    folder = source.choice(_FOLDERS)
    plain = any(word in folder for word in ("train", "test", "dev")) and source.random() < 0.8
    return folder + source.choice(["x", "y", "Z", "devices", "part-00001"] if plain else _STEMS) + ".jsonl"


def random_folder(source):
    """Returns the paths in a folder."""
    names = {random_name(source) for _ in range(source.randint(1, 5))}
    if source.random() < 0.5:
        names = {name[:-len(".jsonl")] + source.choice(_ENDINGS) for name in sorted(names)}
    names |= {name for name in _BESIDE if source.random() < 0.2}
    return sorted(names)


def trained(names):
    """Returns the paths that load_dataset takes for training, or None if it takes none, or refuses the folder."""
    import datasets  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        for name in names:
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}\n" if name in _BESIDE else contents(name))
        try:
            return sorted(datasets.load_dataset(folder, split="train", cache_dir=cache)["text"])
        except Exception:  # pylint: disable=broad-except
            return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    golden = pathlib.Path(__file__).parents[2] / "tests/engine/text/golden/data_folders.json"
    parser.add_argument("--out", default=str(golden))
    flags = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import datasets  # pylint: disable=import-outside-toplevel
    datasets.disable_progress_bars()
    logging.disable(logging.CRITICAL)
    source = random.Random(flags.seed)
    cases = []
    while len(cases) < flags.folders:
        names = random_folder(source)
        if all(name in _BESIDE for name in names):
            continue
        cases.append({"files": names, "train": trained(names)})
    with open(flags.out, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{len(cases)} folders, {sum(case['train'] is not None for case in cases)} of which give training data")


if __name__ == "__main__":
    main()
