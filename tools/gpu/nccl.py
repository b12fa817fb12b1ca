"""Defines items that try NCCL between processes that share the first GPU, by tools/try_nccl."""

import os
import sys

from gpu import child, outcome, store
from gpu.kit import Item


def check(name, processes, seconds):
    """Returns an item that runs one check of tools/try_nccl."""
    def work(kit, item, limit):
        path = kit.log(item.name) + ".json"
        store.remove(path)
        command = [sys.executable, os.path.join(kit.root, "tools", "try_nccl"), name, f"--processes={processes}",
                   f"--train={kit.program('train')}", f"--plan={kit.program('plan')}", f"--json={path}"]
        ended = child.run(command, {**kit.environment, "CUDA_VISIBLE_DEVICES": kit.visible(0)}, kit.log(item.name),
                          limit, folder=kit.out)
        result = outcome.read_json(path)
        wrong = result["about"] if result and result["status"] != store.PASSED else ""
        return outcome.of(ended, result, wrong)
    return Item(f"try_nccl/{name}/{processes}", outcome.needs("train", work), seconds)
