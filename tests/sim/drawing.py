"""What each role of a month used, run after run, as a picture."""

from __future__ import annotations

from typing import Any

WIDE, HIGH, EDGE = 640, 220, 48


def drawn(figures: list[dict[str, Any]], roles: tuple[str, ...]) -> str:
    """SVG with one line a role: memory of its first process above, its folder's size below."""
    whole = 2 * (HIGH + EDGE)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {whole}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for panel, (key, title) in enumerate(
        (("memory", "memory of the first process, MiB"), ("disk", "its folder, MiB"))
    ):
        rows = {role: [run[role][key] / 1024 for run in figures] for role in roles}
        # A role that was between two processes just then has no memory to show.
        rows = {role: [each for each in row if each] for role, row in rows.items()}
        top = max((each for row in rows.values() for each in row), default=1.0)
        base = panel * (HIGH + EDGE) + HIGH + EDGE / 2
        parts += [
            f'<text x="{EDGE}" y="{base - HIGH - 6}">{title}</text>',
            f'<text x="4" y="{base - HIGH + 12}">{top:.1f}</text>',
            f'<text x="4" y="{base}">0</text>',
            f'<path d="M{EDGE} {base - HIGH}V{base}H{WIDE - 8}" fill="none" stroke="gray"/>',
        ]
        for number, row in enumerate(rows.values()):
            step = (WIDE - EDGE - 8) / max(len(row) - 1, 1)
            points = " ".join(
                f"{EDGE + at * step:.1f},{base - each / top * HIGH:.1f}"
                for at, each in enumerate(row)
            )
            hue = number * 360 // len(roles)
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="hsl({hue},70%,45%)"/>'
            )
    return "\n".join([*parts, "</svg>", ""])
