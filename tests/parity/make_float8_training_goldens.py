"""Writes tests/parity/golden/float8.safetensors and float8_blockwise.safetensors: 50 steps of a Llama whose linear
layers in blocks multiply in fp8, with the tensorwise dynamic scaling of torchao, or with the blockwise scaling of
DeepSeek-V3. See README.md; make_goldens.py says what it needs.

    ~/parity_venv/bin/python tests/parity/make_float8_training_goldens.py [--output FOLDER] [CASE...]

torch rounds to fp8, and multiplies the rounded values in fp32. Everything else is computed in bf16, as FSDP's mixed
precision does: parameters have masters in fp32.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from cases import Case
import make_goldens

STEPS = 50
LENGTH = 16
LLAMA = dict(family="LLAMA", vocabulary=61, width=32, layers=2, heads=4, kv_heads=2)
TENSORWISE = Case("float8", "decoder", dict(LLAMA, hidden=48), batch=8)
# Its 160 tokens, and 144 and 288 columns, have several tiles and blocks of 128, of which the last ones are smaller.
BLOCKWISE = Case("float8_blockwise", "decoder", dict(LLAMA, hidden=144), batch=10)
LEARNING_RATE = 1e-3
SCALE = 0.4  # Of initial matrices. With larger ones a last bit changes losses by as much as fp8 does.
# The largest change of a loss that a change of every initial weight by its last bits may cause. The test's tolerance is
# above it.
NOISE = 5e-4
BLOCK = 128


def to_float8(x, dtype):
    """Returns x in fp8, and the factor that turns the result back. This is torchao.float8's amax_to_scale and
    hp_tensor_and_scale_to_float8 with ScalingGranularity.TENSORWISE."""
    largest = torch.finfo(dtype).max
    scale = (largest / torch.clamp(x.abs().max().to(torch.float64), min=1e-12)).to(torch.float32)
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


class Multiply(torch.autograd.Function):
    """x w^T with operands in fp8, as torchao's matmul_with_hp_or_float8_args computes it and its gradients."""

    @staticmethod
    def forward(ctx, x, w):
        x8, w8 = to_float8(x, torch.float8_e4m3fn), to_float8(w, torch.float8_e4m3fn)
        ctx.save_for_backward(*x8, *w8)
        return (x8[0].float() @ w8[0].float().T * (x8[1] * w8[1])).to(x.dtype)

    @staticmethod
    def backward(ctx, d_y):
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        d_y8, scale = to_float8(d_y, torch.float8_e5m2)
        d_x = d_y8.float() @ w8.float() * (scale * w_scale)
        d_w = d_y8.float().T @ x8.float() * (scale * x_scale)
        return d_x.to(d_y.dtype), d_w.to(d_y.dtype)


