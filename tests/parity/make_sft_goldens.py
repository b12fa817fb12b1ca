"""Writes tests/parity/golden/sft: conversations, small models of transformers with tokenizers and chat templates, and
the losses with which transformers fine-tunes them on the conversations. See README.md.

    python3 -m venv ~/parity_venv
    ~/parity_venv/bin/pip install torch numpy safetensors transformers tokenizers
    ~/parity_venv/bin/python tests/parity/make_sft_goldens.py

Tokens and masks are those of apply_chat_template(return_assistant_tokens_mask=True): the templates of chat_templates/
get the `generation` statements that it needs. The folders hold the templates without them.
"""

import json
import pathlib
import random
import shutil

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch.nn.utils import clip_grad_norm_

import make_tokenizer_goldens as tokenizers
from check_transformers import AllInFp64
from hf_cases import CASES, HfCase
from make_hf_goldens import MAX_NORM, adamw

SEQUENCE_LENGTH, GLOBAL_BATCH, STEPS = 144, 4, 20
LEARNING_RATE = 2e-3
# A limit on the difference between losses in fp32 and in fp64. The test allows 1e-5.
LOSS_NOISE = 3e-6

_HERE = pathlib.Path(__file__).resolve().parent
_OUT = _HERE.parents[1] / "tests/parity/golden/sft"

# The family of the tokenizer, its special tokens (the first two are bos_token and eos_token), the template, and the
# case of hf_cases.py whose sizes the model has.
_CHATML = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
_FAMILIES = {
    "llama": (tokenizers.llama3, ["<|begin|>", "<|end|>", "<|head|>", "<|end_head|>", "<|eot|>"], "llama3",
              "llama3_rope"),
    "mistral": (tokenizers.mistral, ["<s>", "</s>", "[INST]", "[/INST]"], "mistral", "mistral"),
    "qwen2": (tokenizers.qwen2, _CHATML, "qwen2", "qwen2"),
    "qwen3": (tokenizers.qwen2, _CHATML, "qwen3", "qwen3"),
    "gpt2": (tokenizers.gpt2, _CHATML, "qwen2", "gpt2"),
    "falcon": (tokenizers.falcon, ["<|begin|>", "<|endoftext|>"], "falcon", "falcon_7b"),
}
# What each template writes for an answer, and the same with a `generation` statement around what counts.
_IS_ANSWER = "{% if m.role == 'assistant' %}"
_MARKS = {
    "llama3": [("+ '<|end_head|>\\n\\n'+ m['content'] | trim + '<|eot|>' }}",
                "+ '<|end_head|>\\n\\n' }}" + _IS_ANSWER + "{% generation %}{{- m['content'] | trim + '<|eot|>' }}"
                "{% endgeneration %}{% else %}{{- m['content'] | trim + '<|eot|>' }}{% endif %}")],
    "mistral": [("{{- m[\"content\"] + eos_token}}",
                 "{%- generation %}{{- m[\"content\"] + eos_token}}{%- endgeneration %}")],
    "qwen2": [("+ '\\n' + m.content + '<|im_end|>' + '\\n' }}",
               "+ '\\n' }}" + _IS_ANSWER + "{% generation %}{{- m.content + '<|im_end|>\\n' }}{% endgeneration %}"
               "{% else %}{{- m.content + '<|im_end|>\\n' }}{% endif %}")],
    "qwen3": [("+ '\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + words.lstrip('\\n') }}",
               "+ '\\n' }}{% generation %}{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + "
               "words.lstrip('\\n') + '<|im_end|>\\n' }}{% endgeneration %}"),
              ("+ '\\n' + words }}",
               "+ '\\n' }}{% generation %}{{- words + '<|im_end|>\\n' }}{% endgeneration %}"),
              ("        {{- '<|im_end|>\\n' }}\n", "")],
    "falcon": [("{{ 'Falcon: ' + message['content'] }}",
                "{{ 'Falcon:' }}{% generation %}{{ ' ' + message['content'] }}{% endgeneration %}")],
}


