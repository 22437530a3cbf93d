"""The frame of every page: its policy forbids the browser to load anything."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from typing import Final

from sealift.view.markup import Child, Markup, element

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, banner: Child, *sections: Child) -> str:
    """A whole page as text.

    Args:
        title: Of the window.
        banner: Stands above everything, in red; empty for none.
        sections: From top to bottom.
    """
    style = resources.files("sealift.view").joinpath("style.css").read_text()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("style", Markup(style)),
    )
    above = element("div", banner, class_="banner") if banner else ""
    body = element("body", above, element("main", *sections))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def opening(eyebrow: str, title: str, told: Iterable[Child]) -> Markup:
    """The page's head: where it belongs, what it is about, sentences that say it."""
    lines = [element("li", line) for line in told]
    above = element("p", eyebrow, class_="eyebrow")
    return Markup(above + element("h1", title) + element("ol", lines, class_="told"))


def tiles(found: Iterable[tuple[str, str, str]]) -> Markup:
    """Figures side by side: of each, the figure, what it is, and a style."""
    return element(
        "div",
        [
            element(
                "div",
                element("b", figure),
                element("span", words),
                class_=f"tile {style}".strip(),
            )
            for figure, words, style in found
        ],
        class_="tiles",
    )
