#!/usr/bin/env python3
"""Trains a decoder with PyTorch's FSDP2 on GPUs as fast as PyTorch can. The CUDA backend is compared with it.

Uses fully_shard on each block and on the rest of the model, bf16 through its mixed precision policy with fp32 masters
and moments, compiled blocks and loss, scaled_dot_product_attention, fused AdamW, and gradients clipped by their global
norm. Gradients are accumulated and reduced once per step. Starts one process per GPU. With --search it tries
micro-batches, checkpointing, attention kernels and how long gathered parameters are kept, and measures the fastest
setting that fits.

    torch_fsdp2.py --job=tools/jobs/qwen2_5_3b.textproto --sequence=1024 --search

Prints a line of JSON per trial ({"trial": ..}), then one for the result ({"result": ..}): median seconds of a step,
tokens per second, MFU (6 x parameters, embedding lookups excluded, plus 6 x layers x width x sequence, per token), peak
memory of the allocator on rank 0 from the second step on, versions, losses.

Needs PyTorch 2.6 or newer with CUDA. Runs with --device=cpu (ranks over Gloo) only serve to test the program.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bench.train import textproto  # noqa: E402

_MARK = "torch_fsdp2 result: "
_OUT_OF_MEMORY = 3  # Exit code of a rank that ran out of memory.
_NO_MEMORY = "out of memory"  # The failure reported for that exit code.
_SOURCES = ("torch_fsdp2.py", "torch_fsdp2_rank.py", "torch_decoder.py", "models.py")

# The defaults of optimizer fields that a job file does not set (proto/job/optimizer.proto).
_OPTIMIZER = {"learning_rate": 3e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
              "max_gradient_norm": 1.0}

CHECKPOINTING = ("none", "selective", "block")
GATHERED = ("pass", "micro_batch", "step")
ATTENTION = ("default", "cudnn")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="torch_fsdp2.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)

    def number(text):
        return int(text) if text.isdigit() and int(text) > 0 else parser.error(f"found {text!r}; wanted 1, 2, ..")

    parser.add_argument("--job", required=True, help="a job spec: model, optimizer, sequence length")
    parser.add_argument("--sequence", type=number, help="tokens of a sequence (default: the job's)")
    parser.add_argument("--tokens_per_step", type=number, default=524288, help="over all ranks (default 524288)")
    parser.add_argument("--micro_batch", type=number, help="sequences of a rank at once (default: the job's)")
    parser.add_argument("--checkpoint", choices=CHECKPOINTING, default="none",
                        help="what backward recomputes: nothing, all but matmuls and attention, full blocks")
    parser.add_argument("--gathered", choices=GATHERED, default="pass",
                        help="how long a block's parameters stay: a forward or backward pass, from forward to "
                             "backward, the step")
    parser.add_argument("--attention", choices=ATTENTION, default="default", help="PyTorch's choice, or cuDNN")
    parser.add_argument("--compile", choices=("blocks", "nothing"), default="blocks")
    parser.add_argument("--search", action="store_true", help="find the best of the four above first")
    parser.add_argument("--search_seconds", type=float, default=1200,
                        help="start no further trial after this time (default 1200)")
    parser.add_argument("--trials", help="keep the search's trials in this file, and run none that it has already")
    parser.add_argument("--ranks", type=number, help="processes (default: the GPUs; 1 on the CPU)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of activations and matmuls")
    parser.add_argument("--steps", type=number, default=5, help="that count (default 5)")
    parser.add_argument("--warmup", type=number, default=2, help="before those (default 2)")
    parser.add_argument("--tokens", help="a token file of llm.c (default: random tokens)")
    parser.add_argument("--peak_flops", type=float, default=989e12,
                        help="of one GPU, for MFU (default 989e12: H100, H200)")
    parser.add_argument("--timeout_seconds", type=float, default=3600, help="for one configuration (default 3600)")
    parser.add_argument("--rank_of", help=argparse.SUPPRESS)  # JSON with this process's work as a rank.
    options = parser.parse_args(arguments)
    with open(options.job, encoding="utf-8") as file:
        options.job = textproto.parse(file.read())
    options.sequence = options.sequence or options.job["batch"]["sequence_length"]
    return options


def missing(device):
    """Returns in one line what this machine lacks to run the program, or None if nothing is missing."""
    try:
        import torch
    except ImportError as error:
        return f"wanted PyTorch 2.6 or newer with CUDA, and {sys.executable} has none ({error}); pip install torch"
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: F401
    except ImportError:
        return f"wanted PyTorch 2.6 or newer, for torch.distributed.fsdp.fully_shard; found {torch.__version__}"
    if device == "cuda" and not torch.cuda.is_available():
        return f"no GPU: PyTorch {torch.__version__} sees none (torch.cuda.is_available() is False)"
    return None


class Configuration:
    """The settings that a search varies: sequences in a micro-batch, and one each of CHECKPOINTING, GATHERED and
    ATTENTION."""

    def __init__(self, micro_batch, checkpoint="none", gathered="pass", attention="default"):
        self.micro_batch, self.checkpoint, self.gathered, self.attention = micro_batch, checkpoint, gathered, attention

    def but(self, **changes):
        return Configuration(**{**vars(self), **changes})


def run_ranks(options, configuration, tokens_per_step, warmup, steps):
    """Runs a configuration in new processes, so that it does not inherit fragmented memory. Returns rank 0's result, or
    {"failed": why}."""
    with tempfile.TemporaryDirectory() as folder:
        processes, logs = [], []
        for rank in range(options.ranks):
            order = {"rank": rank, "store": os.path.join(folder, "ranks"), "configuration": vars(configuration),
                     "tokens_per_step": tokens_per_step, "warmup": warmup, "steps": steps, "ranks": options.ranks}
            log = open(os.path.join(folder, f"rank{rank}.log"), "w+", encoding="utf-8", errors="replace")
            logs.append(log)
            environment = dict(os.environ)
            # Without expandable segments the allocator's fragmentation makes large models run out of memory.
            environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
            processes.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:],
                                               f"--rank_of={json.dumps(order)}"],
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment))
        try:
            failed = wait(processes, options.timeout_seconds)
            texts = []
            for log in logs:
                log.seek(0)
                texts.append(log.read())
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for log in logs:
                log.close()
    if failed is None:
        for line in texts[0].splitlines():
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK):])
        return {"failed": "rank 0 printed no result"}
    rank, code = failed
    if code is None:
        return {"failed": f"did not end within {options.timeout_seconds:.0f} s"}
    if code == _OUT_OF_MEMORY:
        return {"failed": _NO_MEMORY}
    last = [line for line in texts[rank].splitlines() if line.strip()][-3:]
    return {"failed": f"rank {rank} ended with {code}: " + " | ".join(last)}


def wait(processes, timeout_seconds):
    """Waits until all processes have ended or one has failed. Returns None if all ended with 0, else (rank, exit code)
    of the first that failed. After the timeout, returns a rank that still runs, with exit code None."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        codes = [process.poll() for process in processes]
        # Looks for ranks that ran out of memory first, because they make others fail.
        for rank, code in sorted(enumerate(codes), key=lambda pair: pair[1] != _OUT_OF_MEMORY):
            if code not in (None, 0):
                return rank, code
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return codes.index(None), None
        time.sleep(0.05)


