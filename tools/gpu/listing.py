"""Lists what a run would do, for --list."""

from gpu import calls, expected, plans, store


def text(kit, items, kept, budgets):
    """Returns a line for each item, under lines on the machine, with lines where calls end, and above the sum of what
    is to do. `budgets` yields the seconds of each call."""
    first = kit.gpus[0]
    peak = plans.peak_flops(first)
    lines = [f"{name:<8} {said}" for name, said in kit.about.items() if name in ("gpus", "driver")]
    gib = plans.budget_bytes(first) / 2**30
    lines.append(f"{'jobs':<8} on GPU 0 alone, with a budget of {gib:.1f} GiB; MFU against "
                 + (f"{peak * 1e-12:,.1f} TFLOP/s" if peak else "the rate of a matmul that the engine measures"))
    done = [item for item in items if kept.finished(item.name)]
    to_do = calls.unfinished(items, kept)
    lines += [f"{item.name:<48} {kept.standing(item.name)}" for item in done]
    made, number = _calls(to_do, kept, budgets)
    skips = sum(bool(item.skip) for item in to_do) + sum(
        kept.item(item.name)["status"] == store.SKIPPED for item in done)
    todo = [item for item in to_do if not item.skip]
    return "\n".join([*lines, *made, f"{len(items)} items: {len(todo)} to do in about "
                      f"{sum(item.expected for item in todo):,.0f} s and {number} call{'s' if number != 1 else ''}, "
                      f"{skips} skipped. Seconds are estimates."])


def _calls(items, kept, budgets):
    """Returns the lines of the unfinished items, and the number of calls that they take."""
    lines, number, used, budget = [], 0, 0, 0

    def begin():
        nonlocal number, used, budget
        number, used, budget = number + 1, expected.CALL, next(budgets)

    for item in items:
        if not number:
            begin()
        if not calls.fits(item, budget - used) and used > expected.CALL:
            lines.append(_end(number, used))
            begin()
        if item.skip:
            lines.append(f"{item.name:<48} to skip: {item.skip}")
        elif not calls.fits(item, budget - used):
            lines.append(f"{item.name:<48} {item.expected:6.0f} s, more than a call of {budget:.0f} s has")
        else:
            used += item.expected
            lines.append(f"{item.name:<48} {item.expected:6.0f} s {used:8.0f} s  {kept.standing(item.name)}")
    return lines + ([_end(number, used)] if number else []), number


def _end(number, used):
    return f"---- call {number} ends after {used:.0f} s"
