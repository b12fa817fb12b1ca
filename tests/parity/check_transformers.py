"""Compares models.py with transformers: the same weights and tokens must give equal logits, loss and gradients in fp64.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch transformers
    ~/parity_venv/bin/python tests/parity/check_transformers.py

The models are built from configuration objects; nothing is downloaded. Prints one line per case and exits with 1 when
a difference exceeds the tolerance.
"""

import sys

import torch
import transformers
from torch.overrides import TorchFunctionMode

from cases import CASES, SEQUENCE_LENGTH
from models import loss_of

# fp64 rounds each operation by 1e-16. A wrong constant, order or mask changes the first digits.
TOLERANCE = 1e-12


class AllInFp64(TorchFunctionMode):
    """Runs code in fp64 even if it asks for fp32: transformers always computes norms, rotary tables and softmax in
    fp32."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        def widen(value):
            return torch.float64 if value is torch.float32 else value
        return function(*map(widen, args), **{key: widen(value) for key, value in (kwargs or {}).items()})


def rope_parameters(shape):
    parameters = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling:
        scaling = dict(shape.rope_scaling)
        parameters |= {"rope_type": "llama3", "original_max_position_embeddings": scaling.pop("original_context"),
                       **scaling}
    return parameters


def llama_like(shape, weights):
    """Returns the model and its weights for Llama, Mistral, Qwen 2 and Qwen 3, which use the same parameter names."""
    family = {"LLAMA": "Llama", "MISTRAL": "Mistral", "QWEN2": "Qwen2", "QWEN3": "Qwen3"}[shape.family]
    options = dict(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width, rms_norm_eps=shape.norm_epsilon, rope_parameters=rope_parameters(shape),
        tie_word_embeddings=shape.tied_head, max_position_embeddings=64, pad_token_id=None, bos_token_id=None,
        eos_token_id=None)
    if family == "Mistral":
        options["sliding_window"] = shape.attention_window or None
    config = getattr(transformers, family + "Config")(**options, attn_implementation="eager")
    model = getattr(transformers, family + "ForCausalLM")(config)

    mapped = {"model.embed_tokens.weight": weights["embedding.weight"],
              "model.norm.weight": weights["final_norm.weight"]}
    if not shape.tied_head:
        mapped["lm_head.weight"] = weights["head.weight"]
    for i in range(shape.layers):
        ours, theirs = f"blocks.{i}.", f"model.layers.{i}."
        for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
            for letter, part in zip("qkv", split_qkv(shape, weights[f"{ours}attention.qkv.{kind}"])):
                mapped[f"{theirs}self_attn.{letter}_proj.{kind}"] = part
        gate, up = weights[ours + "ffn.gate_up.weight"].chunk(2)
        mapped |= {theirs + "mlp.gate_proj.weight": gate, theirs + "mlp.up_proj.weight": up,
                   theirs + "mlp.down_proj.weight": weights[ours + "ffn.down.weight"],
                   theirs + "self_attn.o_proj.weight": weights[ours + "attention.output.weight"],
                   theirs + "input_layernorm.weight": weights[ours + "attention_norm.weight"],
                   theirs + "post_attention_layernorm.weight": weights[ours + "ffn_norm.weight"]}
        if shape.qk_norm:
            mapped |= {theirs + "self_attn.q_norm.weight": weights[ours + "attention.q_norm.weight"],
                       theirs + "self_attn.k_norm.weight": weights[ours + "attention.k_norm.weight"]}
    return model, mapped


def gpt2(shape, weights):
    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary, n_positions=shape.max_positions, n_embd=shape.width, n_layer=shape.layers,
        n_head=shape.heads, n_inner=shape.hidden, activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, layer_norm_epsilon=shape.norm_epsilon, bos_token_id=None, eos_token_id=None,
        attn_implementation="eager")
    mapped = {"transformer.wte.weight": weights["embedding.weight"],
              "transformer.wpe.weight": weights["embedding.positions"]}
    names = {"attention_norm": "ln_1", "ffn_norm": "ln_2", "attention.qkv": "attn.c_attn",
             "attention.output": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    for kind in ("weight", "bias"):
        mapped[f"transformer.ln_f.{kind}"] = weights[f"final_norm.{kind}"]
        for i in range(shape.layers):
            for ours, theirs in names.items():
                # GPT-2's Conv1D stores weights as [in, out].
                weight = weights[f"blocks.{i}.{ours}.{kind}"]
                mapped[f"transformer.h.{i}.{theirs}.{kind}"] = weight.T if weight.dim() == 2 else weight
    return transformers.GPT2LMHeadModel(config), mapped


def falcon(shape, weights):
    new = shape.parallel_norms  # Falcon-40B's architecture.
    config = transformers.FalconConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_kv_heads=shape.kv_heads, new_decoder_architecture=new,
        multi_query=not new, parallel_attn=True, alibi=False, bias=False, ffn_hidden_size=shape.hidden,
        activation="gelu", layer_norm_epsilon=shape.norm_epsilon, rope_parameters=rope_parameters(shape),
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    norms = {"attention_norm": "ln_attn", "ffn_norm": "ln_mlp"} if new else {"attention_norm": "input_layernorm"}
    mapped = {"transformer.word_embeddings.weight": weights["embedding.weight"]}
    for i in range(shape.layers):
        ours, theirs = f"blocks.{i}.", f"transformer.h.{i}."
        # Falcon stores a group's query heads, its key and its value next to each other.
        q, k, v = (part.view(shape.kv_heads, -1, shape.width)
                   for part in split_qkv(shape, weights[ours + "attention.qkv.weight"]))
        mapped |= {theirs + "self_attention.query_key_value.weight": torch.cat((q, k, v), dim=1).flatten(0, 1),
                   theirs + "self_attention.dense.weight": weights[ours + "attention.output.weight"],
                   theirs + "mlp.dense_h_to_4h.weight": weights[ours + "ffn.up.weight"],
                   theirs + "mlp.dense_4h_to_h.weight": weights[ours + "ffn.down.weight"]}
        for kind in ("weight", "bias"):
            for our_norm, their_norm in norms.items():
                mapped[f"{theirs}{their_norm}.{kind}"] = weights[f"{ours}{our_norm}.{kind}"]
    for kind in ("weight", "bias"):
        mapped[f"transformer.ln_f.{kind}"] = weights[f"final_norm.{kind}"]
    return transformers.FalconForCausalLM(config), mapped


def split_qkv(shape, weight):
    return weight.split([heads * shape.head_width for heads in (shape.heads, shape.kv_heads, shape.kv_heads)])


def relative(actual, wanted):
    return ((actual - wanted).norm() / wanted.norm()).item()


def compare(case):
    """Returns the relative differences of logits, loss and the worst gradient."""
    inputs, targets = (batches[0] for batches in case.make_batches())
    ours = case.make_model().double()
    loss = loss_of(ours, inputs, targets)
    loss.backward()
    logits = ours(inputs)

    # Each of their parameters is a slice, a transpose or a permutation of ours, so the same map also converts
    # gradients.
    to_theirs = {"GPT2": gpt2, "FALCON": falcon}.get(case.spec["family"], llama_like)
    with AllInFp64():
        theirs, mapped = to_theirs(ours.shape, {name: p.detach() for name, p in ours.named_parameters()})
        _, mapped_gradients = to_theirs(ours.shape, {name: p.grad for name, p in ours.named_parameters()})
        theirs = theirs.double().eval()
        parameters = dict(theirs.named_parameters())
        if set(parameters) != set(mapped):
            raise SystemExit(f"{case.name}: parameters without a partner: {sorted(set(parameters) ^ set(mapped))}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(mapped[name])
        their_logits = theirs(inputs, use_cache=False).logits
        # shift_labels tells their loss that the labels are already shifted.
        their_loss = theirs.loss_function(logits=their_logits, labels=None, vocab_size=ours.shape.vocabulary,
                                          shift_labels=targets, ignore_index=-1)
        their_loss.backward()
    if their_logits.dtype != torch.float64:
        raise SystemExit(f"{case.name}: transformers answered in {their_logits.dtype}")

    worst = max(relative(mapped_gradients[name], p.grad) for name, p in parameters.items())
    return relative(logits, their_logits), relative(loss, their_loss), worst


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {SEQUENCE_LENGTH} tokens, fp64; "
          f"relative differences, tolerance {TOLERANCE:.0e}")
    failed = 0
    for case in CASES:
        if case.kind != "decoder":
            continue
        logits, loss, gradient = compare(case)
        passed = max(logits, loss, gradient) <= TOLERANCE
        failed += not passed
        print(f"{case.name:12} logits {logits:.1e}  loss {loss:.1e}  gradients {gradient:.1e}  "
              f"{'ok' if passed else 'FAILED'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