def micro_batches(options):
    """Returns the micro-batches that a search tries, in sequences: the powers of two that divide a rank's share of a
    step and have 4,096 to 65,536 tokens. If none does, returns 1."""
    share = options.tokens_per_step // options.sequence // options.ranks
    divisors = [m for m in (1 << n for n in range(20)) if share % m == 0]
    return [m for m in divisors if 4096 <= m * options.sequence <= 65536] or divisors[:1]


def search_tokens(options):
    """Returns the tokens of a trial's step over all ranks: about a quarter of a real step's. All trials have the same
    number, so that fixed costs of a step weigh the same in all. A multiple of the largest micro-batch is a multiple of
    all, because they are powers of two."""
    largest = max(micro_batches(options)) * options.sequence * options.ranks
    return max(1, options.tokens_per_step // 4 // largest) * largest


def digest_of(job):
    """Returns a digest of the job and of this program's sources, in 16 hex digits."""
    folder = os.path.dirname(os.path.abspath(__file__))
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode())
    for name in _SOURCES:
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def search(options, measure):
    """Returns the fastest configuration that fits. `measure(configuration)` returns a result with tokens_per_second, or
    failed.

    Checkpointing costs time and allows a larger micro-batch. So each heavier kind is tried from the first micro-batch
    that did not fit with the lighter kind, and only while larger ones still gain. Finally tries two changes of the
    best: keeping gathered parameters longer, which trades memory for time, and the other attention kernel."""
    deadline = time.monotonic() + options.search_seconds
    best, best_rate = None, 0.0

    def attempt(configuration):
        nonlocal best, best_rate
        if time.monotonic() > deadline:
            return None
        rate = measure(configuration).get("tokens_per_second", 0.0)
        gain = rate > 1.01 * best_rate
        if rate > best_rate:
            best, best_rate = configuration, rate
        return "fits" if gain else "no gain" if rate else "failed"

    sizes, at = micro_batches(options), 0
    for checkpoint in CHECKPOINTING:
        outcome = "fits"
        while at < len(sizes) and outcome == "fits":
            outcome = attempt(Configuration(sizes[at], checkpoint))
            at += outcome == "fits"
        if outcome != "failed":
            break
    if best is not None:
        for gathered in GATHERED[1:]:
            attempt(best.but(gathered=gathered))
        if options.device == "cuda":
            attempt(best.but(attention="cudnn"))
    return best


