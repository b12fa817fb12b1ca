"""Trains a small model by reward, in the way of GRPO (Shao et al., 2024, section 4.1, without the KL term): it draws a
group of answers to each prompt, scores them, and trains on them with the advantage of each answer as the weight of its
tokens. The toy reward is the share of tokens that are larger than the one before.

    grpo.py [--steps=N]
"""

import argparse

import numpy as np

import shale

TOKENS, LENGTH, PROMPT = 12, 12, 2  # Tokens of the vocabulary, of a sequence, and of its prompt.
PROMPTS, GROUP = 4, 8  # Prompts of a step, and answers to each.
SEQUENCE = LENGTH - 1  # The targets are one token later than the inputs.
JOB = f"""
name: "grpo"
model {{ decoder {{ vocabulary: {TOKENS} width: 32 layers: 2 heads: 2 hidden: 64 max_positions: {SEQUENCE} }} }}
data {{ target_weights: OVER_TOKENS order: SEQUENTIAL }}
batch {{ global_batch: {PROMPTS * GROUP} micro_batch: 8 sequence_length: {SEQUENCE} }}
optimizer {{ learning_rate: 3e-3 weight_decay: 0 }}
lr_schedule {{ steps: 10000 shape: CONSTANT }}
runtime {{ generate: true seed: 3 }}
"""


def reward(tokens):
    return np.mean(tokens[PROMPT:] > tokens[PROMPT - 1:-1])


def rollout(trainer, random):
    """Returns answers of the model as it is now, with their prompts: [PROMPTS * GROUP, LENGTH]; and their rewards."""
    answers = []
    for _ in range(PROMPTS):
        prompt = random.integers(0, TOKENS, PROMPT).tolist()
        for _ in range(GROUP):
            answers.append(prompt + trainer.generate(prompt, LENGTH - PROMPT, temperature=1.0, top_k=0,
                                                     seed=int(random.integers(1 << 62))))
    answers = np.array(answers)
    return answers, np.array([reward(answer) for answer in answers])


def samples(answers, rewards):
    """Returns the answers as data, in which the tokens of an answer weigh its advantage over its group."""
    groups = rewards.reshape(PROMPTS, GROUP)
    advantages = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)
    weights = np.repeat(advantages.reshape(-1, 1), SEQUENCE, 1)
    weights[:, :PROMPT - 1] = 0  # The prompt is given.
    rows = [{"inputs": answer[:-1], "targets": answer[1:], "weights": weight}
            for answer, weight in zip(answers, weights)]
    return shale.Samples(rows, name="answers", vocabulary=TOKENS)


def train(steps):
    """Returns the mean reward of each step."""
    random = np.random.default_rng(1)
    nothing = np.zeros((PROMPTS * GROUP, LENGTH), np.int64)
    history = []
    with shale.Trainer(shale.Job.parse(JOB), data=samples(nothing, np.zeros(len(nothing)))) as trainer:
        for _ in range(steps):
            answers, rewards = rollout(trainer, random)
            trainer.set_data(samples(answers, rewards))
            trainer.add_metric("reward", rewards.mean())
            report = trainer.step()
            history.append(rewards.mean())
            if report.step % 10 == 0:
                print(f"step {report.step}: reward {np.mean(history[-10:]):.3f}", flush=True)
    return history


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    history = train(parser.parse_args().steps)
    tenth = max(1, len(history) // 10)
    print(f"mean reward of the first tenth: {np.mean(history[:tenth]):.3f}; of the last: "
          f"{np.mean(history[-tenth:]):.3f}")


if __name__ == "__main__":
    main()
