"""Runs one rank of torch_fsdp2.py."""

import functools
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from models import Shape
from torch_decoder import Decoder, Tokens, make_optimizer

_SAVED = frozenset(getattr(torch.ops.aten, name).default for name in (
    "mm", "addmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"))


def _policy(context, op, *arguments, **more):
    """Selective checkpointing: keeps the outputs of matmuls and attention, and recomputes cheap ops."""
    return CheckpointPolicy.MUST_SAVE if op in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpointed(block, kind):
    if kind == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
        return checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)
    return checkpoint_wrapper(block, preserve_rng_state=False) if kind == "block" else block


def _use_cudnn_attention():
    for other in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp,
                  torch.backends.cuda.enable_math_sdp):
        other(False)
    torch.backends.cuda.enable_cudnn_sdp(True)


def build(job, options, device):
    """Returns the unsharded model, the same on every rank."""
    torch.manual_seed(1)
    with device:
        model = Decoder(Shape(job["model"]["decoder"]), options.sequence, grouped=device.type == "cuda")
    model.cos, model.sin = (t if t is None else t.to(device) for t in (model.cos, model.sin))
    return model


def shard(model, options, configuration, ranks):
    """Wraps each block for checkpointing, compiles it and shards it, in this order, and then shards the model."""
    policy = MixedPrecisionPolicy()
    if options.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = dist.init_device_mesh(options.device, (ranks,))
    settings = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": configuration.gathered == "pass"}
    for i, block in enumerate(model.blocks):
        block = _checkpointed(block, configuration.checkpoint)
        if options.compile == "blocks":
            block = torch.compile(block)
        model.blocks[i] = fully_shard(block, **settings)
    if options.compile == "blocks":
        model.loss = torch.compile(model.loss)
    return fully_shard(model, **settings)


def backward(model, configuration, inputs, targets):
    """Adds the gradients of all rows of inputs and targets [N, S] to the parameters'. Returns this rank's mean loss."""
    count, rest = divmod(inputs.shape[0], configuration.micro_batch)
    if rest:
        raise ValueError(f"{inputs.shape[0]} sequences are no whole micro-batches of {configuration.micro_batch}")
    total = torch.zeros((), device=inputs.device)
    for k in range(count):
        rows = slice(k * configuration.micro_batch, (k + 1) * configuration.micro_batch)
        last = k + 1 == count
        model.set_requires_gradient_sync(last)
        if configuration.gathered == "step":
            model.set_reshard_after_backward(last)
        loss = model(inputs[rows], targets[rows]) / count
        loss.backward()
        total += loss.detach()
    return total


class _RandomTokens:
    """Random tokens. Sample i is the same for any number of ranks."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def batch(self, position, sequences, length):
        def row(seed):
            return torch.randint(self.vocabulary, (length + 1,), generator=torch.Generator().manual_seed(seed))
        rows = torch.stack([row(1 + i) for i in range(position, position + sequences)])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def flops_per_token(model, sequence):
    shape = model.shape
    parameters = sum(p.numel() for p in model.parameters())
    if not shape.tied_head:
        parameters -= model.embedding.weight.numel()
    if shape.positions == "learned":
        parameters -= model.positions.numel()
    return 6 * parameters + 6 * shape.layers * shape.width * sequence


def train(options, order, configuration):
    rank, ranks = order["rank"], order["ranks"]
    device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
        if configuration.attention == "cudnn":
            _use_cudnn_attention()
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", init_method="file://" + order["store"],
                            rank=rank, world_size=ranks)
    model = build(options.job, options, device)
    parameters, flops = sum(p.numel() for p in model.parameters()), flops_per_token(model, options.sequence)
    vocabulary = model.shape.vocabulary
    model = shard(model, options, configuration, ranks)
    optimizer = make_optimizer(model.parameters(), options.job["optimizer"])
    tokens = Tokens(options.tokens) if options.tokens else _RandomTokens(vocabulary)
    sequences = order["tokens_per_step"] // options.sequence
    share = sequences // ranks
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    seconds, losses, norms = [], [], []
    for step in range(order["warmup"] + order["steps"]):
        inputs, targets = (t.to(device) for t in tokens.batch(step * sequences + rank * share, share, options.sequence))
        synchronize()
        begin = time.perf_counter()
        loss = backward(model, configuration, inputs, targets)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.job["optimizer"]["max_gradient_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        seconds.append(time.perf_counter() - begin)
        dist.all_reduce(loss)
        losses.append(loss.item() / ranks)
        norms.append(norm.full_tensor().item())
        if step == 0 and options.device == "cuda":
            # Leaves out the memory peak of the first step, which compiles and creates the optimizer's states.
            torch.cuda.reset_peak_memory_stats()
    result = {"seconds": seconds[order["warmup"]:], "losses": losses, "gradient_norms": norms, "parameters": parameters,
              "flops_per_token": flops, "tokens_per_step": order["tokens_per_step"], "ranks": ranks,
              "torch": torch.__version__}
    if options.device == "cuda":
        result.update(gpu=torch.cuda.get_device_name(), cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(),
                      nccl=".".join(map(str, torch.cuda.nccl.version())),
                      max_memory_allocated=torch.cuda.max_memory_allocated(),
                      max_memory_reserved=torch.cuda.max_memory_reserved())
    dist.destroy_process_group()
    return result
