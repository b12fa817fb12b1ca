"""PyTorch references of the models that the engine trains, written to be read together with its C++.

A dict with the fields of DecoderSpec or MlpSpec (proto/job/model.proto) describes a model. The parameters have the
engine's names and layouts. Nothing here depends on another model library; check_transformers.py compares with one.

B sequences in a batch, S tokens in a sequence, C model width, H query heads, G key and value heads, D head width,
F inner width of the feed-forward layer, V vocabulary, P learned positions, E embedding width of the MLP.

Every module runs in fp64, fp32 or bf16, and under torch.autocast. In bf16, norms, rotations, softmax and loss are
computed in fp32 and rounded once, as careful PyTorch code does.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

# The defaults of each family for fields that the spec does not set (enum Family in proto/job/model.proto).
_LLAMA = dict(norm="rms", positions="rope", activation="swiglu", norm_epsilon=1e-5, tied_head=False, qkv_bias=False,
              linear_bias=False, qk_norm=False, parallel_block=False)
FAMILIES = {
    "LLAMA": _LLAMA,
    "MISTRAL": _LLAMA,
    "QWEN2": {**_LLAMA, "qkv_bias": True, "norm_epsilon": 1e-6},
    "QWEN3": {**_LLAMA, "qk_norm": True, "norm_epsilon": 1e-6},
    "GPT2": {**_LLAMA, "norm": "layer", "positions": "learned", "activation": "gelu_tanh", "tied_head": True,
             "qkv_bias": True, "linear_bias": True},
    "FALCON": {**_LLAMA, "norm": "layer", "activation": "gelu_erf", "tied_head": True, "parallel_block": True,
               "kv_heads": 1},
}


# The fields that Shape reads from a spec. It may have others that are without effect.
_READ = {"family", "vocabulary", "width", "layers", "heads", "kv_heads", "head_width", "hidden", "max_positions",
         "rope_theta", "rope_scaling", "norm_epsilon", "tied_head", "qkv_bias", "linear_bias", "qk_norm",
         "parallel_block", "parallel_norms", "attention_window", "init_std"}


def check_spec(spec):
    """Raises ValueError if Shape would make another model of a DecoderSpec."""
    if spec["family"] not in FAMILIES:
        raise ValueError(f"there is no reference of family {spec['family']}, but of {', '.join(FAMILIES)}")
    unknown = [f"{key} {value}" for key, value in spec.items() if key not in _READ and value]
    if unknown:
        raise ValueError(f"the references do not have {', '.join(unknown)}")
    kind = (spec.get("rope_scaling") or {}).get("kind", "LLAMA3")
    if kind != "LLAMA3":
        raise ValueError(f"the references do not have rope_scaling of kind {kind}")


class Shape:
    """A DecoderSpec (a dict of its fields) with every default filled in, of which check_spec says whether it is one."""

    def __init__(self, spec):
        check_spec(spec)
        known = {**FAMILIES[spec["family"]], **spec}
        self.family = known["family"]
        self.vocabulary, self.width, self.layers = known["vocabulary"], known["width"], known["layers"]
        self.heads = known["heads"]
        self.kv_heads = known.get("kv_heads", self.heads)
        self.head_width = known.get("head_width", self.width // self.heads)
        self.norm, self.positions, self.activation = known["norm"], known["positions"], known["activation"]
        gated = self.activation == "swiglu"
        self.hidden = known.get("hidden", -(-self.width * 8 // (3 * 64)) * 64 if gated else 4 * self.width)
        self.max_positions = known.get("max_positions")
        self.rope_theta = known.get("rope_theta", 10000.0)
        self.rope_scaling = known.get("rope_scaling")
        self.norm_epsilon = known["norm_epsilon"]
        self.tied_head, self.qk_norm = known["tied_head"], known["qk_norm"]
        self.qkv_bias, self.linear_bias = known["qkv_bias"], known["linear_bias"]
        self.parallel_block = known["parallel_block"]
        self.parallel_norms = known.get("parallel_norms", False)
        self.attention_window = known.get("attention_window", 0)


def at_least_fp32(dtype):
    return torch.promote_types(dtype, torch.float32)


class RmsNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def forward(self, x):
        wide = x.to(at_least_fp32(x.dtype))
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * rstd * self.weight).to(x.dtype)


def make_norm(shape, width):
    if shape.norm == "layer":
        return nn.LayerNorm(width, eps=shape.norm_epsilon)
    return RmsNorm(width, shape.norm_epsilon)


def rope_frequencies(shape):
    """Returns the frequencies theta^(-2i/D), [D/2] fp64, with the Llama-3 scaling if the spec asks for it."""
    exponent = torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width
    frequency = shape.rope_theta ** -exponent
    scaling = shape.rope_scaling
    if scaling is None:
        return frequency
    # Scaling depends on how often a pair turns within the original context. A frequency with at least high_freq_factor
    # turns stays. One with fewer than low_freq_factor turns is divided by `factor`. In between, the two are blended
    # linearly in the number of turns.
    turns = scaling["original_context"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequency + (1 - keep) * frequency / scaling["factor"]


def rotate(x, cos, sin):
    """Turns the pairs (x[i], x[i + D/2]) of x [B, S, heads, D] by the angles in cos, sin [S, 1, D/2]."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal attention. Query head h reads key and value head h / (H / G). Query i sees key j if i - window < j <=
    i."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        heads, kv_heads, head_width = shape.heads, shape.kv_heads, shape.head_width
        self.qkv = nn.Linear(shape.width, (heads + 2 * kv_heads) * head_width, bias=shape.qkv_bias)
        if shape.qk_norm:
            self.q_norm = RmsNorm(head_width, shape.norm_epsilon)
            self.k_norm = RmsNorm(head_width, shape.norm_epsilon)
        self.output = nn.Linear(heads * head_width, shape.width, bias=shape.linear_bias)

    def forward(self, x):
        shape = self.shape
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, -1, shape.head_width)
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=2)
        if shape.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if shape.positions == "rope":
            angle = torch.arange(length, dtype=torch.float64)[:, None, None] * rope_frequencies(shape)
            cos, sin = (t.to(at_least_fp32(q.dtype)) for t in (angle.cos(), angle.sin()))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, dim=2) for t in (k, v))
        distance = torch.arange(length)[:, None] - torch.arange(length)  # [query, key]
        seen = distance >= 0
        if shape.attention_window > 0:
            seen &= distance < shape.attention_window
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=seen)
        return self.output(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.activation = shape.activation
        if self.activation == "swiglu":
            self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=shape.linear_bias)
        else:
            self.up = nn.Linear(shape.width, shape.hidden, bias=shape.linear_bias)
        self.down = nn.Linear(shape.hidden, shape.width, bias=shape.linear_bias)

    def forward(self, x):
        if self.activation == "swiglu":
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.activation == "gelu_tanh" else "none"))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.parallel = shape.parallel_block
        self.attention_norm = make_norm(shape, shape.width)
        self.attention = Attention(shape)
        if not self.parallel or shape.parallel_norms:
            self.ffn_norm = make_norm(shape, shape.width)
        self.ffn = FeedForward(shape)

    def forward(self, x):
        normed = self.attention_norm(x)
        if self.parallel:
            ffn_input = self.ffn_norm(x) if hasattr(self, "ffn_norm") else normed
            return x + self.attention(normed) + self.ffn(ffn_input)
        x = x + self.attention(normed)
        return x + self.ffn(self.ffn_norm(x))


