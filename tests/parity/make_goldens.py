"""Writes tests/parity/golden/<case>.safetensors: what PyTorch computes for each case of cases.py. See README.md.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors
    ~/parity_venv/bin/python tests/parity/make_goldens.py [--output FOLDER] [case ...]

Two runs on the same kind of machine with the same torch version write the same bytes.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import load_file
from torch.nn.utils import clip_grad_norm_

from cases import CASES, CURVE_BATCHES, SEQUENCE_LENGTH
from models import loss_of

STEPS = 20
LEARNING_RATE, BETA1, BETA2, WEIGHT_DECAY = 5e-3, 0.9, 0.95, 0.1
# Far above the rounding noise of a gradient. With a tiny epsilon the first updates would be signs of noise.
EPSILON = 1e-3

# Limits on the difference between PyTorch in fp32 and in fp64. A golden that PyTorch itself can hardly reproduce in
# fp32 would test luck. The tolerances of the parity tests are eight times the last two.
LOSS_NOISE, GRADIENT_NOISE, CURVE_NOISE = 2.5e-7, 1.25e-6, 1.25e-6


def gradients(model, tokens, targets, autocast=False):
    """Runs forward and backward once. Returns the loss, and {name: gradient} in fp64."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = loss_of(model, tokens, targets)
    loss.backward()
    return loss.item(), {name: p.grad.double() for name, p in model.named_parameters()}


