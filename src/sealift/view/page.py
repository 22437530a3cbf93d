"""The frame of every page: its policy forbids the browser to load anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from sealift.view.markup import Child, Markup, element

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
LIVE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr "
    "'unsafe-inline'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


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


def whole(parts: Mapping[str, str], number: int) -> str:
    """The page with all fragments; ``view.js`` replaces what changes after a number."""
    head = _served("Sealift: a run", element("script", src="view.js", defer=""))
    lost = element("p", "No connection: has sealift ended?", id="lost", hidden="")
    skip = element("a", "Skip to the numbers", href="#numbers", class_="skip")
    banner, *rest = map(Markup, parts.values())
    body = element(
        "body", skip, banner, element("main", lost, rest), data_number=number
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def entrance(wrong: bool = False) -> str:
    """The page for who has no cookie yet: it asks for the code of the terminal."""
    head = _served("Sealift: enter the code")
    field_ = element(
        "input", name="code", id="code", autocomplete="off", autofocus="", required=""
    )
    refused = "This code is wrong. " if wrong else ""
    form = element(
        "form",
        element("label", f"{refused}The code from the terminal: ", for_="code"),
        field_,
        element("button", "Open"),
        method="post",
        action="/enter",
    )
    main = element("main", element("h1", "Sealift run"), element("section", form))
    return "<!doctype html>\n" + element("html", head, element("body", main), lang="en")


def _served(title: str, *more: Markup) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("link", rel="stylesheet", href="/style.css"),
        *more,
    )
