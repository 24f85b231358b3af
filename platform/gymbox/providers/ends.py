"""Ends: why a server is no more, told alike by every provider."""

from __future__ import annotations

import errno
import os
import signal

from gymbox_sandbox.lifecycle import EndCause, Ended

from gymbox.errors import StartFailed

KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
LOG_LIMIT = 8 * 1024
"""Bytes of its last lines that are kept: what an agent prints may be one endless line."""
LOG_LINES = 50


def why_it_ended(
    id: str, exit_code: int, logs: str, *, out_of_memory_at: int | None = None, service: str | None = None
) -> Ended:
    """What the end of a sandbox's server means, or that of its `service`.

    Args:
        exit_code: its own, or 128 and the number of the signal that ended it.
        out_of_memory_at: MiB that it was allowed, if it ran out of memory just before.
    """
    who, server = (id, f"the server of {id}") if service is None else (f"service {service}",) * 2
    if out_of_memory_at is not None and exit_code != 0:
        cause: EndCause = "oom_killed"
        detail = f"{who} ran out of memory: it may use {out_of_memory_at} MiB (limits.memory_mb)"
    elif exit_code != 0 and os.strerror(errno.ENOSPC) in logs:
        cause = "disk_full"
        detail = f"{who} ended with exit code {exit_code} because a file system was full (limits.workspace_mb, tmp_mb)"
    elif exit_code in KILLED:
        cause, detail = "killed", f"{who} was killed from outside by {signal.Signals(exit_code - 128).name}"
    else:
        cause, detail = "exited", f"{server} ended by itself with exit code {exit_code}"
    return Ended(cause=cause, detail=detail, exit_code=exit_code, logs=logs)


def never_ready(ended: Ended) -> StartFailed:
    """The failure of a start whose server ended before it was ready: see `Ended.cause`."""
    if ended.cause in ("oom_killed", "disk_full"):
        return StartFailed(ended)
    detail = f"{ended.detail}, before it was ready"
    return StartFailed(ended.model_copy(update={"cause": "failed_to_start", "detail": detail}))


def last_lines(log: bytes, lines: int = LOG_LINES, limit: int = LOG_LIMIT) -> str:
    """The end of a log: so many lines, and so many bytes at most."""
    text = log[-limit:].decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