def train(model, max_norm, inputs, targets):
    """Trains with AdamW at a constant learning rate. Returns losses and unclipped gradient norms, each [STEPS] fp64."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0.0)], lr=LEARNING_RATE,
        betas=(BETA1, BETA2), eps=EPSILON, foreach=False)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, inputs[step % CURVE_BATCHES], targets[step % CURVE_BATCHES])
        loss.backward()
        norms.append(clip_grad_norm_(model.parameters(), max_norm, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    return np.array(losses), np.array(norms)


def zero_gradients(case):
    """Lists parameters whose gradient is zero for all data; name[begin:end] means the rows from begin up to end.

    Without rotations a key bias adds the same amount to all scores of a query, which does not change their softmax.
    """
    if case.spec.get("family") != "GPT2":
        return []
    width = case.spec["width"]
    return [f"blocks.{i}.attention.qkv.bias[{width}:{2 * width}]" for i in range(case.spec["layers"])]


def check_steadiness(case, model, golden, exact):
    """Fails if the case is a bad golden: too noisy in fp32, without both clipped and unclipped steps, or hardly
    learning."""
    def require(name, value, limit):
        if not value <= limit:
            raise SystemExit(f"{case.name}: {name} differs by {value:.2e} between fp32 and fp64, wanted {limit:.2e}; "
                             "make the case better conditioned (learning rate, initial weights)")

    require("loss", abs(golden["loss"][0] / golden["loss_fp64"][0] - 1), LOSS_NOISE)
    require("curve", np.abs(golden["curve"] / golden["curve_fp64"] - 1).max(), CURVE_NOISE)
    for name, p in model.named_parameters():
        require(f"the gradient of {name}", ((p.grad - exact[name]).norm() / exact[name].norm()).item(), GRADIENT_NOISE)
    clipped = int((golden["curve_norm"] > case.max_gradient_norm).sum())
    if not 0 < clipped < STEPS:
        raise SystemExit(f"{case.name}: {clipped} of {STEPS} steps are clipped; wanted some, not all")
    if golden["curve"][-1] > 0.9 * golden["curve"][0]:
        raise SystemExit(f"{case.name}: the loss only falls from {golden['curve'][0]} to {golden['curve'][-1]}")


def make_golden(case):
    inputs, targets = case.make_batches()
    golden = {"inputs": inputs[0], "targets": targets[0], "curve_inputs": inputs, "curve_targets": targets}
    golden = {name: tensor.numpy().astype(np.int32) for name, tensor in golden.items()}

    def scalar(value):
        return np.array([value], dtype=np.float64)

    model = case.make_model()
    for name, p in model.named_parameters():
        golden[f"param/{name}"] = p.detach().numpy().copy()
    loss, _ = gradients(model, inputs[0], targets[0])
    loss_fp64, exact = gradients(case.make_model().double(), inputs[0], targets[0])
    golden["loss"], golden["loss_fp64"] = scalar(loss), scalar(loss_fp64)
    for name, gradient in exact.items():
        golden[f"grad/{name}"] = gradient.float().numpy()

    # PyTorch has two kinds of bf16 training; see README.md.
    for prefix, (loss, rounded) in {
            "bf16": gradients(case.make_model(), inputs[0], targets[0], autocast=True),
            "bf16_full": gradients(case.make_model().bfloat16(), inputs[0], targets[0]),
    }.items():
        golden[f"{prefix}_loss"] = scalar(loss)
        for name, gradient in rounded.items():
            golden[f"{prefix}_error/{name}"] = scalar((gradient - exact[name]).norm().item())

    golden["curve"], golden["curve_norm"] = train(case.make_model(), case.max_gradient_norm, inputs, targets)
    golden["curve_fp64"], golden["curve_norm_fp64"] = train(
        case.make_model().double(), case.max_gradient_norm, inputs, targets)
    check_steadiness(case, model, golden, exact)

    metadata = {
        "name": case.name,
        "model": case.textproto(),
        "sequence_length": str(SEQUENCE_LENGTH),
        "batch": str(case.batch),
        "optimizer": f"learning_rate: {LEARNING_RATE} beta1: {BETA1} beta2: {BETA2} epsilon: {EPSILON} "
                     f"weight_decay: {WEIGHT_DECAY} max_gradient_norm: {case.max_gradient_norm}",
        "zero_gradients": ",".join(zero_gradients(case)),
        "torch": torch.__version__,
    }
    return golden, metadata


def write_safetensors(path, tensors, metadata):
    """Writes the file with its keys in a fixed order. The safetensors package promises no order for metadata."""
    dtypes = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header, offset = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name in order:
        tensor = tensors[name]
        header[name] = {"dtype": dtypes[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).astype(tensors[name].dtype.newbyteorder("<")).tobytes())
    for name, tensor in load_file(path).items():
        if not np.array_equal(tensor, tensors[name]):
            raise SystemExit(f"{path}: {name} reads back differently")


def choose(description, folder, cases):
    """Reads the command line: a folder for the output, by default this one of tests/parity, and names of cases. Returns
    the folder and the cases, by default all. Makes torch compute the same bits each time."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / folder)
    parser.add_argument("cases", nargs="*", metavar="case", help="default: " + " ".join(c.name for c in cases))
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - {case.name for case in cases}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return arguments.output, [case for case in cases if not arguments.cases or case.name in arguments.cases]


def main():
    output, cases = choose(__doc__, "golden", CASES)
    for case in cases:
        golden, metadata = make_golden(case)
        path = output / f"{case.name}.safetensors"
        write_safetensors(path, golden, metadata)

        def total(prefix):
            return np.sqrt(sum(v[0] ** 2 for k, v in golden.items() if k.startswith(prefix + "/")))

        clipped = (golden["curve_norm"] > case.max_gradient_norm).sum()
        parameters = sum(v.size for k, v in golden.items() if k.startswith("param/"))
        curve_noise = np.abs(golden["curve"] / golden["curve_fp64"] - 1).max()
        print(f"{case.name:12} {parameters:6} parameters {path.stat().st_size / 1024:4.0f} KiB  "
              f"loss {golden['loss'][0]:.6f} -> {golden['curve'][-1]:.4f}  "
              f"clipped {clipped:2}/{STEPS}  curve noise {curve_noise:.1e}  "
              f"bf16 error: autocast {total('bf16_error'):.2e}, full {total('bf16_full_error'):.2e}")


if __name__ == "__main__":
    main()
