"""From a job to a running step: what each stage gives, and which packages decide it."""

import svg

_WIDTH, _LEFT, _BOX, _GAP = 760, 20, 46, 44


def _stages(plan):
    """Pairs of a value, with what it is and what it is in one job, and the packages that make the next value of it."""
    return [
        (("job spec", "what to train, and on how many ranks", "quickstart.textproto"),
         ("config", "checks every field, decides every default")),
        (("resolved job", "plain structs; nothing below reads the spec",
          f"{plan['ranks']} ranks, {plan['micro_batches']} micro-batches a step"),
         ("model, graph", "builds the model unit by unit, and derives the backward")),
        (("graph", "forward and backward of one micro-batch", f"{plan['units']} units, "
          f"{plan['parameters'] / 1e6:.1f} M parameters"),
         ("step", "decides what is gathered, reduced, recomputed and offloaded, and when")),
        (("step program", "all that one rank does in one optimizer step", f"{plan['instructions']} instructions, "
          f"{plan['buffers']} buffers"),
         ("memory", "decides every address and wait; proves that no needed byte is overwritten")),
        (("memory plan", "the peak of a rank; a job that has no room ends here", f"{plan['peak_bytes']:,} bytes"),
         ("runtime", "allocates an arena for each rank, starts the streams, decides nothing")),
        (("executor", "each rank walks this program; collectives exchange shards",
          f"{plan['ranks']} ranks, an arena each"),
         None),
    ]


def draw(plan):
    stages = _stages(plan)
    height = 76 + len(stages) * _BOX + (len(stages) - 1) * _GAP + 18
    picture = svg.Picture(_WIDTH, height, "How a step becomes a program", "From top to bottom: " + "; ".join(
        f"{value[0]} ({value[1]})" for value, _ in stages))
    y = picture.heading("How a step becomes a program", ["At the right: what it is for tools/jobs/quickstart."]) + 8
    for (name, what, here), maker in stages:
        picture.box(_LEFT, y, _WIDTH - 2 * _LEFT, _BOX, "blue" if name == "step program" else "soft", 5)
        on = "on" if name == "step program" else ""
        picture.text(_LEFT + 14, y + 28, name, on or "ink", size=15, bold=True)
        picture.text(_LEFT + 134, y + 28, what, on or "ink")
        picture.text(_WIDTH - _LEFT - 14, y + 28, here, on or "muted", "end", 12)
        y += _BOX
        if maker:
            picture.line([(_LEFT + 60, y + 2), (_LEFT + 60, y + _GAP - 2)], arrow=True, width=1.6)
            picture.text(_LEFT + 80, y + 27, maker[0], bold=True)
            picture.text(_LEFT + 188, y + 27, maker[1], "muted")
            y += _GAP
    return picture
