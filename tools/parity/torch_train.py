"""Trains a decoder with PyTorch as fast as PyTorch can on a CPU: what tools/bench_train holds the engine against.

Blocks compiled one by one, scaled_dot_product_attention, fused AdamW, gradients set to none, bf16 by autocast; several
ranks by FSDP2 (fully_shard of each block) over Gloo, their bf16 by its mixed precision policy. Allocator and MKL are
tuned from outside, by the environment (tools/bench/contestants.py). The job and the token ids are the engine's own.

    torch_train.py --job=JSON --tokens=FILE --steps=N --threads=N [--compile=WHAT] [--rank=N --store=FILE]

Prints one JSON object: seconds and loss of every step, parameters, tokens per step, peak RSS of this process.

B sequences in a micro-batch, S tokens in a sequence, C model width, H query heads, G key and value heads, D head width.
"""

import argparse
import contextlib
import json
import math
import resource
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from models import RmsNorm, Shape, make_norm, rope_frequencies, rotate


class Attention(nn.Module):
    """Causal attention, by the kernel that never holds the scores."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_width, bias=shape.qkv_bias)
        self.output = nn.Linear(shape.heads * shape.head_width, shape.width, bias=shape.linear_bias)

    def forward(self, x, cos, sin):
        shape = self.shape
        qkv = self.qkv(x).unflatten(2, (-1, shape.head_width))
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=2)
        if cos is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if shape.kv_heads < shape.heads:
            k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, dim=2) for t in (k, v))
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
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
    def __init__(self, shape):
        super().__init__()
        self.attention_norm = make_norm(shape, shape.width)
        self.attention = Attention(shape)
        self.ffn_norm = make_norm(shape, shape.width)
        self.ffn = FeedForward(shape)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    def __init__(self, shape, length):
        super().__init__()
        if shape.qk_norm or shape.parallel_block or shape.attention_window or shape.norm not in ("rms", "layer"):
            raise SystemExit("torch_train.py: norms on Q and K, parallel blocks and windows are not supported")
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if shape.positions == "learned":
            self.positions = nn.Parameter(torch.empty(shape.max_positions, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = make_norm(shape, shape.width)
        if not shape.tied_head:
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        # [S, 1, D/2]. Plain attributes: nothing that FSDP would cast.
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
        """The mean cross-entropy of targets [B, S] after tokens [B, S]."""
        x = self.embedding(tokens)
        if self.shape.positions == "learned":
            x = x + self.positions[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = self.final_norm(x)
        logits = F.linear(x, self.embedding.weight if self.shape.tied_head else self.head.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Tokens:
    """A token file of llm.c, read in order: sample i is [iS, iS + S), its targets one later."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = bytearray(file.read())
        magic, _, self.count = struct.unpack_from("<iii", data)
        dtype = {20240520: torch.uint16, 20240801: torch.int32}[magic]
        self.tokens = torch.frombuffer(data, dtype=dtype, offset=1024)

    def batch(self, position, sequences, length):
        """Inputs and targets of samples [position, position + sequences), which begin anew at the end of the file."""
        samples = (self.count - 1) // length
        starts = [(position + i) % samples * length for i in range(sequences)]
        rows = torch.stack([self.tokens[s:s + length + 1].long() for s in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def build(job, options):
    """The model as it is trained, and the number of its parameters."""
    torch.manual_seed(1)
    model = Decoder(Shape(job["model"]["decoder"]), job["batch"]["sequence_length"])
    parameters = sum(p.numel() for p in model.parameters())
    for i, block in enumerate(model.blocks):
        # From the inside out: what is computed again, what is compiled, what is gathered.
        if job["memory"]["retention"] == "BLOCK":
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if options.compile == "blocks":
            block = torch.compile(block)
        model.blocks[i] = block
    if options.store:
        shard(model, job, options)
    return torch.compile(model) if options.compile == "model" else model, parameters


def shard(model, job, options):
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    dist.init_process_group("gloo", init_method="file://" + options.store, rank=options.rank,
                            world_size=job["sharding"]["ranks"])
    policy = MixedPrecisionPolicy()
    if job["precision"]["compute"] == "BF16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = dist.init_device_mesh("cpu", (job["sharding"]["ranks"],))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def make_optimizer(model, spec):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": spec["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec["learning_rate"], betas=(spec["beta1"], spec["beta2"]),
                             eps=spec["epsilon"], fused=True)


def train(job, options):
    model, parameters = build(job, options)
    optimizer = make_optimizer(model, job["optimizer"])
    tokens = Tokens(options.tokens)
    batch, ranks = job["batch"], job["sharding"]["ranks"]
    length, micro_batch = batch["sequence_length"], batch["micro_batch"]
    accumulate = batch["global_batch"] // (micro_batch * ranks)
    autocast = contextlib.nullcontext()
    if job["precision"]["compute"] == "BF16" and not options.store:
        autocast = torch.autocast("cpu", torch.bfloat16)
    seconds, losses = [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        position = step * batch["global_batch"] + options.rank * micro_batch * accumulate
        loss = torch.zeros(())
        for k in range(accumulate):
            inputs, targets = tokens.batch(position + k * micro_batch, micro_batch, length)
            if options.store:
                # Gradients travel once a step.
                model.set_requires_gradient_sync(k + 1 == accumulate)
            with autocast:
                part = model(inputs, targets) / accumulate
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["optimizer"]["max_gradient_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    return {"torch": torch.__version__, "parameters": parameters, "tokens_per_step": batch["global_batch"] * length,
            "seconds": seconds, "losses": losses,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=json.loads, required=True, help="the job as JSON, every field that is read written")
    parser.add_argument("--tokens", required=True, help="a token file of llm.c")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of this process")
    parser.add_argument("--compile", choices=("blocks", "model", "nothing"), default="blocks")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--store", default="", help="a new file that the ranks meet at; empty: one rank, no FSDP")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = train(options.job, options)
    print(json.dumps(result), flush=True)
    if options.store:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
