"""Defines the models, weights and batches of the goldens. All sizes are small, and awkward on purpose.

A case's `spec` holds fields of DecoderSpec or MlpSpec (proto/job/model.proto) and nothing else.
"""

import math
import os
import sys
import zlib
from dataclasses import dataclass

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../tools/parity"))

from models import make_model  # noqa: E402

SEQUENCE_LENGTH = 13
CURVE_BATCHES = 4


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # The field of ModelSpec: "decoder" or "mlp".
    spec: dict
    batch: int = 3
    embedding_std: float = 1.0
    max_gradient_norm: float = 2.0  # Lies between the norms of the curve's steps, so that some steps are clipped.

    def textproto(self):
        """Returns the ModelSpec in text format."""
        return f"{self.kind} {{ {_fields(self.spec)} }}"

    def make_model(self):
        """Returns the model in fp32, with weights that depend only on the case's name."""
        model = make_model(self.kind, self.spec, SEQUENCE_LENGTH)
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(self._initial(name, noise))
        return model

    def _initial(self, name, noise):
        if "norm" in name:
            return 1 + 0.3 * noise if name.endswith("weight") else 0.2 * noise
        if name.endswith("bias"):
            return 0.2 * noise
        if name.startswith("embedding"):
            return self.embedding_std * noise
        return noise / math.sqrt(noise.shape[1])

    def make_batches(self, length=SEQUENCE_LENGTH):
        """Returns tokens and targets, each [CURVE_BATCHES, B, S] int64. Targets are the next tokens; some are masked
        (-1)."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()) + 1)
        text = torch.randint(self.spec["vocabulary"], (CURVE_BATCHES, self.batch, length + 1),
                             generator=generator)
        inputs, targets = text[..., :-1].contiguous(), text[..., 1:].contiguous()
        # Batch 0 has masked targets in several places, also at a last position. Batch 1 has none. In batch 2 a sequence
        # has no target at all. In batch 3 a sequence ends early.
        targets[0, 0, 2:5] = -1
        targets[0, 1, -1] = -1
        targets[2, -1, :] = -1
        targets[3, 0, 4:] = -1
        return inputs, targets


def _fields(spec):
    parts = []
    for key, value in spec.items():
        if isinstance(value, dict):
            parts.append(f"{key} {{ {_fields(value)} }}")
        elif isinstance(value, bool):
            parts.append(f"{key}: {'true' if value else 'false'}")
        else:
            parts.append(f"{key}: {value}")
    return " ".join(parts)


CASES = [
    Case("llama", "decoder", dict(family="LLAMA", vocabulary=61, width=40, layers=2, heads=4, kv_heads=2, hidden=52)),
    Case("llama3_rope", "decoder", dict(
        family="LLAMA", vocabulary=61, width=48, layers=2, heads=3, kv_heads=1, hidden=56, rope_theta=500.0,
        # One of the eight frequencies stays, two are blended, five are divided by the factor.
        rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32))),
    Case("gpt2", "decoder", dict(family="GPT2", vocabulary=61, width=40, layers=2, heads=4, hidden=92,
                                 max_positions=17), embedding_std=0.3, max_gradient_norm=2.6),
    Case("qwen2", "decoder", dict(family="QWEN2", vocabulary=61, width=48, layers=2, heads=6, kv_heads=2, hidden=60,
                                  rope_theta=1000000.0, tied_head=True), embedding_std=0.2, max_gradient_norm=3.5),
    Case("qwen3", "decoder", dict(family="QWEN3", vocabulary=61, width=36, layers=2, heads=4, kv_heads=2,
                                  head_width=14, hidden=44, rope_theta=1000000.0)),
    Case("mistral", "decoder", dict(family="MISTRAL", vocabulary=61, width=40, layers=2, heads=4, kv_heads=2, hidden=52,
                                    attention_window=5)),
    Case("falcon_7b", "decoder", dict(family="FALCON", vocabulary=61, width=40, layers=2, heads=5, hidden=104),
         embedding_std=0.3, max_gradient_norm=2.8),
    Case("falcon_40b", "decoder", dict(family="FALCON", vocabulary=61, width=40, layers=2, heads=4, kv_heads=2,
                                       hidden=104, parallel_norms=True), embedding_std=0.3, max_gradient_norm=2.5),
    Case("mlp", "mlp", dict(vocabulary=61, embedding=9, hidden=50, layers=2), batch=5,
         embedding_std=0.3, max_gradient_norm=1.2),
]
