"""Takes from plans what the pictures show of them, and keeps it in plans.json beside this file."""

import json
import os
import re
import subprocess

_FOLDER = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.normpath(os.path.join(_FOLDER, "../../.."))
_PATH = os.path.join(_FOLDER, "plans.json")
_PLAN = os.path.join(ROOT, ".out/bin/tools/plan")

# A decoder of two blocks on two ranks, two micro-batches a step.
_SMALL = """
model { decoder { family: LLAMA width: 64 layers: 2 heads: 4 vocabulary: 256 } }
data { path: "x" }
batch { global_batch: 4 micro_batch: 1 sequence_length: 64 }
sharding { strategy: FULL_SHARD ranks: 2 }
optimizer { learning_rate: 1e-3 }
lr_schedule { steps: 3 }
"""
ACCUMULATIONS = ("SHARDED", "NO_SYNC", "LAYERED")
# What a block of this family holds, in the order in which it lies in its flat group.
_PARAMETERS = ("attention_norm", "attention.qkv", "attention.out", "ffn_norm", "ffn.gate_up", "ffn.down")


def _plan(job, *sets):
    command = [_PLAN, "--json", "--dump_program", f"--job={job}", *(f"--set={said}" for said in sets)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _dump(job, *sets):
    command = [_PLAN, "--dump_program", f"--job={job}", *(f"--set={said}" for said in sets)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _program(plan):
    rows = [[i["name"], i["stream"], i["phase"], i["unit"], i["micro_batch"], i["last_iteration_only"], i["waits"]]
            for i in plan["instructions"]]
    return {"units": plan["model"]["units"], "loops": [[loop["begin"], loop["end"], loop["repeat"]]
                                                       for loop in plan["loops"]],
            "gathers": plan["communication"]["gathers"], "reductions": plan["communication"]["reductions"],
            "instructions": rows}


def _group(dump):
    """Returns the flat group of the first block: where each parameter lies in the gathered vector, in bytes."""
    places = {}
    for offset, shape in re.findall(r" (?:b|weight) = #\d+ blocks\.0\.gathered(?:\+(\d+))? f32\[([\d, ]+)\]", dump):
        places[int(offset or 0)] = [int(size) for size in shape.split(", ")]
    bytes_of = {name: int(size) for name, size in re.findall(r"#\d+ (blocks\.0\.\w+): (\d+) bytes", dump)}
    return {"parameters": [[name, offset, places[offset]]
                           for name, offset in zip(_PARAMETERS, sorted(places), strict=True)],
            "gathered_bytes": bytes_of["blocks.0.gathered"], "shard_bytes": bytes_of["blocks.0.weights"]}


def _memory(plan):
    buffers = [[b["category"], b["bytes"], b["first"], b["last"]] for b in plan["buffers"]
               if b["memory"] == "arena" and b["last"] is not None]  # None: no step uses it.
    return {"phases": [i["phase"] for i in plan["instructions"]],
            "loops": [[loop["begin"], loop["end"], loop["repeat"]] for loop in plan["loops"]],
            "peak_bytes": plan["memory"]["peak_bytes"], "peak_instruction": plan["memory"]["at_peak"]["instruction"],
            "buffers": buffers}


def _text(value, indent=""):
    """Returns JSON with a line for each field of an object, and for each list in a list."""
    inner = indent + " "
    if isinstance(value, dict):
        fields = (f"{inner}{json.dumps(name)}: {_text(field, inner)}" for name, field in value.items())
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + ",\n".join(f"{inner}{json.dumps(row)}" for row in value) + f"\n{indent}]"
    return json.dumps(value)


def measure():
    """Plans the jobs of the pictures by .out/bin/tools/plan, and writes plans.json."""
    small = os.path.join(ROOT, ".out/pictures.textproto")
    with open(small, "w", encoding="utf-8") as file:
        file.write(_SMALL)
    quickstart = os.path.join(ROOT, "tools/jobs/quickstart.textproto")
    no_data = ("data.path=x", "data.tokenizer=bytes")
    plan = _plan(quickstart, *no_data)
    data = {"steps": {name: _program(_plan(small, f"sharding.accumulation={name}")) for name in ACCUMULATIONS},
            "group": _group(_dump(small, "sharding.ranks=3", "batch.global_batch=6")),
            "memory": _memory(_plan(quickstart, *no_data, "sharding.accumulation=SHARDED")),
            "quickstart": {"parameters": plan["model"]["parameters"], "units": len(plan["model"]["units"]),
                           "description": plan["model"]["description"], "ranks": plan["options"]["ranks"],
                           "micro_batches": plan["batch"]["micro_batches"], "buffers": len(plan["buffers"]),
                           "instructions": len(plan["instructions"]), "peak_bytes": plan["memory"]["peak_bytes"]}}
    os.remove(small)
    with open(_PATH, "w", encoding="utf-8") as file:
        file.write(_text(data) + "\n")


def read():
    with open(_PATH, encoding="utf-8") as file:
        return json.load(file)
