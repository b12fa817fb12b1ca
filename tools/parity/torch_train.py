"""Trains a decoder with PyTorch on a CPU as fast as PyTorch can. tools/bench_train compares the engine with it.

Compiles blocks one by one, and uses scaled_dot_product_attention, fused AdamW, gradients set to None, and bf16 through
autocast. Several ranks use FSDP2 (fully_shard of each block) over Gloo, with bf16 through its mixed precision policy.
With optimizer.update IN_BACKWARD, hooks of backward update the parameters. The environment tunes allocator and MKL
(tools/bench/train/contestants.py). Job and token ids are the engine's.

    torch_train.py --job=JSON --tokens=FILE --steps=N --threads=N [--compile=WHAT] [--rank=N --store=FILE]

Prints a line after every step, and at the end one JSON object: seconds and loss of every step, parameters, tokens per
step, peak RSS of this process.
"""

import argparse
import contextlib
import json
import resource
import time

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from models import Shape
from torch_decoder import Decoder, Segment, Tokens, make_optimizer, sqrt_segment_blocks, update_in_backward


def build(job, options):
    """Returns the model as it is trained, and the number of its parameters."""
    if job["precision"]["compute"] not in ("FP32", "BF16"):
        raise SystemExit(f"precision.compute {job['precision']['compute']} is not supported: FP32 or BF16")
    torch.manual_seed(1)
    model = Decoder(Shape(job["model"]["decoder"]), job["batch"]["sequence_length"])
    parameters = sum(p.numel() for p in model.parameters())
    for i, block in enumerate(model.blocks):
        # The order matters: checkpointing is innermost, then compilation, then sharding.
        if job["activation_checkpointing"]["preset"] == "BLOCK":
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if options.compile == "blocks":
            block = torch.compile(block)
        model.blocks[i] = block
    if job["activation_checkpointing"].get("segments") == "SQRT":
        in_segments(model, options)
    if options.store:
        shard(model, job, options)
    return torch.compile(model) if options.compile == "model" else model, parameters


def in_segments(model, options):
    """Replaces the blocks by segments of blocks. A segment keeps only its input, and runs forward again in
    backward."""
    if options.store:
        raise SystemExit("segments are not sharded")
    size = sqrt_segment_blocks(len(model.blocks))
    segments = [Segment(model.blocks[at:at + size]) for at in range(0, len(model.blocks), size)]
    model.blocks = torch.nn.ModuleList(checkpoint_wrapper(one, preserve_rng_state=False) for one in segments)


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


def train(job, options):
    model, parameters = build(job, options)
    in_backward = job["optimizer"].get("update") == "IN_BACKWARD"
    optimizer = None if in_backward else make_optimizer(model.parameters(), job["optimizer"])
    tokens = Tokens(options.tokens)
    batch, ranks = job["batch"], job["sharding"]["ranks"]
    length, micro_batch = batch["sequence_length"], batch["micro_batch"]
    accumulate = batch["global_batch"] // (micro_batch * ranks)
    max_norm = job["optimizer"]["max_gradient_norm"]
    if in_backward:
        if accumulate > 1 or ranks > 1 or max_norm > 0:
            raise SystemExit("IN_BACKWARD needs one micro-batch, one rank and no clipping")
        update_in_backward(model, job["optimizer"])
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
                # Reduces gradients only once per step.
                model.set_requires_gradient_sync(k + 1 == accumulate)
            with autocast:
                part = model(inputs, targets) / accumulate
            part.backward()
            loss += part.detach()
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        print(f"step {step + 1}", flush=True)
    return {"torch": torch.__version__, "parameters": parameters, "tokens_per_step": batch["global_batch"] * length,
            "seconds": seconds, "losses": losses,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=json.loads, required=True,
                        help="the job as JSON, every field that is read written")
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
