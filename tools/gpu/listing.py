"""Lists what a run would do, for --list."""

from gpu import plans, store


def _minutes(items):
    return sum(item.expected for item in items) / 60


def text(kit, items, kept):
    """Returns a line for each item, under lines on the machine and above the sum of the items to do."""
    first = kit.gpus[0]
    peak = plans.peak_flops(first)
    lines = [f"{name:<8} {said}" for name, said in kit.about.items() if name in ("gpus", "driver")]
    gib = plans.budget_bytes(first) / 2**30
    lines.append(f"{'jobs':<8} on GPU 0 alone, with a budget of {gib:.1f} GiB; MFU against "
                 + (f"{peak * 1e-12:,.1f} TFLOP/s" if peak else "the rate of a matmul that the engine measures"))
    to_do = [item for item in items if not item.skip and not kept.finished(item.name)]
    for item in items:
        if item.skip and not kept.finished(item.name):
            standing = f"to skip: {item.skip}"
        else:
            standing = kept.standing(item.name) + (f", {_minutes([item]):.1f} min" if item in to_do else "")
        lines.append(f"{item.name:<48} {standing}")
    skips = sum(1 for item in items if item.skip or kept.item(item.name).get("status") == store.SKIPPED)
    lines.append(f"{len(items)} items: {len(to_do)} to do in about {_minutes(to_do) / 60:.1f} hours, {skips} skipped. "
                 "Minutes are estimates.")
    return "\n".join(lines)
