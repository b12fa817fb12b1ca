"""A flat group: the parameters of a unit in one vector, of which each rank owns a shard."""

import svg

_WIDTH, _LEFT, _RIGHT = 760, 20, 740
_COLORS = ("gray", "blue", "violet", "gray", "orange", "green")
_STATES = (("weights", "weights"), ("m", "m"), ("v", "v"), ("gradient", "gradient"))


def _shape(shape):
    return " \u00d7 ".join(map(str, shape))


def _kib(size):
    return f"{size / 1024:.3g} KiB"


def draw(group):
    whole, shard = group["gathered_bytes"], group["shard_bytes"]
    ranks = whole // shard
    scale = (_RIGHT - _LEFT) / whole
    picture = svg.Picture(_WIDTH, 430, "A flat group and its shards", f"The parameters of a block lie in one vector; "
                          f"each of {ranks} ranks owns a third of it, and as much of the optimizer's state.")
    y = picture.heading("A flat group and its shards", [
        f"The parameters of a block lie one after the other in one vector, which is cut into {ranks} equal shards,",
        "wherever the cuts fall. A rank owns a shard of the weights, of the gradient and of AdamW's m and v."])
    picture.text(_LEFT, y + 16, f"the gathered group: {_kib(whole)} on every rank, while the block computes", bold=True)
    top = y + 28
    ends = [offset for _, offset, _ in group["parameters"][1:]] + [whole]
    for (name, offset, shape), end, color in zip(group["parameters"], ends, _COLORS):
        x, width = _LEFT + offset * scale, (end - offset) * scale
        picture.box(x, top, max(width, 3), 44, color, 1, says=f"{name} {_shape(shape)}")
        if width > 60:
            picture.text(x + width / 2, top + 19, name, "on", "middle", 12)
            picture.text(x + width / 2, top + 35, _shape(shape), "on", "middle", 11)
        else:
            before = name == "attention.out"  # Its words end below it; those of the others begin there.
            place = x + width - 6 if before else x + 1.5
            picture.line([(place, top + 44), (place, top + 54)])
            picture.text(place, top + 66, name, "muted", "end" if before else "start", 11)
    for rank in range(1, ranks):
        x = _LEFT + rank * shard * scale
        picture.line([(x, top - 8), (x, top + 50)], "mark", 2, dashed=True)
    # The collectives.
    middle, bottom = top + 90, top + 142
    for rank in range(ranks):
        x = _LEFT + (rank + 0.5) * shard * scale
        picture.line([(x - 70, bottom), (x - 70, middle)], arrow=True, width=1.6)
        picture.text(x - 62, middle + 22, "gather:", bold=True, size=12)
        picture.text(x - 62, middle + 38, "all shards to all", "muted", size=12)
        picture.line([(x + 42, middle), (x + 42, bottom)], arrow=True, width=1.6)
        picture.text(x + 50, middle + 22, "reduce:", bold=True, size=12)
        picture.text(x + 50, middle + 38, "sums", "muted", size=12)
    # What each rank holds.
    y = bottom + 8
    width = shard * scale - 16
    for rank in range(ranks):
        x = _LEFT + rank * shard * scale + 8
        picture.box(x, y, width, 148, "soft", 5)
        picture.text(x + 10, y + 20, f"rank {rank}", bold=True)
        picture.text(x + width - 10, y + 20, f"{_kib(shard)} each", "muted", "end", 12)
        for i, (_, words) in enumerate(_STATES):
            top = y + 30 + 29 * i
            _draw_shard(picture, group, ends, rank * shard, x + 10, top, (width - 20) / shard)
            picture.text(x + width / 2, top + 16, words, "on", "middle", 12)
    return picture


def _draw_shard(picture, group, ends, first, x, y, scale):
    """Draws the part of the group that begins at byte `first`, in the colors of its parameters."""
    last = first + group["shard_bytes"]
    for (_, offset, _), end, color in zip(group["parameters"], ends, _COLORS):
        begin, stop = max(offset, first), min(end, last)
        if begin < stop:
            picture.box(x + (begin - first) * scale, y, max((stop - begin) * scale, 2), 23, color, 1, edge=False)
