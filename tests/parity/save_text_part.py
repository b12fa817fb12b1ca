"""Saves the text part of a folder of Gemma 3 that also holds a vision tower in a folder of its own.

    ~/parity_venv/bin/python tests/parity/save_text_part.py FOLDER OUT
    ~/parity_venv/bin/python tests/parity/save_text_part.py    # checks this with a small model of random weights
"""

import os
import sys
import tempfile

import torch
import transformers


def save_text_part(folder, out):
    both = transformers.Gemma3ForConditionalGeneration.from_pretrained(folder, dtype="bfloat16")
    text = transformers.Gemma3ForCausalLM(both.config.text_config).to(both.dtype)
    text.model.load_state_dict(both.model.language_model.state_dict())
    text.save_pretrained(out)


def check():
    """Compares the logits of both models. Exits with an error if they differ."""
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}
    text = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 6,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4,
            "max_position_embeddings": 32, "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                       boi_token_index=35, eoi_token_index=36, image_token_index=37)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("both", "text")]
        transformers.Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(paths[0])
        save_text_part(*paths)
        both = transformers.Gemma3ForConditionalGeneration.from_pretrained(paths[0], dtype="bfloat16").eval()
        alone = transformers.AutoModelForCausalLM.from_pretrained(paths[1], dtype="bfloat16").eval()
    if alone.config.model_type != "gemma3_text":
        sys.exit(f"wanted a folder of gemma3_text, found {alone.config.model_type}")
    tokens = torch.arange(3, 19)[None]
    with torch.no_grad():
        if not torch.equal(alone(tokens).logits, both(tokens).logits):
            sys.exit("the text part computes other logits")
    print("the text part computes the same logits")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        check()
    elif len(sys.argv) == 3:
        save_text_part(*sys.argv[1:])
    else:
        sys.exit(__doc__)
