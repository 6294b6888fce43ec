"""Draws lines over steps as an SVG. The panels stand side by side, and their y axes go from 0 to 1; lower values are drawn at 0."""

from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LABELS = 320, 320, 44, 68, 132, 18


class Line(NamedTuple):
    points: dict
    colour: str
    name: str
    dashed: bool = False


class Panel(NamedTuple):
    name: str
    lines: list


def text(x, y, said, colour="#57606a", size=12, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" {more}>{said}</text>'


def panel(number, name, lines):
    left, right, bottom = number * WIDTH + LEFT, (number + 1) * WIDTH - 24, HEIGHT + TOP - LABELS
    last = max(max(line.points) for line in lines)
    parts = [text(left, TOP - 14, name, "#1f2328", 13, 'font-weight="600"')]
    for share in (0, 0.5, 1):
        y = bottom - (bottom - TOP) * share
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#d8dee4"/>')
        parts.append(text(left - 6, y + 4, f"{share:.0%}", more='text-anchor="end"'))
    for step in (0, last):
        parts.append(text(left + (right - left) * step / last, bottom + 18, step or "step 0", more='text-anchor="middle"'))
    for place, line in enumerate(lines):
        path = " ".join(f"{left + (right - left) * step / last:.1f},{bottom - (bottom - TOP) * max(share, 0):.1f}" for step, share in line.points.items())
        dashed = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2.2" stroke-linejoin="round"{dashed}/>')
        y = bottom + 40 + 18 * (place % 3)
        x = left if place < 3 else left + 156
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}" stroke="{line.colour}" stroke-width="2.2"{dashed}/>')
        parts.append(text(x + 23, y, f"{line.name}: {line.points[max(line.points)]:.2f}", line.colour, 11))
    return parts


def draw(title, panels):
    """An SVG with `title` above the `panels`."""
    width, height = WIDTH * len(panels), HEIGHT + TOP + BOTTOM - 2 * LABELS - 20
    parts = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>', text(LEFT, 26, title, "#1f2328", 15, 'font-weight="600"')]
    for number, each in enumerate(panels):
        parts += panel(number, *each)
    font = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{font}">\n{body}\n</svg>\n'
