"""Writes tests/parity/golden/adapter/<case>: adapters of PEFT for a folder of tests/parity/golden/hf, and how PEFT
trains them. See README.md.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers peft bitsandbytes
    ~/parity_venv/bin/python tests/parity/make_adapter_goldens.py [CASE ...]
"""

import functools
import math
import pathlib
import shutil
import sys
import zlib
from dataclasses import dataclass

import bitsandbytes
import numpy as np
import peft
import torch
import transformers
from torch.nn.utils import clip_grad_norm_

from check_transformers import AllInFp64
from hf_cases import CASES
from make_goldens import write_safetensors
from make_hf_goldens import LOSS_NOISE, MAX_NORM, UPDATE_NOISE, adamw, loss_of

STEPS, LEARNING_RATE = 20, 3e-3

_GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/parity/golden"


@dataclass(frozen=True)
class AdapterCase:
    name: str
    base: str  # The case of hf_cases.py.
    config: dict
    nf4: bool = False  # The matrices of the base are stored in 4 bits, as QLoRA does.

    def load_base(self, dtype):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            _GOLDEN / "hf" / self.base, dtype=dtype, attn_implementation="eager").eval()
        if self.nf4:
            for name, weight in quantized(self.base).items():
                model.get_submodule(name).weight.data.copy_(weight)
        return model


@functools.cache
def quantized(base):
    """Returns the weights that bitsandbytes makes of the linear layers of the blocks in NF4 with double quantization,
    in fp32: those by which its Linear4bit multiplies."""
    model = transformers.AutoModelForCausalLM.from_pretrained(_GOLDEN / "hf" / base, dtype=torch.float32)
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            weight = bitsandbytes.nn.Params4bit(module.weight.data, requires_grad=False, compress_statistics=True,
                                                quant_type="nf4", blocksize=64).to("cpu")
            weights[name] = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state).reshape(
                module.weight.shape)
    return weights


ADAPTERS = [
    AdapterCase("llama", "llama", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    AdapterCase("qwen2_rslora", "qwen2", dict(r=5, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj"])),
    AdapterCase("gpt2", "gpt2", dict(r=3, lora_alpha=4.5, fan_in_fan_out=True,
                                     target_modules=["c_attn", "transformer.h.1.mlp.c_proj"])),
    AdapterCase("falcon_40b_rslora", "falcon_40b", dict(r=4, lora_alpha=4, use_rslora=True,
                                                        target_modules="all-linear")),
    AdapterCase("gemma2", "gemma2", dict(r=3, lora_alpha=6, target_modules="all-linear")),
    AdapterCase("gemma3", "gemma3", dict(r=2, lora_alpha=3, target_modules="all-linear")),
    AdapterCase("falcon_7b_nf4", "falcon_7b", dict(r=4, lora_alpha=8, target_modules="all-linear"), nf4=True),
    AdapterCase("llama_blocks_nf4", "llama_blocks", dict(r=4, lora_alpha=8, target_modules="all-linear"), nf4=True),
]


def set_adapters(model, name):
    """Sets A as training begins, and B to small values, so that both have gradients from the first step on."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" not in key:
                continue
            noise = torch.rand(parameter.shape, generator=generator) * 2 - 1
            parameter.copy_(noise / math.sqrt(parameter.shape[1]) if "lora_A" in key else 0.1 * noise)


def adapted(base, folder):
    return peft.PeftModel.from_pretrained(base, folder, is_trainable=True, autocast_adapter_dtype=False).to(
        base.dtype).eval()


def trained(model):
    return {name.replace(".default", ""): p.detach().double().numpy().copy()
            for name, p in model.named_parameters() if p.requires_grad}


def train(model, inputs, targets):
    optimizer = adamw(model, LEARNING_RATE)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_of(model, inputs, targets)
        loss.backward()
        norms.append(clip_grad_norm_([p for p in model.parameters() if p.requires_grad], MAX_NORM,
                                     foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    return np.array(losses), np.array(norms)


def check_linear4bit(case, inputs, targets):
    """Checks that the layers of bitsandbytes, which users have, compute the same as those of load_base."""
    wanted, _ = loss_of(case.load_base(torch.float32), inputs, targets)
    model = transformers.AutoModelForCausalLM.from_pretrained(_GOLDEN / "hf" / case.base, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            layer = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, bias=module.bias is not None,
                                               compute_dtype=torch.float32, quant_type="nf4")
            layer.load_state_dict(module.state_dict())
            model.set_submodule(name, layer.to("cpu"))
    loss, _ = loss_of(model, inputs, targets)
    if abs(loss.item() / wanted.item() - 1) > LOSS_NOISE:
        raise SystemExit(f"{case.name}: Linear4bit gives a loss of {loss.item()}, not of {wanted.item()}")


def make_golden(case, folder):
    shutil.rmtree(folder, ignore_errors=True)
    first = peft.get_peft_model(case.load_base(torch.float32),
                                peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **case.config))
    set_adapters(first, case.name)
    first.peft_config["default"].base_model_name_or_path = case.base
    first.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "adapter_model.safetensors").chmod(0o644)

    inputs, targets = next(c for c in CASES if c.name == case.base).make_batch()
    model = adapted(case.load_base(torch.float32), folder)
    before = trained(model)
    losses, norms = train(model, inputs, targets)
    after = trained(model)
    assert all(name.endswith(("lora_A.weight", "lora_B.weight")) for name in after), list(after)
    with AllInFp64():
        base = case.load_base(torch.float64)
    exact = adapted(base, folder)
    with AllInFp64():
        exact_losses, _ = train(exact, inputs, targets)
    loss_noise = np.abs(losses / exact_losses - 1).max()
    moved = sum(np.square(after[name] - before[name]).sum() for name in after)
    apart = sum(np.square(after[name] - value).sum() for name, value in trained(exact).items())
    update_noise = np.sqrt(apart / moved)
    if loss_noise > LOSS_NOISE or update_noise > UPDATE_NOISE:
        raise SystemExit(f"{case.name}: fp32 alone moves losses by {loss_noise:.1e}, updates by {update_noise:.1e}; "
                         "make the case better conditioned")

    golden = {"losses": losses, "norms": norms}
    golden |= {"after/" + name: value.astype(np.float32) for name, value in after.items()}
    metadata = {"name": case.name, "base": case.base, "torch": torch.__version__, "peft": peft.__version__}
    if case.nf4:
        metadata["bitsandbytes"] = bitsandbytes.__version__
        check_linear4bit(case, inputs, targets)
    write_safetensors(folder / "golden.safetensors", golden, metadata)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{case.name:18} {size / 1024:4.0f} KiB  {len(after)} tensors  loss {losses[0]:.6f} -> {losses[-1]:.4f}  "
          f"norm {norms[0]:.2f}  fp32 noise: losses {loss_noise:.1e}, updates {update_noise:.1e}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in [case for case in ADAPTERS if case.name in (sys.argv[1:] or [case.name])]:
        make_golden(case, _GOLDEN / "adapter" / case.name)


if __name__ == "__main__":
    main()
