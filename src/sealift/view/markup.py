"""Elements of HTML and SVG as text that is escaped by construction; a page's frame; numbers.

The frame's policy forbids the browser to load anything from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Final

VOID: Final = frozenset({"meta", "br", "hr", "col", "link", "input"})


# What draws nothing, or turns what follows around: control and bidi characters.
_HIDDEN: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), 1564, 8206, 8207, *range(8234, 8239), *range(8294, 8298)), "�")  # fmt: skip


class Markup(str):
    """Text that is markup already; any other text is escaped when it is put in."""

    __slots__ = ()


Child = str | Iterable[str]


def element(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """One element.

    Args:
        tag: Its name.
        children: Markup as it is, other text escaped.
        attributes: ``class_`` for class, ``stroke_width`` for stroke-width; None is
            left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(_write(child) for child in children))


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    numbers_from: int = 99,
    prose: bool = False,
) -> Markup:
    """A table that scrolls by itself where it is too wide.

    Args:
        headings: One per column.
        rows: Cells.
        numbers_from: Columns from this one on are aligned as numbers.
        prose: Cells are sentences: on a narrow page they stand below each other.
    """

    def style(index: int) -> str | None:
        return "number" if index >= numbers_from else None

    head = [element("th", text, class_=style(i)) for i, text in enumerate(headings)]
    body = [
        element("tr", [element("td", c, class_=style(i)) for i, c in enumerate(cells)])
        for cells in rows
    ]
    whole = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", body),
        class_="prose" if prose else None,
    )
    return element("div", whole, class_="wide")


def bullets(lines: Iterable[Child], class_: str) -> Markup:
    """A list without order."""
    return element("ul", [element("li", line) for line in lines], class_=class_)


def facts(found: Mapping[str, str]) -> Markup:
    """Names and what is known of them; what is not known is left out."""
    pairs = [
        join(element("dt", name), element("dd", said))
        for name, said in found.items()
        if said
    ]
    return element("dl", pairs)


def code(text: str) -> Markup:
    """A name, a digest, a path."""
    return element("code", text)


def of_owner(owner: str) -> Markup:
    """An owner's name in its colour."""
    return element("b", owner, class_=f"ink-{owner}")


def details(summary: str, *children: Child) -> Markup:
    """Something that is folded away."""
    return element("details", element("summary", summary), *children)


def fold(summary: str, *sections: Child) -> Markup:
    """Whole sections that few will want to read."""
    return element("details", element("summary", summary), *sections, class_="fold")


def verdict_chip(good: bool, yes: str, no: str) -> Markup:
    """A word in a frame, with a sign for those who see no colours."""
    sign, style = ("✓", "good") if good else ("✗", "bad")
    return element("span", f"{sign} {yes if good else no}", class_=f"chip {style}")


def section(title: str, lead: str, *children: Child) -> Markup:
    """A titled part of the page with one sentence that says what it shows."""
    return element(
        "section",
        element("h2", title),
        element("p", lead, class_="lead") if lead else "",
        *children,
    )


def _write(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child).translate(_HIDDEN)
    return join(*child)


def _number(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


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


def say_bytes(count: int) -> str:
    """Bytes for people: ``79.2 kB``, ``5.1 MB``, ``2.0 GB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def say_s(seconds: float) -> str:
    """Seconds for people: ``6.3 ms``, ``4.2 s``."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def say_loudly(level: str) -> str:
    """``DEVELOPMENT (rehearsing attested-host)``: no reader shall miss it."""
    return level.replace("development", "DEVELOPMENT")
