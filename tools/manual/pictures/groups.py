"""Who may include whom, from the table of tests/house_test.py: groups of packages, from those that use to the used."""

import textwrap

import svg

_WIDTH, _BOX_HEIGHT, _GAP = 760, 66, 34
_LETTER = 7  # How wide a letter is at the most, on average.


def group_of(package):
    """Returns "engine/plan" for engine/plan/config, "engine/c" for itself, and "kernels" for kernels/cpu."""
    parts = package.split("/")
    return "/".join(parts[:2]) if parts[0] == "engine" else parts[0]


def _uses(may_include):
    """Returns which groups each group includes, and the packages of each."""
    uses, packages = {}, {}
    for package, allowed in may_include.items():
        group = group_of(package)
        packages.setdefault(group, []).append(package)
        uses.setdefault(group, set()).update(group_of(other) for other in allowed)
    return {group: {other for other in others if other != group and other in uses}
            for group, others in uses.items()}, packages


def _reaches(uses, start):
    seen, todo = set(), [start]
    while todo:
        for other in uses[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def _direct(uses):
    """Leaves out the arrows that a longer way implies."""
    return {group: {other for other in others
                    if not any(other in _reaches(uses, between) for between in others if between != other)}
            for group, others in uses.items()}


def _layers(uses):
    """Returns rows of groups: each group above all that it uses."""
    height = {}

    def above(group, path=()):
        if group in path:
            raise ValueError(f"a circle of groups: {' -> '.join((*path, group))}")
        if group not in height:
            height[group] = 1 + max((above(other, (*path, group)) for other in uses[group]), default=-1)
        return height[group]

    for group in uses:
        above(group)
    rows = [[] for _ in range(max(height.values()) + 1)]
    for group, row in height.items():
        rows[-1 - row].append(group)
    return rows


def draw(may_include):
    uses, packages = _uses(may_include)
    arrows, rows = _direct(uses), _layers(uses)
    picture = svg.Picture(_WIDTH, 86 + len(rows) * (_BOX_HEIGHT + _GAP) - _GAP + 20, "The groups of packages",
                          "; ".join(f"{group} uses {', '.join(sorted(others))}" for group, others in arrows.items()))
    y = picture.heading("Who may include whom", [
        "Each group uses what lies below it along the arrows. tests/house_test.py checks every include."]) + 10
    places = {}
    for row in rows:
        width = min(700, (_WIDTH - 40 - 16 * (len(row) - 1)) / len(row))
        x = (_WIDTH - width * len(row) - 16 * (len(row) - 1)) / 2
        for group in row:
            places[group] = (x, y, width)
            x += width + 16
        y += _BOX_HEIGHT + _GAP
    for group, others in arrows.items():
        for other in sorted(others):
            _draw_arrow(picture, places[group], places[other])
    for group, (x, y, width) in places.items():
        _draw_group(picture, group, packages[group], x, y, width)
    return picture


def _draw_arrow(picture, above, below):
    (x1, y1, width1), (x2, y2, width2) = above, below
    left, right = max(x1, x2), min(x1 + width1, x2 + width2)
    start = end = (left + right) / 2
    if left + 20 > right:
        start, end = x1 + width1 / 2, x2 + width2 / 2
    picture.line([(start, y1 + _BOX_HEIGHT), (end, y2 - 2)], arrow=True, width=1.4)


def _draw_group(picture, group, packages, x, y, width):
    names = ", ".join(sorted(package[len(group) + 1:] for package in packages if package != group))
    lines = textwrap.wrap(names, int((width - 16) / _LETTER))
    picture.box(x, y, width, _BOX_HEIGHT, "soft", 5, says=group)
    picture.text(x + width / 2, y + 39 - 8 * len(lines), group.removeprefix("engine/"), "ink", "middle", 14, True)
    for i, line in enumerate(lines):
        picture.text(x + width / 2, y + 58 - 8 * len(lines) + 16 * i, line, "muted", "middle", 12)
