"""Defines items that measure parts of a step alone: matmuls that are tuned, ops, and collectives."""

from bench.train import textproto
from gpu import child, outcome, plans, store, training
from gpu.kit import BENCH_BEFORE, OF_BEFORE, Item

# Selects the ops on flat vectors, for runs of the ops bench in f32. Runs in bf16 do not have their f32 forms.
FLAT = "^(sum|sumsquares|accumulate|copy|adamw|adamw8bit|sgd|lion)( |$)"
# Matmuls, and the ops that make operands of fp8.
FLOAT8 = "^(matmul|absmax|quantizefloat8)( |$)"
# Those whose kernels have another plan since the first runs on a GPU, and which an earlier commit's bench has, too.
ROWS = "^(rmsnorm|crossentropy)"
# All whose kernels changed since then in any way, but for attention, which has pairs of its own.
CHANGED = "^(rmsnorm|layernorm|crossentropy|embedding|swiglu|gelu|rope|biasbackward|add |sumsquares)"


def tune(preset, sequences, seconds, label="", settings=()):
    """Returns an item that tunes the preset's matmuls and adds the algorithms to the table that later items use. The
    file of the table is named by the GPU, and is whole after each matmul. Those with most work come first."""
    def work(kit, item, limit):
        command = [kit.program("tune"), f"--job={kit.job(preset)}", f"--out={kit.path('tuning')}/", "--launches=10",
                   *plans.sets({"batch.global_batch": str(sequences), **dict(settings)})]
        return outcome.of(child.run(command, kit.environment, kit.log(item.name), limit, folder=kit.out))
    return Item(f"tune/{preset}" + (f"/{label}" if label else ""), outcome.needs("tune", work), seconds, sampled=True)


def before_and_after(kit, preset, only, seconds, label):
    """Returns an item that times these ops with the kernels of an earlier commit, if the kit has them, and one that
    does so with those of the kit. They run one after the other, on one GPU in one state."""
    return [ops(preset, "bf16", only, seconds, label + OF_BEFORE, before=kit),
            ops(preset, "bf16", only, seconds, f"{label}/after")]


def attention(preset, seconds):
    """Returns an item that times attention by cuDNN, and one by the engine's own kernels: causal, with a window, and
    without a mask. With a soft cap both are the engine's."""
    return [ops(preset, "bf16", "^attention", seconds, "attention/cudnn"),
            ops(preset, "bf16", "^attention", seconds, "attention/own", ["--own_attention"])]


def ops(preset, dtype, only, seconds, label="", more=(), before=None):
    """Returns an item that times the ops that match `only` in the shapes of the preset. With `before`, a kit, it does
    so by the program of an earlier commit, and is skipped if the kit has none."""
    program = BENCH_BEFORE if before else "bench"

    def work(kit, item, limit):
        with open(kit.job(preset), encoding="utf-8") as file:
            sizes = sizes_of(textproto.parse(file.read()))
        return _bench(kit, item, limit, ["ops", "--device=cuda", *sizes, f"--dtype={dtype}", "--copy_mib=1024", *more,
                                         *([f"--only={only}"] if only else []),
                                         *([f"--tuning_table={training.table(kit)}"] if training.table(kit) else [])],
                      program=program)
    return Item(f"ops/{preset}" + (f"/{label}" if label else ""), outcome.needs(program, work), seconds,
                skip=before.lacks(program) if before else "", sampled=True)


def comm(name, device, ranks, seconds, more=(), skip=""):
    """Returns an item that times collectives."""
    def work(kit, item, limit):
        return _bench(kit, item, limit, _comm(device, ranks, more))
    return Item(f"comm/{name}", outcome.needs("bench", work), seconds, skip=skip, sampled=True)


def comm_in_processes(processes, seconds):
    """Returns an item that times NCCL's collectives between processes that share the first GPU."""
    def work(kit, item, limit):
        return _bench(kit, item, limit, _comm("nccl", [processes], [f"--ranks_per_device={processes}"]),
                      kit.launched(processes), {"CUDA_VISIBLE_DEVICES": kit.visible(0)})
    return Item(f"comm/processes/{processes}", outcome.needs("bench", work), seconds, sampled=True)


def formats(preset, seconds):
    """Returns an item that times the preset's matmuls in bf16 and in 8-bit formats, and converts every bf16 value."""
    def work(kit, item, limit):
        made = _bench(kit, item, limit, ["formats", f"--job={kit.job(preset)}"], read=outcome.read_json_lines)
        wrong = [row["conversion"] for row in made.get("result") or [] if row.get("different")]
        return {**made, "status": store.FAILED, "about": f"conversions to {', '.join(wrong)} are not exact"} if (
            wrong and made["status"] == store.PASSED) else made
    return Item(f"formats/{preset}", outcome.needs("bench", work), seconds, sampled=True)


def sweep(preset, settings, varied, seconds):
    """Returns an item that measures steps of the preset in every combination of the values in `varied`, in one process.
    What does not fit the time is left out."""
    def work(kit, item, limit):
        values = {**plans.settings(kit.gpus[0]), "data.path": training.tokens(kit, preset), **settings}
        axes = [f"--vary={name}={'|'.join(choices)}" for name, choices in varied.items()]
        return _bench(kit, item, limit, ["sweep", f"--job={kit.job(preset)}", *plans.sets(values), *axes, "--steps=3",
                                         "--warm_up=1", f"--seconds={seconds - 10}"], read=outcome.read_json_lines)
    return Item(f"sweep/{preset}", outcome.needs("bench", work), seconds, sampled=True)


def _comm(device, ranks, more):
    return ["comm", f"--device={device}", f"--ranks={','.join(map(str, ranks))}", "--smallest_kib=1024",
            "--largest_kib=262144", *more]


def _bench(kit, item, limit, arguments, before=(), variables=(), read=outcome.read_json, program="bench"):
    """Runs a bench, which writes its result to a file that read() reads, and returns the outcome."""
    path = kit.log(item.name) + (".jsonl" if read is outcome.read_json_lines else ".json")
    store.remove(path)
    ended = child.run([*before, kit.program(program), *arguments, f"--json={path}"],
                      {**kit.environment, **dict(variables)}, kit.log(item.name), limit, folder=kit.out)
    return outcome.of_file(ended, path, read)


def sizes_of(job):
    """Returns the flags of the ops bench for a micro-batch of the job."""
    model, batch = job["model"]["decoder"], job["batch"]
    width, hidden, heads, kv_heads = (model[name] for name in ("width", "hidden", "heads", "kv_heads"))
    head_width = model.get("head_width", width // heads)
    tokens = batch["micro_batch"] * batch["sequence_length"]
    block = (2 * heads + 2 * kv_heads) * head_width * width + 3 * width * hidden
    sizes = {"tokens": tokens, "sequence": batch["sequence_length"], "width": width, "hidden": hidden,
             "vocabulary": model["vocabulary"], "heads": heads, "kv_heads": kv_heads, "head_width": head_width,
             "head_tokens": min(tokens, job["memory"]["loss_chunk_tokens"]), "parameters": block, "square": 8192}
    return [f"--{name}={value}" for name, value in sizes.items()]
