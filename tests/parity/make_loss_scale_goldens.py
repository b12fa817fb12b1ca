#!/usr/bin/env python3
"""Writes tests/engine/loss_scale_golden.h: 300 steps of a small MLP in fp16 with torch.amp.GradScaler, which overflow
on purpose. The first scale is much too large, and it grows every 15 updates. The learning rate is low, so that training
does not amplify what rounds otherwise where sums have another order: losses then differ by less than 5e-4.

As in the engine, masters and gradients of weights are fp32, and weights, activations and their gradients are fp16: each
matmul adds in fp32 and rounds once. tests/engine/loss_scale_law_test.cc has the same model, weights and tokens."""
import pathlib
import subprocess

import torch

VOCABULARY, EMBEDDING, HIDDEN, LENGTH, SEQUENCES, STEPS = 19, 5, 17, 4, 6, 300
SHAPES = {
    "embedding.weight": (VOCABULARY, EMBEDDING),
    "hidden.0.weight": (HIDDEN, LENGTH * EMBEDDING),
    "hidden.0.bias": (HIDDEN,),
    "hidden.1.weight": (HIDDEN, HIDDEN),
    "hidden.1.bias": (HIDDEN,),
    "head.weight": (VOCABULARY, HIDDEN),
    "head.bias": (VOCABULARY,),
}


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        half = weight.half()
        ctx.save_for_backward(x, half)
        return (x.float() @ half.float().T + bias.half().float()).half()

    @staticmethod
    def backward(ctx, d_out):
        x, half = ctx.saved_tensors
        wide = d_out.float()
        return (wide @ half.float()).half(), wide.T @ x.float(), wide.sum(0)


def gelu(x):
    return torch.nn.functional.gelu(x.float(), approximate="tanh").half()


def values(index, shape):
    count = torch.Size(shape).numel()
    i = torch.arange(count, dtype=torch.float64)
    drawn = ((i * 7919 + index * 104729 + 17) % 2003 / 2003 - 0.5) * 0.8
    return (torch.zeros(count) if len(shape) == 1 else drawn.float()).reshape(shape).requires_grad_()


def batch(step):
    inputs = torch.tensor([[(7 * step + 5 * b + 3 * s * s + b * s) % VOCABULARY for s in range(LENGTH)]
                           for b in range(SEQUENCES)])
    return inputs, (inputs[:, 0] + 2 * inputs[:, -1]) % VOCABULARY


def main():
    weights = {name: values(i, shape) for i, (name, shape) in enumerate(SHAPES.items())}
    optimizer = torch.optim.AdamW(weights.values(), lr=7e-4, betas=(0.9, 0.95), eps=1e-3, weight_decay=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=15)
    losses, exponents = [], []
    for step in range(STEPS):
        inputs, targets = batch(step % 5)
        x = weights["embedding.weight"][inputs].half().reshape(SEQUENCES, -1)
        for layer in range(2):
            x = gelu(Linear.apply(x, weights[f"hidden.{layer}.weight"], weights[f"hidden.{layer}.bias"]))
        logits = Linear.apply(x, weights["head.weight"], weights["head.bias"])
        loss = torch.nn.functional.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        exponents.append(round(torch.log2(torch.tensor(scaler.get_scale())).item()))
    lines = ["// Written by tests/parity/make_loss_scale_goldens.py, with PyTorch.", "#pragma once", "",
             "namespace shale::testing {", "",
             "// The loss of each step, and the logarithm to base 2 of the loss scale after it."]
    for kind, name, items in (("float", "kScaledLosses", [f"{loss:.6g}f" if "." in f"{loss:.6g}" else f"{loss:.1f}f"
                                                          for loss in losses]),
                              ("int", "kScaleExponents", [str(e) for e in exponents])):
        lines.append(f"inline constexpr {kind} {name}[] = {{")
        row = "   "
        for item in items:
            if len(row) + len(item) + 2 > 118:
                lines.append(row)
                row = "   "
            row += f" {item},"
        lines += [row, "};"]
    lines += ["", "}  // namespace shale::testing", ""]
    path = pathlib.Path(__file__).resolve().parent.parent / "engine" / "loss_scale_golden.h"
    path.write_text("\n".join(lines))
    subprocess.run(["clang-format-14", "-i", path], check=True)


if __name__ == "__main__":
    main()
