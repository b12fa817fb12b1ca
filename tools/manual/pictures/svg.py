"""Draws SVG files that are readable on white and on dark pages. Needs the standard library alone.

A picture says what a thing is (`kind`), and not its color: the kinds below have one for light and one for dark pages.
"""

from xml.sax.saxutils import escape

# By kind: the color on a light page, and on a dark one.
_FILLS = {
    "paper": ("#ffffff", "#0d1117"), "soft": ("#f3f5f7", "#1a2029"), "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9aa4af"), "on": ("#10141a", "#10141a"),  # Words on one of the colors that follow.
    "blue": ("#7fb0e6", "#6aa0dc"), "orange": ("#f0b27a", "#e29a57"), "green": ("#8fcf9f", "#6fb983"),
    "violet": ("#c9a3dd", "#b58bcd"), "yellow": ("#f0d479", "#d9bc5b"), "red": ("#ee9a97", "#de7f7c"),
    "gray": ("#c3cad2", "#8b949e"), "teal": ("#86cfcf", "#5fb3b3"), "pink": ("#f0b3d0", "#d68cb0"),
    "olive": ("#c5cf8a", "#a8b35f"), "brown": ("#d3b596", "#b5946f"),
}
_STROKES = {"edge": ("#c8d0d9", "#3d444d"), "line": ("#59636e", "#9aa4af"), "mark": ("#b42318", "#ff7b72")}
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def _rules(column):
    fills = "".join(f".{kind}{{fill:{colors[column]}}}" for kind, colors in _FILLS.items())
    return fills + "".join(f".{kind}{{stroke:{colors[column]}}}" for kind, colors in _STROKES.items())


def _number(x):
    return f"{x:.1f}".removesuffix(".0")


class Picture:
    """One SVG file. The places are in pixels, from the left and the top. `alt` says in words what it shows."""

    def __init__(self, width, height, title, alt):
        self.width, self.height = width, height
        self._parts = [f"<title>{escape(title)}</title>", f"<desc>{escape(alt)}</desc>",
                       f"<style>{_rules(0)}@media (prefers-color-scheme:dark){{{_rules(1)}}}</style>",
                       '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                       'orient="auto-start-reverse"><path class="muted" d="M0 0L8 4L0 8z"/></marker></defs>']
        self.box(0.5, 0.5, width - 1, height - 1, "paper", 6)

    def text(self, x, y, words, kind="ink", anchor="start", size=13, bold=False):
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(f'<text class="{kind}" x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" '
                           f'font-size="{size}"{weight}>{escape(words)}</text>')

    def box(self, x, y, width, height, kind="soft", corner=3, edge=True, says=""):
        """`says` is what a viewer shows under the pointer."""
        stroke = " edge" if edge else ""
        title = f"<title>{escape(says)}</title>" if says else ""
        self._parts.append(f'<rect class="{kind}{stroke}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
                           f'height="{_number(height)}" rx="{corner}"' + (f">{title}</rect>" if title else "/>"))

    def line(self, points, kind="line", width=1.2, arrow=False, dashed=False):
        more = ' marker-end="url(#tip)"' if arrow else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="{path}" fill="none" stroke-width="{width}"{more}/>')

    def area(self, points, kind, says=""):
        path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points) + "z"
        title = f"<title>{escape(says)}</title>" if says else ""
        self._parts.append(f'<path class="{kind}" d="{path}">{title}</path>')

    def heading(self, words, more):
        """The title of the picture, and lines that say what is seen. Returns the y below them."""
        self.text(20, 28, words, size=16, bold=True)
        for i, line in enumerate(more):
            self.text(20, 48 + 17 * i, line, "muted")
        return 48 + 17 * len(more)

    def legend(self, x, y, entries):
        """Draws (kind, words) in a row. Returns the x behind them."""
        for kind, words in entries:
            self.box(x, y - 10, 12, 12, kind, 2)
            self.text(x + 17, y, words, "muted", size=12)
            x += 17 + 7.2 * len(words) + 16
        return x

    def __str__(self):
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                          f'viewBox="0 0 {self.width} {self.height}" role="img" font-family="{FONT}">', *self._parts,
                          "</svg>\n"])
