"""Trains a model of its own with Shale. Prints the loss of every step, saves a checkpoint at the end, and exports it.

    service.py JOB FOLDER    writes FOLDER/checkpoints and FOLDER/model.safetensors
"""

import sys

import shale

EMBEDDING, HIDDEN, LAYERS = 8, 32, 2


@shale.model(digest=f"embedding={EMBEDDING} hidden={HIDDEN} layers={LAYERS}", layers=LAYERS, last_target_only=True)
def classifier(b):
    """Concatenates the embeddings of a sequence and classifies the token that follows it."""
    vocabulary, width = b.options.vocabulary, b.options.sequence_length * EMBEDDING
    table = b.parameter(b.group("embedding"), "embedding.weight", (vocabulary, EMBEDDING))
    b.begin_unit("embedding")
    b.end_unit(b.embedding(table))
    for i in range(LAYERS):
        group = b.group(f"hidden.{i}")
        weight = b.parameter(group, f"hidden.{i}.weight", (HIDDEN, width))
        bias = b.parameter(group, f"hidden.{i}.bias", (HIDDEN,), "zeros")
        b.begin_unit(f"hidden.{i}", i)
        x = b.reshape(b.unit_input(), (b.options.micro_batch, width))
        b.end_unit(b.gelu(b.linear(x, weight, bias, "up")))
        width = HIDDEN
    head = b.group("head")
    weight = b.parameter(head, "head.weight", (vocabulary, width))
    bias = b.parameter(head, "head.bias", (vocabulary,), "zeros")
    b.begin_unit("head")
    b.linear_cross_entropy(b.unit_input(), weight, bias)
    b.end_last_unit()


def main():
    job, folder = sys.argv[1:]
    with shale.Trainer(job, model=classifier, checkpoint_folder=f"{folder}/checkpoints") as trainer:
        for report in trainer:
            print(f"step {report.step}: loss {report.loss:.6f}")
        trainer.save()
    shale.export(f"{folder}/checkpoints", f"{folder}/model.safetensors")


if __name__ == "__main__":
    main()
