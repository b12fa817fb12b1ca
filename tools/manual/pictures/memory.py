"""The memory of one rank over the instructions of a step, by what the bytes are for."""

import svg

_WIDTH, _LEFT, _RIGHT, _FOOT, _TOP = 760, 64, 560, 400, 104
# From the bottom: what is held all the time, then what comes and goes.
_CATEGORIES = (
    ("parameter_shards", "parameter shards", "blue"), ("optimizer_state", "optimizer state", "violet"),
    ("gradient_shards", "gradient shards", "teal"), ("gathered_parameters", "gathered parameters", "green"),
    ("unsharded_gradients", "unsharded gradients", "yellow"), ("activations_kept", "activations kept", "orange"),
    ("activation_boundaries", "inputs of units", "brown"), ("workspace_of_a_unit", "workspace of a unit", "red"),
    ("loss_workspace", "workspace of the loss", "pink"), ("library_workspace", "workspace of libraries", "olive"),
    ("data", "data", "gray"),
)
_PHASES = {"begin": "", "forward": "forward", "recompute": "backward", "backward": "backward", "reduce": "backward",
           "update": "update", "end": "update"}


def _columns(memory):
    """Returns the bytes of each category at each instruction."""
    columns = [dict.fromkeys((name for name, _, _ in _CATEGORIES), 0) for _ in memory["phases"]]
    for category, size, first, last in memory["buffers"]:
        for column in columns[first:last + 1]:
            column[category] += size
    return columns


def _runs(phases):
    """Returns the stretches of one part of the step: its name, its first instruction and the one after its last."""
    runs = []
    for i, phase in enumerate(phases):
        name = _PHASES[phase]
        if runs and runs[-1][0] == name:
            runs[-1][2] = i + 1
        else:
            runs.append([name, i, i + 1])
    return runs


def draw(memory):
    columns = _columns(memory)
    count, most = len(columns), memory["peak_bytes"] * 1.12
    picture = svg.Picture(_WIDTH, 462, "Memory over a step", "The bytes of one rank at each instruction of a step, by "
                          "category, up to the planned peak.")
    picture.heading("The memory of a rank over one step", [
        "tools/jobs/quickstart with SHARDED: two ranks, two micro-batches a step, in a loop that is drawn once.",
        "A buffer counts from the first instruction that uses it to the last one."])

    def x_of(instruction):
        return _LEFT + instruction / count * (_RIGHT - _LEFT)

    def y_of(size):
        return _FOOT - size / most * (_FOOT - _TOP)

    mib = 1 << 20
    for step in range(0, int(most / mib) + 1, 10):
        picture.line([(_LEFT, y_of(step * mib)), (_RIGHT, y_of(step * mib))], "edge", 1)
        picture.text(_LEFT - 8, y_of(step * mib) + 4, f"{step} MiB" if step else "0", "muted", "end", 12)
    below = [0] * count
    for name, words, color in _CATEGORIES:
        above = [low + column[name] for low, column in zip(below, columns)]
        if any(column[name] for column in columns):
            upper = [(x_of(i + d), y_of(size)) for i, size in enumerate(above) for d in (0, 1)]
            lower = [(x_of(i + d), y_of(size)) for i, size in enumerate(below) for d in (0, 1)]
            picture.area(_corners(upper) + _corners(lower)[::-1], color, words)
        below = above
    peak = memory["peak_bytes"]
    picture.line([(_LEFT, y_of(peak)), (_RIGHT, y_of(peak))], "mark", 1.6, dashed=True)
    picture.text(_RIGHT + 10, y_of(peak) + 4, f"planned peak {peak / mib:.1f} MiB", "ink", size=12, bold=True)
    picture.line([(_LEFT, _TOP - 6), (_LEFT, _FOOT), (_RIGHT, _FOOT)])
    _draw_phases(picture, memory, x_of)
    y = _TOP + 72
    for name, words, color in reversed(_CATEGORIES):
        if max(column[name] for column in columns) * 100 > peak:  # Less than 1 % cannot be seen.
            picture.box(_RIGHT + 12, y - 10, 12, 12, color, 2)
            picture.text(_RIGHT + 30, y, words, "muted", size=12)
            y += 20
    return picture


def _corners(points):
    """Leaves out points in the middle of a level stretch."""
    return [p for i, p in enumerate(points)
            if i in (0, len(points) - 1) or not points[i - 1][1] == p[1] == points[i + 1][1]]


def _draw_phases(picture, memory, x_of):
    for name, first, end in _runs(memory["phases"]):
        if (x_of(end) - x_of(first)) < 40:
            continue
        picture.line([(x_of(first) + 2, _FOOT + 8), (x_of(end) - 2, _FOOT + 8)], width=2)
        picture.text((x_of(first) + x_of(end)) / 2, _FOOT + 24, name, "muted", "middle", 12)
    for begin, end, repeat in memory["loops"]:
        if repeat > 1:
            picture.line([(x_of(begin), _FOOT + 32), (x_of(end), _FOOT + 32)], "line", 1)
            picture.text((x_of(begin) + x_of(end)) / 2, _FOOT + 48, f"runs {repeat} times: once for each micro-batch",
                         "muted", "middle", 12)
