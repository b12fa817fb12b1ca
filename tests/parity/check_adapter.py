"""Loads an exported folder of adapters in PEFT as a user would, and compares it with the merged export.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers peft
    ~/parity_venv/bin/python tests/parity/check_adapter.py FOLDER --base FOLDER [--merged FOLDER] [--against FOLDER]

Fails if a key is missing or unexpected, if a value is not that of the file, or if the logits differ by more than fp32
rounding explains from those of the folder --merged, which transformers loads, or of the PEFT folder --against.
"""

import argparse
import pathlib
import sys
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file

from check_export import load, logits_of


def adapted(base, folder):
    """Returns the base model with the adapters of a folder. Exits if the folder's keys do not match the model's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        model = peft.PeftModel.from_pretrained(load(base), folder, autocast_adapter_dtype=False)
    stored, loaded = load_file(folder / "adapter_model.safetensors"), peft.get_peft_model_state_dict(model)
    if stored.keys() != loaded.keys():
        sys.exit(f"{folder}: missing {sorted(loaded.keys() - stored.keys())}, "
                 f"unexpected {sorted(stored.keys() - loaded.keys())}")
    if different := [key for key, value in stored.items() if not torch.equal(value.float(), loaded[key])]:
        sys.exit(f"{folder}: PEFT has other values of {different}")
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--merged", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="relative to the largest logit (%(default)s)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logits = logits_of(adapted(arguments.base, arguments.folder))
    moved = (logits - logits_of(load(arguments.base))).abs().max().item()
    print(f"{arguments.folder}: every key is there; the adapters move logits by up to {moved:.1e}")
    for what, other in (("merged", arguments.merged), ("against", arguments.against)):
        if other is None:
            continue
        wanted = logits_of(load(other) if what == "merged" else adapted(arguments.base, other))
        apart = ((logits - wanted).abs().max() / wanted.abs().max()).item()
        print(f"  {other}: logits differ by {apart:.1e} of the largest")
        if not apart <= arguments.tolerance:
            sys.exit(f"wanted at most {arguments.tolerance:.1e}")


if __name__ == "__main__":
    main()
