"""Defines the folders of tests/parity/golden/hf: tiny models of every Hugging Face family that the engine reads.

Each has a vocabulary of 61 tokens and two layers; sizes are awkward on purpose. A case consists of a transformers
config, the dtype of the stored weights, and the largest size of a file.
"""

import math
import zlib
from dataclasses import dataclass

import torch
import transformers

SEQUENCE_LENGTH = 13
BATCH = 3
_TOKENS = dict(vocab_size=61, bos_token_id=None, eos_token_id=None, pad_token_id=None)


@dataclass(frozen=True)
class HfCase:
    name: str
    family: str  # Prefix of the classes in transformers: "Llama" for LlamaConfig.
    options: dict
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    steps: int = 8  # Of AdamW.

    def make_config(self):
        return getattr(transformers, self.family + "Config")(**(_TOKENS | self.options))

    def make_model(self):
        """Returns the model, rounded to `dtype`, with weights that depend only on the case's name."""
        model = transformers.AutoModelForCausalLM.from_config(self.make_config(), attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(_initial(name, noise, self.family.startswith("Gemma")))
        return model.to(self.dtype)

    def make_batch(self):
        """Returns tokens and targets, each [BATCH, SEQUENCE_LENGTH]. Targets are the next tokens; a few are masked
        (-1)."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()) + 1)
        text = torch.randint(61, (BATCH, SEQUENCE_LENGTH + 1), generator=generator)
        inputs, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        targets[0, 2:5] = -1
        targets[1, -1] = -1
        return inputs, targets


def _gemma(heads, kv_heads, layers, **options):
    return dict(hidden_size=24, intermediate_size=34, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, max_position_embeddings=64, sliding_window=5, **options)


def _initial(name, noise, adds_one):
    if adds_one and "norm" in name:
        return 0.3 * noise
    if adds_one and "embed" in name:
        return 0.06 * noise  # The model multiplies by the root of its width.
    if "norm" in name or "ln_" in name:
        return 1 + 0.3 * noise if name.endswith("weight") else 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if "embed" in name or "wte" in name or "wpe" in name:
        return 0.3 * noise
    return noise / math.sqrt(noise.shape[1])


def _llama(heads, kv_heads, **options):
    return dict(hidden_size=24, intermediate_size=34, num_hidden_layers=2, num_attention_heads=heads,
                num_key_value_heads=kv_heads, max_position_embeddings=64, **options)


def _falcon(heads, **options):
    return dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=heads, ffn_hidden_size=52,
                max_position_embeddings=64, hidden_dropout=0.0, attention_dropout=0.0, **options)


CASES = [
    HfCase("llama", "Llama", _llama(4, 2, head_dim=10, rms_norm_eps=1e-5), max_shard_size="20KB"),
    HfCase("llama_bias", "Llama", _llama(3, 3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    HfCase("llama3_rope", "Llama", _llama(3, 1, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
    HfCase("mistral", "Mistral", _llama(4, 2, sliding_window=5), dtype=torch.bfloat16),
    HfCase("qwen2", "Qwen2", _llama(6, 2, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=1000000.0)), dtype=torch.float16),
    HfCase("qwen2_window", "Qwen2", _llama(4, 1, use_sliding_window=True, sliding_window=5, max_window_layers=0)),
    HfCase("qwen3", "Qwen3", _llama(5, 1, head_dim=6)),
    HfCase("gpt2", "GPT2", dict(n_embd=24, n_layer=2, n_head=3, n_inner=52, n_positions=17, attn_pdrop=0.0,
                                embd_pdrop=0.0, resid_pdrop=0.0)),
    HfCase("falcon_7b", "Falcon", _falcon(6, multi_query=True)),
    HfCase("falcon_40b", "Falcon", _falcon(6, new_decoder_architecture=True, num_kv_heads=3)),
    HfCase("falcon_11b", "Falcon", _falcon(6, new_decoder_architecture=True, num_kv_heads=2,
                                           num_ln_in_parallel_attn=1, tie_word_embeddings=False)),
    HfCase("falcon_rw", "Falcon", _falcon(4, multi_query=False, parallel_attn=False, bias=True)),
    HfCase("qwen3_some_windows", "Qwen3",
           _llama(4, 2, head_dim=6, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    HfCase("gemma2", "Gemma2", _gemma(4, 2, 2, head_dim=10, query_pre_attn_scalar=14, attn_logit_softcapping=2.0,
                                      final_logit_softcapping=3.0), steps=20),
    HfCase("gemma3", "Gemma3Text",
           _gemma(4, 2, 6, head_dim=6, query_pre_attn_scalar=8, rope_parameters=dict(
               full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
               sliding_attention=dict(rope_type="default", rope_theta=10000.0)))
           | dict(hidden_size=12, intermediate_size=14), steps=20),
    HfCase("gemma3_one_head", "Gemma3Text", _gemma(1, 1, 3, head_dim=16, query_pre_attn_scalar=16,
                                                   layer_types=["sliding_attention", "full_attention",
                                                                "sliding_attention"]), dtype=torch.bfloat16),
    HfCase("starcoder2", "Starcoder2", _llama(4, 2, sliding_window=5)),
    HfCase("starcoder2_no_window", "Starcoder2", _llama(6, 3, use_bias=False, tie_word_embeddings=False,
                                                        hidden_act="gelu"), dtype=torch.bfloat16),
    HfCase("llama_blocks", "Llama",
           _llama(4, 2) | dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, tie_word_embeddings=True),
           dtype=torch.bfloat16),
]
