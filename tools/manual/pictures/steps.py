"""One step of a rank on its streams, for each accumulation: the program's instructions, run on paper.

A stream runs its instructions in their order, and each begins when those that it waits for have finished. How long they
take is made up: a block's forward takes 1, its backward 2, a collective a part of that.
"""

import svg

_WIDTH, _LEFT, _RIGHT = 760, 84, 744
_LANE, _BAR = 24, 20
_STREAMS = ("gather", "compute", "reduce")
_COLORS = {"embedding": "green", "blocks.0": "blue", "blocks.1": "violet", "head": "orange"}
_FORWARD = {"embedding": 0.3, "blocks.0": 1, "blocks.1": 1, "head": 0.6}
_COLLECTIVE = {"embedding": 0.35, "blocks.0": 0.6, "blocks.1": 0.6, "head": 0.35}
_UPDATE, _SHORT = 0.12, 0.02
_GAP = 0.05  # Shorter gaps within a bar are not drawn.
_HELD = {"SHARDED": "a shard, and a unit in flight", "NO_SYNC": "the full model",
         "LAYERED": "a shard, and a unit or two in flight"}


class Bar:
    """Instructions of one unit, phase and micro-batch that follow each other on a stream."""

    def __init__(self, stream, unit, phase, micro_batch, begin, end):
        self.stream, self.unit, self.phase, self.micro_batch = stream, unit, phase, micro_batch
        self.begin, self.end = begin, end

    def joins(self, other):
        """The last unit's forward, loss and backward take turns: they are one bar."""
        return (self.unit, self.micro_batch) == (other.unit, other.micro_batch) and other.begin - self.end < _GAP \
            and (self.phase == other.phase or self.stream == "compute" and self.unit == "head")


def _seconds(program):
    """Returns how long each instruction takes. Those of a unit's forward, or backward, share its time."""
    counts = {}
    for _, stream, phase, unit, micro_batch, *_ in program["instructions"]:
        if stream == "compute" and micro_batch is not None:
            counts[phase, unit] = counts.get((phase, unit), 0) + 1
    seconds = []
    for name, stream, phase, unit, micro_batch, *_ in program["instructions"]:
        if stream == "compute" and micro_batch is not None:
            visits = 1 if phase == "forward" else 2
            seconds.append(visits * _FORWARD[unit] / counts[phase, unit])
        elif unit and name in ("AllGather", "ReduceScatterSum"):
            seconds.append(_COLLECTIVE[unit])
        else:
            seconds.append(_UPDATE if phase == "update" else _SHORT)
    return seconds


def run(program):
    """Returns the bars of a step, by stream."""
    free, finished, bars = {}, {}, {stream: [] for stream in _STREAMS}
    seconds = _seconds(program)
    for begin, end, repeat in program["loops"]:
        for iteration in range(repeat):
            for i in range(begin, end):
                _, stream, phase, unit, micro_batch, last_only, waits = program["instructions"][i]
                if last_only and iteration + 1 < repeat:
                    continue
                start = max([free.get(stream, 0), *(finished.get(w, 0) for w in waits)])
                free[stream] = finished[i] = start + seconds[i]
                if stream not in bars:
                    continue
                number = None if micro_batch is None else micro_batch + iteration
                if stream == "compute" and number is None and phase != "update":
                    continue  # Sets numbers to zero, or packs weights: too short to be seen.
                bar = Bar(stream, unit, phase, number, start, free[stream])
                if bars[stream] and bars[stream][-1].joins(bar):
                    bars[stream][-1].end = bar.end
                else:
                    bars[stream].append(bar)
    return bars


def _draw_bar(picture, bar, y, scale):
    x, width = _LEFT + bar.begin * scale, (bar.end - bar.begin) * scale
    if not bar.unit and bar.phase != "update":
        return
    says = " ".join([bar.phase, bar.unit or ""] + ([f"of micro-batch {bar.micro_batch + 1}"]
                                                   if bar.micro_batch is not None else []))
    picture.box(x, y, max(width, 2), _BAR, _COLORS.get(bar.unit, "gray"), 2, says=says)
    if bar.stream == "compute" and bar.micro_batch is not None and width > 8:
        picture.text(x + width / 2, y + 14, str(bar.micro_batch + 1), "on", "middle", 11)
        if bar.phase == "backward" or bar.unit == "head":
            picture.line([(x + 1, y + _BAR - 2), (x + width - 1, y + _BAR - 2)], "mark", 2.5)


def draw(programs):
    height = 130 + len(programs) * (len(_STREAMS) * _LANE + 44)
    picture = svg.Picture(_WIDTH, height, "One step on its streams", "For SHARDED, NO_SYNC and LAYERED: when the units "
                          "are gathered, computed and reduced in a step of two micro-batches.")
    y = picture.heading("One step on the streams of a rank, by accumulation", [
        "FULL_SHARD, two ranks, two micro-batches (1, 2) a step. The other rank does the same at the same time:",
        "gathers and reductions are collectives of both. Order and waits are those of the plans; lengths are made up."])
    x = picture.legend(20, y + 12, [(kind, "block " + unit[-1] if unit[-1].isdigit() else unit)
                                    for unit, kind in _COLORS.items()] + [("gray", "update")])
    picture.line([(x, y + 8), (x + 26, y + 8)], "mark", 2.5)
    picture.text(x + 32, y + 12, "backward (head: with its forward)", "muted", size=12)
    y += 40
    runs = {name: run(program) for name, program in programs.items()}
    longest = max(bar.end for bars in runs.values() for lane in bars.values() for bar in lane)
    scale = (_RIGHT - _LEFT) / longest
    for name, bars in runs.items():
        program = programs[name]
        picture.text(20, y + 10, name, size=14, bold=True)
        picture.text(_LEFT + 20, y + 10, f"{program['gathers']} gathers, {program['reductions']} reductions; gradients "
                     f"held: {_HELD[name]}", "muted")
        y += 20
        for stream in _STREAMS:
            picture.text(_LEFT - 8, y + 15, stream, "muted", "end", 12)
            picture.line([(_LEFT, y + _LANE - 2), (_RIGHT, y + _LANE - 2)], "edge", 1)
            for bar in bars[stream]:
                _draw_bar(picture, bar, y, scale)
            y += _LANE
        y += 24
    picture.text(_RIGHT, y - 6, "time \u2192", "muted", "end", 12)
    return picture
