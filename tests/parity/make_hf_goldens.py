"""Writes tests/parity/golden/hf/<case>: a folder of transformers, and what it computes from that. See README.md.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers
    ~/parity_venv/bin/python tests/parity/make_hf_goldens.py [--output FOLDER] [case ...]
"""

import shutil

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch.nn.utils import clip_grad_norm_

from check_transformers import AllInFp64
from hf_cases import CASES
from make_goldens import choose, write_safetensors

LEARNING_RATE, BETA1, BETA2, WEIGHT_DECAY, MAX_NORM = 1e-3, 0.9, 0.95, 0.1, 1.0
# Far above the rounding noise of a gradient. With a tiny epsilon the first updates would be signs of noise.
EPSILON = 1e-3

# Limits on the relative difference between transformers in fp32 and in fp64. The tests allow 1e-5 for a loss, and 1e-4
# of the distance that a tensor has moved, plus rounding.
LOSS_NOISE, UPDATE_NOISE = 1e-6, 1e-4


def loss_of(model, inputs, targets):
    """Returns the mean cross-entropy of the tokens whose target is not -1, and the logits."""
    logits = model(inputs, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    return loss / (targets >= 0).sum(), logits


def adamw(model, learning_rate):
    """Returns the optimizer of a model, which decays its matrices only."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0.0)], lr=learning_rate,
        betas=(BETA1, BETA2), eps=EPSILON, foreach=False)


def train(model, inputs, targets, steps):
    """Trains with AdamW. Returns the logits before the first step, and each step's loss and unclipped gradient norm."""
    optimizer = adamw(model, LEARNING_RATE)
    losses, norms, first = [], [], None
    for _ in range(steps):
        optimizer.zero_grad()
        loss, logits = loss_of(model, inputs, targets)
        first = logits.detach() if first is None else first
        loss.backward()
        norms.append(clip_grad_norm_(model.parameters(), MAX_NORM, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    return first, np.array(losses), np.array(norms)


def weights(model):
    return {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}


def make_golden(case, folder):
    if folder.exists():
        shutil.rmtree(folder)
    case.make_model().save_pretrained(folder, max_shard_size=case.max_shard_size)

    def load(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager").eval()

    inputs, targets = case.make_batch()
    model = load(torch.float32)
    before = weights(model)
    logits, losses, norms = train(model, inputs, targets, case.steps)
    after = weights(model)
    with AllInFp64():
        exact = load(torch.float64)
        _, exact_losses, _ = train(exact, inputs, targets, case.steps)
    loss_noise = np.abs(losses / exact_losses - 1).max()
    moved, apart = 0.0, 0.0
    for name, value in weights(exact).items():
        moved += np.square(after[name] - before[name]).sum()
        apart += np.square(after[name] - value).sum()
    update_noise = np.sqrt(apart / moved)
    if loss_noise > LOSS_NOISE or update_noise > UPDATE_NOISE:
        raise SystemExit(f"{case.name}: fp32 alone moves losses by {loss_noise:.1e}, updates by {update_noise:.1e}; "
                         "make the case better conditioned")

    golden = {"inputs": inputs.numpy().astype(np.int32), "targets": targets.numpy().astype(np.int32),
              "logits": logits.numpy(), "losses": losses, "norms": norms}
    golden |= {"after/" + name: value.astype(np.float32) for name, value in after.items()}
    metadata = {"name": case.name, "torch": torch.__version__, "transformers": transformers.__version__}
    write_safetensors(folder / "golden.safetensors", golden, metadata)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{case.name:14} {size / 1024:4.0f} KiB  loss {losses[0]:.6f} -> {losses[-1]:.4f}  norm {norms[0]:.2f}  "
          f"fp32 noise: losses {loss_noise:.1e}, updates {update_noise:.1e}")


def main():
    output, cases = choose(__doc__, "golden/hf", CASES)
    transformers.logging.set_verbosity_error()
    for case in cases:
        make_golden(case, output / case.name)


if __name__ == "__main__":
    main()
