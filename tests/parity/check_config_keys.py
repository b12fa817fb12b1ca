"""Compares what the engine makes of each key of a config.json with what transformers makes of it.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers
    ~/parity_venv/bin/python tests/parity/check_config_keys.py --tools=.out/bin/tools

For each family, writes a tiny model with random weights, and sets each key of its config class, of the class that all
share, and of older and other files, to values that are not the default, and to null. Prints how many folders have the
same loss in both to 1e-5, how many `evaluate` refuses and names the key, and how many transformers itself refuses.
Does the same for random spellings of the rotary frequencies.
Fails if a folder's losses differ, or if `plan` says nothing of a config that computes another loss in training mode.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import torch
import transformers

TEXT = "The quick brown fox jumps over the lazy dog, and the dog looks up. It was a good jump, they said; 31 of 40.\n"
SIZES = dict(vocab_size=256, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3)
OF_GPT2 = dict(vocab_size=256, n_embd=24, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3, attn_pdrop=0.0,
               embd_pdrop=0.0, resid_pdrop=0.0)
OF_FALCON = dict(vocab_size=256, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
OF_GEMMA = SIZES | dict(head_dim=6, initializer_range=0.1, sliding_window=9)
FAMILIES = dict(llama=SIZES, mistral=SIZES, qwen2=SIZES, qwen3=SIZES | dict(head_dim=6), gpt2=OF_GPT2,
                falcon=OF_FALCON, gemma2=OF_GEMMA,
                starcoder2=SIZES, gemma3_text=OF_GEMMA | dict(layer_types=["sliding_attention", "full_attention"]))
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)

# Values for keys whose type alone does not give a telling one. "absent" leaves the key out.
VALUES = {
    "hidden_act": ["gelu", "relu", "swish", "gelu_pytorch_tanh"],
    "activation_function": ["gelu", "relu", "gelu_pytorch_tanh", "gelu_python", "quick_gelu"],
    "activation": ["gelu_new", "relu", "gelu_pytorch_tanh"],
    "num_attention_heads": [2, 8], "num_key_value_heads": [1, 4], "num_kv_heads": [1, 2, 4], "n_head": [2],
    "head_dim": [4, 6, 8], "max_position_embeddings": [64, 512], "n_positions": [64], "n_ctx": [64],
    "rms_norm_eps": [1e-2, 1e-5], "layer_norm_epsilon": [1e-2], "layer_norm_eps": [1e-2],
    "initializer_range": [0.1], "vocab_size": [255, 257], "num_hidden_layers": [1, 3], "n_layer": [1],
    "hidden_size": [16], "n_embd": [16], "intermediate_size": [12], "n_inner": [12, 96], "ffn_hidden_size": [12, 96],
    "sliding_window": [3, 300], "max_window_layers": [0, 1, 2], "num_ln_in_parallel_attn": [1, 2],
    "layer_types": [["sliding_attention"] * 2, ["full_attention"] * 2, ["full_attention", "sliding_attention"]],
    "rope_theta": [500.0, 1000000], "partial_rotary_factor": [0.5, 1.0], "original_max_position_embeddings": [32],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 500.0}, {"rope_theta": 500.0}, LLAMA3,
                        LLAMA3 | {"original_max_position_embeddings": 32},
                        {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
                        {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "default", "partial_rotary_factor": 0.5},
                        {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}],
    "rope_scaling": [LLAMA3, {"type": "default"}, {"type": "linear", "factor": 2.0}, {"rope_type": "default"}],
    "attention_dropout": [0.5], "hidden_dropout": [0.5], "attn_pdrop": [0.5, "absent"], "embd_pdrop": [0.5, "absent"],
    "resid_pdrop": [0.5, "absent"], "summary_first_dropout": [0.5], "classifier_dropout": [0.5],
    "dtype": ["float16"], "torch_dtype": ["float16"], "is_causal": [False, True],
    "quantization_config": [{"quant_method": "fp8"}], "compression_config": [{"quant_method": "x"}],
    "architectures": [["LlamaForSequenceClassification"], ["LlamaModel"]], "attn_implementation": ["eager"],
    "_attn_implementation": ["sdpa"], "id2label": [{"0": "a"}], "label2id": [{"a": 0}], "problem_type": ["regression"],
    "bos_token_id": [1, 300], "eos_token_id": [1, [1, 2]], "pad_token_id": [0], "sep_token_id": [1],
    "pretraining_tp": [2], "pruned_heads": [{"0": [1]}], "n_embed": [48], "chunk_size_feed_forward": [2],
    "attention_chunk_size": [3], "summary_type": ["last"], "summary_activation": ["tanh"], "num_labels": [3],
    "auto_map": [{"AutoConfig": "x.Y"}], "task_specific_params": [{"a": {}}], "loss_type": ["ForMaskedLM"],
    "model_type": ["gemma", "gemma3", "phi3", "mixtral", ""], "_name_or_path": ["x/y"],
    "transformers_version": ["4.31.0"],
    "logit_scale": [2.0], "attention_multiplier": [2.0], "final_logit_softcapping": [1.0],
    "rope_local_base_freq": [9.0], "sliding_window_pattern": [1, 2], "query_pre_attn_scalar": [16, 5],
    "attn_logit_softcapping": [1.0], "hidden_activation": ["gelu", "silu", "gelu_pytorch_tanh"],
    "layerdrop": [0.5], "text_config": [{"hidden_size": 9}],
}
# Keys that no class lists, but files have or transformers looks for.
ADDED = ["is_causal", "partial_rotary_factor", "rope_theta", "rope_scaling", "original_max_position_embeddings",
         "quantization_config", "compression_config", "torch_dtype", "attn_implementation", "_attn_implementation",
         "n_ctx", "n_embed", "pruned_heads", "attention_chunk_size", "layer_types", "sliding_window",
         "use_sliding_window", "attention_bias", "mlp_bias", "head_dim", "qkv_bias", "use_bias", "tie_encoder_decoder",
         "cross_attention_hidden_size", "is_decoder", "add_cross_attention", "layer_norm_eps", "auto_map",
         "task_specific_params", "loss_type", "num_labels", "sep_token_id", "logit_scale", "attention_multiplier",
         "final_logit_softcapping", "rope_local_base_freq", "sliding_window_pattern", "layerdrop",
         "apply_residual_connection_post_layernorm",
         "torchscript", "use_bfloat16", "alibi", "reorder_and_upcast_attn", "text_config", "classifier_dropout",
         "use_qk_norm", "qk_layernorm", "lm_head_bias", "normalize_embedding", "scale_embedding", "attn_pdrop",
         "max_window_layers", "use_parallel_residual", "use_cache", "return_dict", "multi_query_group_num"]
TOLERANCE = 1e-5


def values_of(key, default):
    if key in VALUES:
        return VALUES[key] + [None]
    return [not default if isinstance(default, bool) else True, None]


def changes(family, config):
    """Yields the changes of a family's config: a key with each of its values, and a few that need another key."""
    keys = sorted(set(config.to_dict()) | set(ADDED) | set(FAMILIES[family]))
    for key in keys:
        for value in values_of(key, config.to_dict().get(key)):
            yield {key: value}
    for value in (32, 64):
        yield {"rope_parameters": LLAMA3, "original_max_position_embeddings": value}
        yield {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 128},
               "original_max_position_embeddings": value}
    yield {"attention_bias": True, "mlp_bias": True}
    yield {"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "default"}}
    if family.startswith("qwen"):
        for first in (0, 1, 2):
            yield {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": first}
        yield {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2}
        yield {"use_sliding_window": False, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2}
    if family.startswith("gemma"):
        yield {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 9.0}}}
        yield {"rope_parameters": {"full_attention": LLAMA3, "sliding_attention": {"rope_theta": 9.0}}}
        yield {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}
        yield {"rope_parameters": "absent", "rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
        yield {"layer_types": "absent", "sliding_window_pattern": 2}
    if family == "falcon":
        yield {"new_decoder_architecture": True, "num_kv_heads": 2}
        yield {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}
        yield {"multi_query": False, "parallel_attn": False, "bias": True}
        yield {"multi_query": False, "parallel_attn": False, "num_ln_in_parallel_attn": 2}


def rope_object(rng):
    """Returns an object that describes rotary frequencies: its type in either spelling, or both, or neither."""
    kind = rng.choice(["default", "linear", "llama3"])
    found = dict({"linear": dict(factor=8.0), "llama3": LLAMA3}.get(kind, {}))
    found.pop("rope_type", None)
    spelling = rng.randrange(8)
    if spelling < 4:
        found["rope_type"] = kind
    if 2 < spelling < 7:
        found["type"] = kind if rng.random() < 0.8 else "linear"
    if rng.random() < 0.4:
        found["rope_theta"] = rng.choice([500.0, 7, None] if rng.random() < 0.2 else [500.0, 7])
    if rng.random() < 0.3 and kind == "llama3":
        found["original_max_position_embeddings"] = rng.choice([32, 64])
    if rng.random() < 0.1:
        found[rng.choice(["factor", "beta_fast", "partial_rotary_factor", "attention_factor"])] = 1.0
    return found


def rope_spelling(rng):
    """Returns a change of a config that spells the rotary frequencies in one of the ways of older and newer files."""
    changed = {"rope_parameters": "absent"}
    form = rng.choice(["scaling", "parameters", "kinds", "kinds", "both"])
    if form in ("scaling", "both"):
        changed["rope_scaling"] = rope_object(rng)
    if form == "parameters" or (form == "both" and rng.random() < 0.5):
        changed["rope_parameters"] = rope_object(rng)
    elif form != "scaling":
        changed["rope_parameters"] = {kind: rope_object(rng) if rng.random() < 0.9 else None
                                      for kind in ("full_attention", "sliding_attention") if rng.random() < 0.7}
    if rng.random() < 0.1 and isinstance(changed["rope_parameters"], dict):
        changed["rope_parameters"] |= rope_object(rng)
    for key, values in (("rope_theta", [500.0, 30.0]), ("rope_local_base_freq", [9.0, 500]),
                        ("original_max_position_embeddings", [16, 32]), ("partial_rotary_factor", [1.0])):
        if rng.random() < 0.3:
            changed[key] = rng.choice(values)
    return changed


def write(folder, config, changed):
    """Writes a folder whose weights are those of the changed config. Returns the loss, and that of training mode if it
    differs; raises what transformers raises."""
    members = json.loads(config.to_json_string(use_diff=False)) | changed
    members = {key: value for key, value in members.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(members))
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder)).float()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    made.save_pretrained(folder, safe_serialization=True)
    (folder / "config.json").write_text(json.dumps(members))
    # The dtype in which transformers computes is not the config's to say here: train and evaluate have precision.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([list(TEXT.encode())])

    def loss():
        torch.manual_seed(1)
        logits = model(tokens[:, :-1], use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]).item()

    with torch.no_grad():
        evaluated = loss()
        model.train()
        trained = loss()
    return evaluated, abs(trained - evaluated) > 1e-6