class Embedding(nn.Module):
    """Computes weight[token], plus positions[s] if positions are learned."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        if shape.positions == "learned":
            self.positions = nn.Parameter(torch.empty(shape.max_positions, shape.width))

    def forward(self, tokens):
        x = F.embedding(tokens, self.weight)
        return x + self.positions[:tokens.shape[1]] if hasattr(self, "positions") else x


class Decoder(nn.Module):
    """A decoder-only transformer. `spec` has fields of DecoderSpec."""

    def __init__(self, spec):
        super().__init__()
        shape = self.shape = Shape(spec)
        self.embedding = Embedding(shape)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = make_norm(shape, shape.width)
        if not shape.tied_head:
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens):
        """Returns logits [B, S, V] for tokens [B, S]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        return F.linear(x, self.embedding.weight) if self.shape.tied_head else self.head(x)

    def select_targets(self, targets):
        return targets


class Mlp(nn.Module):
    """Predicts the token after a sequence from the concatenated embeddings of its S tokens, [B, S * E]."""

    def __init__(self, spec, sequence_length):
        super().__init__()
        self.embedding = nn.Embedding(spec["vocabulary"], spec["embedding"])
        widths = [sequence_length * spec["embedding"]] + [spec["hidden"]] * spec["layers"]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.head = nn.Linear(spec["hidden"], spec["vocabulary"])

    def forward(self, tokens):
        """Returns logits [B, V] for tokens [B, S]."""
        x = self.embedding(tokens).flatten(1)
        for layer in self.hidden:
            x = F.gelu(layer(x), approximate="tanh")
        return self.head(x)

    def select_targets(self, targets):
        return targets[:, -1]


def make_model(kind, spec, sequence_length):
    return Decoder(spec) if kind == "decoder" else Mlp(spec, sequence_length)


def loss_of(model, tokens, targets):
    """Returns the mean cross-entropy of the tokens whose target is not -1."""
    logits = model(tokens)
    targets = model.select_targets(targets).flatten()
    logits = logits.to(at_least_fp32(logits.dtype)).flatten(0, -2)
    return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum") / (targets >= 0).sum()
