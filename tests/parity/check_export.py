"""Loads a folder in transformers as a user would, and compares it with the folder that it came from.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers
    ~/parity_venv/bin/python tests/parity/check_export.py FOLDER [--against FOLDER [--fresh]]

Fails if a key is missing, unexpected or has a wrong shape, if logits differ by more than fp32 rounding explains, or if
a tokenizer file differs. If FOLDER has trained weights, leave --against out: there is nothing to compare them with.
"""

import argparse
import pathlib
import sys

import torch
import transformers


def load(folder):
    """Returns the model in fp32. Exits if the folder's keys do not match the model's."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    return model.eval()


def logits_of(model):
    """Returns logits [2, length, V] of fixed tokens, with at most as many positions as the model has."""
    length = min(64, model.config.max_position_embeddings)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def check_copies(folder, against):
    for file in sorted(against.glob("*")):
        copied = file.name.startswith("tokenizer") or file.name in (
            "special_tokens_map.json", "vocab.json", "merges.txt", "added_tokens.json", "generation_config.json")
        copy = folder / file.name
        if copied and not (copy.exists() and copy.read_bytes() == file.read_bytes()):
            sys.exit(f"{copy} is not a copy of {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="relative to the largest logit (%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="no files were copied: it was exported without a base")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logits = logits_of(load(arguments.folder))
    if not torch.isfinite(logits).all():
        sys.exit(f"{arguments.folder}: logits are not finite")
    if arguments.against is None:
        print(f"{arguments.folder}: every key is there")
        return
    wanted = logits_of(load(arguments.against))
    if logits.shape != wanted.shape:
        sys.exit(f"{arguments.folder}: logits {list(logits.shape)}, wanted {list(wanted.shape)}")
    apart = ((logits - wanted).abs().max() / wanted.abs().max()).item()
    print(f"{arguments.folder}: every key is there; logits differ by {apart:.1e} of the largest")
    if not apart <= arguments.tolerance:
        sys.exit(f"wanted at most {arguments.tolerance:.1e}")
    if not arguments.fresh:
        check_copies(arguments.folder, arguments.against)


if __name__ == "__main__":
    main()
