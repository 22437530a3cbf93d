"""`sealift completion SHELL`: what a shell completes, from the parsers themselves.

The script names every noun, verb and option as the parsers have them when it is printed,
and says where a file may stand; it starts nothing while somebody types. It knows three
shells by one table, and of each no more than how it asks and is answered.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# Texts that may be a file's name, too.
FILES: Final = frozenset({"CARD", "FILE", "INVITATION", "PATH", "source"})

# `at`: the nouns and verbs that were typed. `before`: the word before, or the option whose
# values, of which there may be many, go on. `names` and `files`: what may stand here.
_TABLE: Final = """\
    local at= before= option= names= files= each
    for each in "${typed[@]}"; do
        case $each in -*) option=$each ;; esac
        case "$at $each" in
            @PATHS@) at="${at:+$at }$each" option= ;;
        esac
        before=$each
    done
    case "$at $option" in @MANY@) before=$option ;; esac
    for each in "$at $before" "$at"; do
        case $each in
@CASES@
        esac
    done
"""
_CASE: Final = """            "{at}") names="{names}" files={files}; break ;;"""
_BASH: Final = f"""\
# For bash: eval "$(sealift completion bash)"
_sealift() {{
    local typed=("${{COMP_WORDS[@]:1:COMP_CWORD-1}}") current=${{COMP_WORDS[COMP_CWORD]}}
{_TABLE}\
    mapfile -t COMPREPLY < <(
        compgen -W "$names" -- "$current"
        [[ -n $files && $current != -* ]] && compgen -f -- "$current"
    )
}}
complete -o filenames -F _sealift sealift
"""
_ZSH: Final = f"""\
#compdef sealift
# For zsh, after compinit: eval "$(sealift completion zsh)"
_sealift() {{
    local typed=("${{(@)words[2,CURRENT-1]}}")
{_TABLE}\
    compadd -- ${{=names}}
    [[ -n $files && $PREFIX != -* ]] && _files
}}
compdef _sealift sealift
"""
_FISH_CASE: Final = "            case '{at}'\n                set names {names}; set files {files}; break"
_FISH: Final = """\
# For fish: sealift completion fish | source
function __sealift
    set -l at; set -l before; set -l option; set -l names; set -l files
    for each in (commandline -opc)
        string match -q -- '-*' $each; and set option $each
        contains -- (string join ' ' -- $at $each) @PATHS@
        and set -a at $each; and set option
        set before $each
    end
    contains -- "$at $option" @MANY@; and set before $option
    for each in "$at $before" "$at"
        switch $each
@CASES@
        end
    end
    printf '%s\\n' $names
    test -n "$files"; and __fish_complete_path (commandline -ct)
end
complete -c sealift -f -a '(__sealift)'
"""


def add_parser(subparsers: Any) -> None:
    """Add the noun `completion`."""
    parser = subparsers.add_parser(
        "completion",
        run=run,
        description='Run: eval "$(sealift completion bash)", or the same with zsh, or put this '
        "into the shell's startup file. For fish: sealift completion fish | source.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Print the script; the exit code."""
    print(_script(args.shell, _places()), end="")
    return 0


Places = dict[str, list[argparse.Action]]


def _script(shell: str, places: Places) -> str:
    in_fish = shell == "fish"
    quoted, case = ("'{}'", _FISH_CASE) if in_fish else ('"{}"', _CASE)
    between = " " if in_fish else "|"
    first = "" if in_fish else " "  # `at` is empty before a noun
    paths = [at if " " in at else first + at for at in places if at]
    options = [
        (f"{at} {name}", each)
        for at, actions in places.items()
        for each in actions
        for name in each.option_strings
    ]
    many = [at for at, each in options if each.nargs in ("+", "*")]
    cases = [
        case.format(at=at, names=" ".join(names), files="yes" * files)
        for at, names, files in _cases(places, options)
    ]
    script = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    for mark, words in (("@PATHS@", paths), ("@MANY@", many)):
        script = script.replace(mark, between.join(map(quoted.format, words)))
    return script.replace("@CASES@", "\n".join(cases))


def _places() -> Places:
    """What each parser takes, by the words that lead to it."""
    from sealift.cli.main import NOUNS, build_parser

    found: Places = {}
    for noun in NOUNS:
        found[""] = build_parser([noun])._actions  # noqa: SLF001 - no public name
        parsers = next(filter(None, map(_verbs, found[""])))
        # `join INVITATION` is typed as `join`; `broker backup` as two words.
        words = [word for word in noun.split() if word.islower()]
        _walk(parsers[noun], " ".join(words), found)
    return found


def _walk(parser: argparse.ArgumentParser, at: str, found: Places) -> None:
    actions = parser._actions  # noqa: SLF001 - no public name
    found[at] = [*found.get(at, ()), *actions]
    for each in actions:
        for name, inner in _verbs(each).items():
            _walk(inner, f"{at} {name}", found)


def _verbs(action: argparse.Action) -> dict[str, argparse.ArgumentParser]:
    """The parsers that its words lead to, if it is not an argument."""
    return action.choices if isinstance(action.choices, dict) else {}


def _cases(
    places: Places, options: list[tuple[str, argparse.Action]]
) -> Iterator[tuple[str, list[str], bool]]:
    """What may stand behind which words: names, and whether a file may."""
    for at, each in options:
        if each.nargs != 0:
            yield at, _values(each), _is_file(each)
    for at, actions in places.items():
        plain = [each for each in actions if not each.option_strings]
        ways = [each.rpartition(" ") for each in places if each]
        names = [last for above, _, last in ways if above == at]
        names += [word for each in plain if not _verbs(each) for word in _values(each)]
        known = [name for each in actions for name in each.option_strings]
        names += [name for name in known if name.startswith("--")]
        yield at, names, any(map(_is_file, plain))


def _values(action: argparse.Action) -> list[str]:
    """What it may be, where somebody would read the list."""
    many = isinstance(action.choices, range)
    return [] if many else [str(each) for each in action.choices or ()]


def _is_file(action: argparse.Action) -> bool:
    return action.type is Path or bool({action.metavar, action.dest} & FILES)
