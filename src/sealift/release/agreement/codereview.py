"""What an owner approves when it approves code: the files, and what changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sealift.release.agreement import CodeBundle
from sealift.release.agreement.code import Files, diff_bundles
from sealift.release.agreement.explain import count
from sealift.release.visible import visible


def review_code(
    agreed: CodeBundle,
    *,
    before: CodeBundle | None,
    files: Files | None,
    files_before: Files | None,
) -> Iterator[str]:
    """The list of files with their fate, then the diff as far as the bytes are there.

    Args:
        agreed: The bundle of the agreement.
        before: The bundle of its predecessor, if it has one.
        files: The bundle's bytes, checked against ``agreed``.
        files_before: The predecessor's bytes, checked against ``before``.
    """
    yield f"bundle {agreed.digest}, {count(len(agreed.files), 'file')}, entry {agreed.entry}"
    yield from _fates(agreed, before)
    if files is None:
        yield "no diff: give the folder with --bundle"
    elif before is not None and files_before is None:
        yield "no diff: give the predecessor's folder with --predecessor-bundle"
    else:
        yield from diff_bundles(files_before or {}, files)


def _fates(agreed: CodeBundle, before: CodeBundle | None) -> Iterator[str]:
    earlier = before.files if before else {}
    for name in sorted(agreed.files.keys() | earlier.keys()):
        after, prior = agreed.files.get(name), earlier.get(name)
        digest = after or prior
        fate = _fate(prior is not None, after is not None, same=after == prior)
        yield f"  {fate:<9}  {digest.short if digest else ''}  {visible(name)}"


def _fate(was: bool, stays: bool, *, same: bool) -> str:
    if not stays:
        return "removed"
    if not was:
        return "added"
    return "unchanged" if same else "changed"