def rounded_in_parts(x, rows):
    """Returns x after its conversion to e4m3 and back, with a scale for each part of `rows` rows and 128 columns: the
    largest magnitude of the part becomes 448, as in section 3.3.2 of the report of DeepSeek-V3 (arXiv 2412.19437)."""
    height, width = x.shape
    parts = F.pad(x.float(), (0, -width % BLOCK, 0, -height % rows))
    parts = parts.reshape(parts.shape[0] // rows, rows, parts.shape[1] // BLOCK, BLOCK)
    largest = torch.finfo(torch.float8_e4m3fn).max
    maxima = parts.abs().amax((1, 3), keepdim=True)
    scale = (largest / torch.clamp(maxima.to(torch.float64), min=1e-12)).to(torch.float32)
    codes = (parts * scale).clamp(-largest, largest).to(torch.float8_e4m3fn)
    whole = (codes.float() * scale.reciprocal()).flatten(2).flatten(0, 1)
    return whole[:height, :width]


def tiles(x):
    return rounded_in_parts(x, 1)


def blocks(w):
    return rounded_in_parts(w, BLOCK)


class BlockwiseMultiply(torch.autograd.Function):
    """x w^T and its gradients, with inputs and gradients in tiles of 1 x 128 along the dimension that is summed over,
    and weights in blocks of 128 x 128 (figure 7 of the report)."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (tiles(x) @ blocks(w).T).to(x.dtype)

    @staticmethod
    def backward(ctx, d_y):
        x, w = ctx.saved_tensors
        d_x = tiles(d_y) @ blocks(w)
        d_w = tiles(d_y.T) @ tiles(x.T).T
        return d_x.to(d_y.dtype), d_w.to(d_y.dtype)


class Float8Linear(nn.Linear):
    def forward(self, x):
        return Multiply.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class BlockwiseLinear(nn.Linear):
    def forward(self, x):
        return BlockwiseMultiply.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


def curve(case, model, inputs, targets, gradients=None):
    """Returns the losses of the steps, each before its update. Puts the gradients of the first step, by name, into
    `gradients`."""
    masters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    decayed = [p for p in masters.values() if p.dim() > 1]
    others = [p for p in masters.values() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=make_goldens.WEIGHT_DECAY), dict(params=others, weight_decay=0.0)],
        lr=LEARNING_RATE, betas=(make_goldens.BETA1, make_goldens.BETA2), eps=make_goldens.EPSILON, foreach=False)
    losses = []
    for step in range(STEPS):
        batch = step % len(inputs)
        optimizer.zero_grad()
        narrow = {name: p.bfloat16() for name, p in masters.items()}
        logits = functional_call(model, narrow, (inputs[batch],)).float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets[batch].flatten(), ignore_index=-1)
        loss.backward()
        if step == 0 and gradients is not None:
            gradients.update({name: p.grad.numpy().copy() for name, p in masters.items()})
        nn.utils.clip_grad_norm_(masters.values(), case.max_gradient_norm, foreach=False)
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64).numpy()


def make_model(case):
    model = case.make_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            elif not name.startswith("embedding"):
                parameter.mul_(SCALE)
    return model


def make_float8(case):
    model = make_model(case)
    for block in model.blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.__class__ = BlockwiseLinear if case is BLOCKWISE else Float8Linear
    return model


def nudged(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=generator))
    return model


def write(case, output):
    inputs, targets = case.make_batches(LENGTH)
    golden = {"inputs": inputs[0], "targets": targets[0], "curve_inputs": inputs, "curve_targets": targets}
    golden = {name: tensor.numpy().astype("int32") for name, tensor in golden.items()}
    model = make_float8(case)
    for name, p in model.named_parameters():
        golden[f"param/{name}"] = p.detach().numpy().copy()
    as_computed, float8 = {}, {}
    golden["curve_bf16"] = curve(case, make_model(case), inputs, targets, as_computed)
    golden["curve"] = curve(case, model, inputs, targets, float8)
    golden.update({f"grad/{name}": gradient for name, gradient in float8.items()})
    golden.update({f"grad_bf16/{name}": gradient for name, gradient in as_computed.items()})
    noise = abs(curve(case, nudged(make_float8(case)), inputs, targets) / golden["curve"] - 1).max()
    if noise > NOISE:
        raise SystemExit(f"losses differ by {noise:.1e} after a change of the last bits of weights; wanted {NOISE:.1e}")
    metadata = {
        "name": case.name,
        "model": case.textproto(),
        "sequence_length": str(LENGTH),
        "batch": str(case.batch),
        "optimizer": f"learning_rate: {LEARNING_RATE} beta1: {make_goldens.BETA1} beta2: {make_goldens.BETA2} "
                     f"epsilon: {make_goldens.EPSILON} weight_decay: {make_goldens.WEIGHT_DECAY} "
                     f"max_gradient_norm: {case.max_gradient_norm}",
        "torch": torch.__version__,
    }
    path = output / f"{case.name}.safetensors"
    make_goldens.write_safetensors(path, golden, metadata)
    apart = abs(golden["curve_bf16"] / golden["curve"] - 1).max()
    print(f"{path}: loss {golden['curve'][0]:.6f} -> {golden['curve'][-1]:.4f}, up to {apart:.1e} from bf16, "
          f"noise {noise:.1e}")


def main():
    output, cases = make_goldens.choose(__doc__, "golden", [TENSORWISE, BLOCKWISE])
    for case in cases:
        write(case, output)


if __name__ == "__main__":
    main()
