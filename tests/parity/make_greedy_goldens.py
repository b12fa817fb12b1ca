"""Writes tests/parity/golden/hf/greedy.txt: the tokens that transformers generates, always taking the most likely one,
from the folders of make_hf_goldens.py. See README.md.

    ~/parity_venv/bin/python tests/parity/make_greedy_goldens.py [--output FILE]

A line has the name of a case, a repetition penalty (1: none), the tokens of a prompt, and those that follow, with
commas between.
"""

import argparse
import pathlib

import torch
import transformers

from check_transformers import AllInFp64
from hf_cases import CASES

PROMPTS = (2, 5, 7)  # Lengths.
PENALTIES = (1.0, 1.5)  # Without one, many of these models soon repeat a token.
MOST_TOKENS = 40
# The most likely token is ahead of the next one by this much, so that rounding cannot exchange them.
MARGIN = 2e-4


def generate(model, prompt, count, penalty):
    """Returns the tokens, with transformers' own cache. They end where rounding could decide between two."""
    output = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=count,
                            do_sample=False, use_cache=True, repetition_penalty=penalty,
                            return_dict_in_generate=True, output_scores=True, pad_token_id=0)
    two = torch.stack([scores[0].double() for scores in output.scores]).topk(2, dim=-1).values
    close = (two[:, 0] - two[:, 1] < MARGIN).nonzero()
    count = close[0].item() if len(close) else count
    return output.sequences[0, len(prompt):].tolist()[:count]


def main():
    repository = pathlib.Path(__file__).resolve().parents[2]
    folder = repository / "tests/parity/golden/hf"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=folder / "greedy.txt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    lines = []
    for case in CASES:
        config = case.make_config()
        positions = getattr(config, "n_positions", None) or config.max_position_embeddings
        with AllInFp64():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder / case.name, dtype=torch.float64, attn_implementation="eager").eval()
            model.generation_config.eos_token_id = None
            texts, _ = case.make_batch()
            for text, length in zip(texts, PROMPTS):
                count = min(MOST_TOKENS, positions - length)
                for penalty in PENALTIES:
                    tokens = generate(model, text[:length], count, penalty)
                    if len(tokens) < 8:
                        raise SystemExit(f"{case.name}: {len(tokens)} tokens after {length}; choose another prompt")
                    prompt = text[:length].tolist()
                    lines.append(f"{case.name} {penalty} {','.join(map(str, prompt))} {','.join(map(str, tokens))}")
                    print(f"{case.name:14} {length} + {len(tokens)} tokens, {len(set(tokens))} different")
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