def conversations():
    random_ = random.Random(5)
    things = "tea, bread, the moon, snow, a river, old maps, ÿ and é, 12345 stars, a 🦊, Straße, two\nlines".split(", ")
    verbs = ["make", "find", "draw", "explain", "count", "remember"]
    made = []
    for i in range(20):
        messages = [dict(role="system", content="Answer in few words.")] if i % 5 == 3 else []
        for turn in range(1 + i % 3 // 2):
            verb, thing = random_.choice(verbs), random_.choice(things)
            messages.append(dict(role="user", content=f"How do you {verb} {thing}?"))
            why = " ".join(random_.choice(["slowly", "with care", "by hand", "again", "at night"])
                           for _ in range(random_.randrange(5)))
            messages.append(dict(role="assistant", content=f"You {verb} {thing} {why}.".replace(" .", "!")))
        made.append(messages)
    return made


def make_tokenizer(family, special, source, lines):
    sizes = dict(size=150) if family is tokenizers.mistral else dict(size=330, special=special)
    tokenizer = family(lines=lines, **sizes)
    tokenizer.add_special_tokens([token for token in special if tokenizer.token_to_id(token) is None])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1],
                                                chat_template=source, clean_up_tokenization_spaces=False)


def tokens_of(tokenizer, plain, marked, messages):
    """Returns the inputs of a conversation, and its targets, which are -1 where the assistant says nothing."""
    found = tokenizer.apply_chat_template(messages, chat_template=marked, return_dict=True,
                                          return_assistant_tokens_mask=True)
    assert found["input_ids"] == tokenizer.apply_chat_template(messages, chat_template=plain, return_dict=True)[
        "input_ids"]
    counts = found["assistant_masks"]
    assert any(counts[1:]) and not counts[0] and len(counts) <= SEQUENCE_LENGTH + 1, len(counts)
    targets = [token if counted else -1 for token, counted in zip(found["input_ids"], counts)]
    return found["input_ids"][:-1], targets[1:]


def padded(rows, value):
    """Returns rows as one tensor. What stands behind a conversation changes nothing in it."""
    out = torch.full((len(rows), max(map(len, rows))), value)
    for i, row in enumerate(rows):
        out[i, :len(row)] = torch.tensor(row)
    return out


def train(model, documents, batch):
    """Trains on `batch` conversations a step, in their order, again and again. Returns the losses."""
    optimizer = adamw(model, LEARNING_RATE)
    losses = []
    for step in range(STEPS):
        some = [documents[(step * batch + i) % len(documents)] for i in range(batch)]
        inputs, targets = padded([row for row, _ in some], 0), padded([row for _, row in some], -1)
        optimizer.zero_grad()
        logits = model(inputs, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        loss = loss / (targets >= 0).sum()
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_NORM, foreach=False)
        losses.append(loss.item())
        optimizer.step()
    return np.array(losses)


def make_golden(name):
    family, special, template, case_name = _FAMILIES[name]
    chats = conversations()
    if template == "mistral":  # It leaves out what the system says once the assistant has answered.
        chats = [[message for message in messages if message["role"] != "system"] for messages in chats]
    plain = (_HERE / f"chat_templates/{template}.jinja").read_text(encoding="utf-8")
    lines = [message["content"] + "\n" for messages in chats for message in messages]
    tokenizer = make_tokenizer(family, special, plain, lines)
    marked = plain
    for old, new in _MARKS[template]:
        assert marked.count(old) == 1, old
        marked = marked.replace(old, new)
    documents = [tokens_of(tokenizer, plain, marked, messages) for messages in chats]

    sizes = next(case for case in CASES if case.name == case_name)
    longest = "n_positions" if name == "gpt2" else "max_position_embeddings"
    case = HfCase("sft_" + name, sizes.family,
                  sizes.options | {"vocab_size": len(tokenizer), longest: SEQUENCE_LENGTH}, torch.bfloat16)
    folder = _OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    case.make_model().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)

    with open(folder / "chats.jsonl", "w", encoding="utf-8") as out:
        for messages in chats:
            out.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")

    golden = {"sequence_length": SEQUENCE_LENGTH, "steps": STEPS, "learning_rate": LEARNING_RATE,
              "counted": sum(sum(target >= 0 for target in targets) for _, targets in documents)}
    for which, batch in (("batches", GLOBAL_BATCH), ("all", len(documents))):
        def load(dtype):
            return transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager").eval()

        losses = train(load(torch.float32), documents, batch)
        with AllInFp64():
            exact = train(load(torch.float64), documents, batch)
        noise = np.abs(losses - exact).max()
        if noise > LOSS_NOISE:
            raise SystemExit(f"{name}: fp32 alone moves losses by {noise:.1e}; make the case better conditioned")
        golden[which] = losses.tolist()
        print(f"{name:8} {which:8} vocabulary {len(tokenizer)}  targets {golden['counted']} of "
              f"{sum(len(row) for row, _ in documents)}  longest {max(len(row) for row, _ in documents)}  "
              f"loss {losses[0]:.4f} -> {losses[-1]:.4f}  fp32 noise {noise:.1e}")
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in _FAMILIES:
        make_golden(name)


if __name__ == "__main__":
    main()
