"""Stacks as others have written them, made fit to be shown: the thread that trains first, bounded, without what a
terminal or a page would act on. Pure."""

from __future__ import annotations

import re

from megatronapp.core.trace.limits import MAX_STACK

CUT = "\n…"
_CURRENT = "Current thread"
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)


def shown(text: str, most: int = MAX_STACK) -> str:
    """At most so many characters."""
    clean = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text).strip()
    return clean if len(clean) <= most else clean[: most - len(CUT)] + CUT


def in_order(dump: str) -> str:
    """Of faulthandler's, which tells of the thread that took the signal, mostly the main one, last."""
    threads = [thread.strip() for thread in _THREAD.split(dump) if thread.strip()]
    return "\n\n".join(sorted(threads, key=lambda thread: not thread.startswith(_CURRENT)))
