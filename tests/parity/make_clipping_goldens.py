#!/usr/bin/env python3
"""Writes tests/engine/group_clipping_golden.h: losses of a small MLP whose gradients are clipped by
torch.nn.utils.clip_grad_norm_, once for each group of parameters.

The model, its weights and its tokens are those of make_loss_scale_goldens.py, in fp32."""
import pathlib
import subprocess

import torch
from make_loss_scale_goldens import SEQUENCES, SHAPES, batch, values

STEPS = 32


def main():
    weights = {name: values(i, shape) for i, (name, shape) in enumerate(SHAPES.items())}
    optimizer = torch.optim.SGD(weights.values(), lr=0.2, momentum=0.9)
    biases = [w for name, w in weights.items() if name.endswith(".bias")]
    hidden = [w for name, w in weights.items() if name.startswith("hidden.") and name.endswith(".weight")]
    others = [weights["embedding.weight"], weights["head.weight"]]
    losses, clipped = [], 0
    for step in range(STEPS):
        inputs, targets = batch(step % 5)
        x = weights["embedding.weight"][inputs].reshape(SEQUENCES, -1)
        for layer in range(2):
            x = torch.nn.functional.linear(x, weights[f"hidden.{layer}.weight"], weights[f"hidden.{layer}.bias"])
            x = torch.nn.functional.gelu(x, approximate="tanh")
        logits = torch.nn.functional.linear(x, weights["head.weight"], weights["head.bias"])
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        for group, max_norm in ((biases, 0.25), (hidden, 0.1), (others, 0.3)):
            clipped += torch.nn.utils.clip_grad_norm_(group, max_norm).item() > max_norm
        optimizer.step()
        losses.append(loss.item())
    print(f"{clipped} of {3 * STEPS} norms were clipped; losses", losses)
    lines = ["// Written by tests/parity/make_clipping_goldens.py, with PyTorch.", "#pragma once", "",
             "namespace shale::testing {", "", "// The loss of each step.",
             "inline constexpr float kGroupClippedLosses[] = {"]
    for begin in range(0, STEPS, 8):
        lines.append("    " + " ".join(f"{loss:.8f}f," for loss in losses[begin:begin + 8]))
    lines += ["};", "", "}  // namespace shale::testing", ""]
    path = pathlib.Path(__file__).resolve().parent.parent / "engine" / "group_clipping_golden.h"
    path.write_text("\n".join(lines))
    subprocess.run(["clang-format-14", "-i", path], check=True)


if __name__ == "__main__":
    main()
