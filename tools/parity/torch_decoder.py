"""The decoder of models.py in the form that PyTorch runs fastest, for the programs that the engine is compared with.

It has one fused projection for Q, K and V and one for gate and up, uses scaled_dot_product_attention, and computes the
loss in one function that can be compiled separately. The module also provides the tokens and the optimizer.

B sequences in a micro-batch, S tokens in a sequence, C model width, H query heads, G key and value heads, D head width.
"""

import math
import struct

import torch
import torch.nn.functional as F
from torch import nn

from models import RmsNorm, make_norm, rope_frequencies, rotate


class Attention(nn.Module):
    """Causal attention with a kernel that never stores the scores. With `grouped` the kernel reads K and V with their
    fewer heads. Otherwise K and V are repeated, which kernels for CPUs require."""

    def __init__(self, shape, grouped):
        super().__init__()
        self.shape, self.grouped = shape, grouped and shape.kv_heads < shape.heads
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_width, bias=shape.qkv_bias)
        self.output = nn.Linear(shape.heads * shape.head_width, shape.width, bias=shape.linear_bias)

    def forward(self, x, cos, sin):
        shape = self.shape
        qkv = self.qkv(x).unflatten(2, (-1, shape.head_width))
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=2)
        if cos is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if shape.kv_heads < shape.heads and not self.grouped:
            k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.grouped:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gated = shape.activation == "swiglu"
        self.approximate = "tanh" if shape.activation == "gelu_tanh" else "none"
        self.up = nn.Linear(shape.width, shape.hidden * (2 if self.gated else 1), bias=shape.linear_bias)
        self.down = nn.Linear(shape.hidden, shape.width, bias=shape.linear_bias)

    def forward(self, x):
        if self.gated:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    def __init__(self, shape, grouped):
        super().__init__()
        self.attention_norm = make_norm(shape, shape.width)
        self.attention = Attention(shape, grouped)
        self.ffn_norm = make_norm(shape, shape.width)
        self.ffn = FeedForward(shape)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


def mean_cross_entropy(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).flatten(0, 1).float(), targets.flatten())


class Decoder(nn.Module):
    """A decoder for sequences of `length` tokens. `loss` is a function of hidden states [B, S, C], head weight [V, C]
    and targets [B, S]; it may be replaced by a compiled one."""

    def __init__(self, shape, length, grouped=False):
        super().__init__()
        if shape.qk_norm or shape.parallel_block or shape.attention_window or shape.norm not in ("rms", "layer"):
            raise SystemExit("norms on Q and K, parallel blocks and windows are not supported")
        self.shape, self.loss = shape, mean_cross_entropy
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if shape.positions == "learned":
            self.positions = nn.Parameter(torch.empty(shape.max_positions, shape.width))
        self.blocks = nn.ModuleList(Block(shape, grouped) for _ in range(shape.layers))
        self.final_norm = make_norm(shape, shape.width)
        if not shape.tied_head:
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        # [S, 1, D/2]. Plain attributes and not buffers, so that FSDP does not cast them.
        self.cos = self.sin = None
        if shape.positions == "rope":
            angle = torch.arange(length, dtype=torch.float64)[:, None, None] * rope_frequencies(shape)
            self.cos, self.sin = angle.cos().float(), angle.sin().float()
        self.initialize()

    def initialize(self):
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        for block in self.blocks:
            for layer in (block.attention.output, block.ffn.down):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * self.shape.layers))
        for module in self.modules():
            if isinstance(module, RmsNorm):
                nn.init.ones_(module.weight)
            elif isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens, targets):
        """Returns the mean cross-entropy of targets [B, S] for tokens [B, S]."""
        x = self.embedding(tokens)
        if self.shape.positions == "learned":
            x = x + self.positions[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = self.final_norm(x)
        return self.loss(x, self.embedding.weight if self.shape.tied_head else self.head.weight, targets)


class Tokens:
    """A token file of llm.c, read in order: sample i has inputs [iS, iS + S), and targets one position later."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = bytearray(file.read())
        magic, _, self.count = struct.unpack_from("<iii", data)
        dtype = {20240520: torch.uint16, 20240801: torch.int32}[magic]
        self.tokens = torch.frombuffer(data, dtype=dtype, offset=1024)

    def batch(self, position, sequences, length):
        """Returns inputs and targets of samples [position, position + sequences), wrapping around at the end of the
        file."""
        samples = (self.count - 1) // length
        starts = [(position + i) % samples * length for i in range(sequences)]
        rows = torch.stack([self.tokens[s:s + length + 1].long() for s in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def make_optimizer(parameters, spec):
    parameters = list(parameters)
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": spec["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec["learning_rate"], betas=(spec["beta1"], spec["beta2"]),
                             eps=spec["epsilon"], fused=True)


def update_in_backward(model, spec):
    """Updates each parameter, with an optimizer of its own, as soon as backward has its gradient, and frees the
    gradient."""
    for parameter in model.parameters():
        def update(_, optimizer=make_optimizer([parameter], spec)):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        parameter.register_post_accumulate_grad_hook(update)


class Segment(nn.Module):
    """Runs consecutive blocks."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x, cos, sin):
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def sqrt_segment_blocks(layers):
    """Returns the number of blocks in a segment, at least 2, with which the fewest inputs are held: one of each
    segment, and those between the blocks of one segment. Among equals, returns the nearest to the square root, as
    SqrtSegmentBlocks does (engine/compile/step/options_enums.h)."""
    return min(range(2, layers + 1), key=lambda n: (-(-layers // n) + n - 1, abs(n - math.sqrt(layers))))