def run(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=60)


def ours(tools, folder):
    """Returns the engine's loss, or None and why the engine refuses the folder."""
    header = struct.pack("<256i", 20240520, 1, len(TEXT), *[0] * 253)  # A token file of llm.c.
    (folder / "tokens.bin").write_bytes(header + struct.pack(f"<{len(TEXT)}H", *TEXT.encode()))
    ended = run(tools / "evaluate", f"--folder={folder}", f"--data={folder}/tokens.bin", "--loss_only", "--packing=CUT",
                f"--sequence_length={len(TEXT) - 1}", f"--json={folder}/result.json", "--budget_bytes=1000000000")
    if ended.returncode != 0:
        return None, ended.stderr
    return json.loads((folder / "result.json").read_text())["loss"], ""


def says_dropout(tools, folder):
    (folder / "job.textproto").write_text(
        f'model {{ hf_folder: "{folder}" }} data {{ path: "{folder}/tokens.bin" }} '
        "batch { global_batch: 1 sequence_length: 16 } lr_schedule { steps: 1 }")
    return "asks for dropout" in run(tools / "plan", f"--job={folder}/job.textproto").stdout


def compare(tools, family, config, changed, folder):
    """Returns "same", "refused", "refused by transformers", or a description of a silent difference."""
    shown = f"{family} {json.dumps(changed)}"
    if "model_type" in changed:  # transformers would build the class of that name, with its sizes of billions.
        (folder / "config.json").write_text(json.dumps(config.to_dict() | changed))
        return "refused" if "model_type" in ours(tools, folder)[1] else f"{shown}: not refused"
    try:
        wanted, drops = write(folder, config, changed)
    except Exception:  # Whatever transformers raises: it has no answer to compare with.
        return "refused by transformers"
    loss, why = ours(tools, folder)
    if loss is None:
        named = any(key in why for key in [*changed, "max_positions"]) or "does not hold the weights" in why
        return "refused" if named else f"{shown}: refused without a name: {why}"
    if not abs(loss - wanted) <= TOLERANCE * abs(wanted):
        return f"{shown}: loss {loss}, wanted {wanted}"
    # Falcon's attention_dropout is applied in some blocks, and with some implementations of attention.
    if drops != says_dropout(tools, folder) and (drops or "attention_dropout" not in changed):
        return f"{shown}: dropout in training is {'not ' if drops else ''}said"
    return "same"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True, help="folder of evaluate and plan")
    parser.add_argument("--spellings", type=int, default=40, help="of rotary frequencies, of each family")
    parser.add_argument("--seed", type=int, default=1, help="of the spellings")
    parser.add_argument("--only", default="", help="regular expression of what to run: 'gpt2 .*pdrop'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    tools = arguments.tools.resolve()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    failed = 0
    for family, sizes in FAMILIES.items():
        config = transformers.AutoConfig.for_model(family, **sizes)
        counts = collections.Counter()
        rng = random.Random(arguments.seed)
        spellings = [rope_spelling(rng) for _ in range(arguments.spellings if family != "gpt2" else 0)]
        for changed in [*changes(family, config), *spellings]:
            if not re.search(arguments.only, f"{family} {json.dumps(changed)}"):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = compare(tools, family, config, changed, pathlib.Path(folder))
            if ": " in found:
                print("  " + found)
                failed += 1
            counts["different" if ": " in found else found] += 1
        print(f"{family:8} " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