class Trials:
    """The trials of a search. Prints them as lines of JSON, and keeps them in a file if `path` is given. `conditions`
    has everything besides the configuration that a trial depends on; trials with other conditions are not used.
    Failures other than a lack of memory may be the machine's, so they are not kept in the file and a later search tries
    again."""

    def __init__(self, path, conditions):
        self.path, self.conditions, self.kept, self.last_failure = path, conditions, [], "none was tried"
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            # The last line may be incomplete, if its writer was killed. A complete line has a line end.
            whole = text[:text.rfind("\n") + 1]
            self.kept = [json.loads(line) for line in whole.splitlines()]
            if whole != text:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(whole)

    def of(self, configuration, measure):
        """Returns the trial of the configuration. Measures it if it is not known yet."""
        about = {"trial": vars(configuration), **self.conditions}
        for trial in self.kept:
            if all(trial.get(name) == value for name, value in about.items()):
                break
        else:
            trial = self._add(about, measure())
        self.last_failure = trial.get("failed", self.last_failure)
        return trial

    def _add(self, about, result):
        keys = ("failed", "tokens_per_second", "step_seconds", "max_memory_allocated")
        trial = {**about, **{k: result[k] for k in keys if k in result}}
        line = json.dumps(trial) + "\n"
        print(line, end="", flush=True)
        if self.path and trial.get("failed", _NO_MEMORY) == _NO_MEMORY:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
        return trial


def supervise(options):
    import torch
    options.ranks = options.ranks or (torch.cuda.device_count() if options.device == "cuda" else 1)
    if options.device == "cuda" and options.ranks > torch.cuda.device_count():
        print(f"torch_fsdp2: --ranks={options.ranks}, and there are {torch.cuda.device_count()} GPUs", file=sys.stderr)
        return 2
    if options.tokens_per_step % (options.sequence * options.ranks):
        print(f"torch_fsdp2: --tokens_per_step={options.tokens_per_step} are no whole sequences of "
              f"{options.sequence} on each of {options.ranks} ranks", file=sys.stderr)
        return 2
    micro_batch = options.micro_batch or options.job["batch"].get("micro_batch", 1)
    share = options.tokens_per_step // options.sequence // options.ranks
    if not options.search and share % micro_batch:
        print(f"torch_fsdp2: {share} sequences of a rank and step are no whole micro-batches of {micro_batch}",
              file=sys.stderr)
        return 2
    chosen = Configuration(micro_batch, options.checkpoint, options.gathered, options.attention)
    if options.search:
        tokens = search_tokens(options)
        trials = Trials(options.trials,
                        {"torch": torch.__version__, "digest": digest_of(options.job), "ranks": options.ranks,
                         "sequence": options.sequence, "tokens_per_step": tokens})

        def measure(configuration):
            return trials.of(configuration, lambda: run_ranks(options, configuration, tokens, 1, 2))

        chosen = search(options, measure)
        if chosen is None:
            print(json.dumps({"result": {"failed": f"no configuration works; the last: {trials.last_failure}"}}),
                  flush=True)
            return 1
    result = run_ranks(options, chosen, options.tokens_per_step, options.warmup, options.steps)
    print(json.dumps({"result": {**vars(chosen), **result}}), flush=True)
    return 1 if "failed" in result else 0


def main():
    options = parse(sys.argv[1:])
    obstacle = missing(options.device)
    if obstacle:
        print(f"torch_fsdp2: {obstacle}", file=sys.stderr)
        return 1
    if not options.rank_of:
        return supervise(options)
    import torch
    from torch_fsdp2_rank import train
    order = json.loads(options.rank_of)
    options.job.setdefault("optimizer", {})
    options.job["optimizer"] = {**_OPTIMIZER, **options.job["optimizer"]}
    try:
        result = train(options, order, Configuration(**order["configuration"]))
    except torch.OutOfMemoryError as error:
        print(error, file=sys.stderr, flush=True)
        # Exits at once: the other ranks wait in a collective, and the parent process kills them.
        os._exit(_OUT_OF_MEMORY)
    if order["rank"] == 0:
        result["step_seconds"] = statistics.median(result["seconds"])
        result["tokens_per_second"] = order["tokens_per_step"] / result["step_seconds"]
        result["mfu"] = result["tokens_per_second"] * result["flops_per_token"] / (order["ranks"] * options.peak_flops)
        print(_MARK + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
