"""Wire: the requests and answers of a sandbox's server.

Sandbox server (over the sandbox's unix socket, or through the proxy as ``/sandboxes/{id}/…``). The proxy asks for a
token: `tools` may call what stands under *tools*; `control` may call everything.

    GET    /healthz                 -> Health                       (tools)
    GET    /tools                   -> {"tools": [definition, …]}   (tools)
    POST   /tools/{name}            JSON object of arguments -> ToolResult      (tools)
    *      /<the author's own routes>                               (tools)
    POST   /reset                   ResetRequest -> ResetAnswer     (control; `/seed_session` is an alias)
    POST   /verify/prepare          closes the tools and ends what the agent has running        (control)
    POST   /verify                  VerifyRequest -> Verdict        (control)
    POST   /verify/answers          {"answers": [{number, text, value, tokens}, …]} -> as /verify  (control)
    POST   /snapshot/save           SaveRequest -> Saved            (control; for the controller)
    POST   /snapshot/load           LoadRequest -> {}               (control; for the controller)
    POST   /exec                    ExecRequest -> ExecResult, or server-sent events when `stream`   (control)
    POST   /exec/{exec_id}/stdin    raw bytes; `?eof=1` closes it   (control)
    POST   /exec/{exec_id}/resize   {"rows": n, "columns": n}       (control)
    POST   /exec/{exec_id}/signal   {"signal": "SIGINT"}            (control)
    PUT    /exec/jobs/{id}          JobRequest -> JobView; the same again finds the job that it started     (control)
    GET    /exec/jobs               -> {"jobs": [JobView, …]}       (control)
    GET    /exec/jobs/{id}          -> JobView; `?wait=SECONDS` until it has ended, or so long  (control)
    GET    /exec/jobs/{id}/output   -> JobOutput; `?offset=N`, `&encoding=base64`               (control)
    GET    /exec/jobs/{id}/events   -> server-sent events from `?offset=N` on, as of a streamed exec, and
                                       `dropped {bytes}`; who hangs up can come again           (control)
    POST   /exec/jobs/{id}/kill     -> JobView; its whole tree is killed                        (control)
    DELETE /exec/jobs/{id}          kills and forgets it; its id cannot be used again           (control)
    PUT    /exec/shells/{id}        ShellRequest -> ShellView; the same again finds the same    (control)
    GET    /exec/shells             -> {"shells": [ShellView, …]}   (control)
    GET    /exec/shells/{id}        -> ShellView                    (control)
    POST   /exec/shells/{id}/run    ShellRun -> ShellResult         (control)
    DELETE /exec/shells/{id}        kills and forgets it            (control)
    GET    /files/watch?path=…      -> server-sent events `ready`, `change`, `overflow`; `&recursive=0`  (control)
    GET    /files?path=…            -> the bytes                    (control)
    PUT    /files?path=…&mode=644   the bytes -> {"size": n}        (control)
    GET    /archive?path=…          -> tar of a tree; with `&only=…`, once or more, of what matches  (control)
    PUT    /archive?path=…          tar -> {"files": n}             (control)
    GET    /sessions                -> {"sessions": [id, …], "resets": {id: seconds ago}}   (control)
    DELETE /sessions                {"sessions": [id, …]}: ends their instances             (control)

Several tasks may share one sandbox server (`sessions: N`): the header ``X-Gymbox-Session`` names the instance that a
call is for; whoever forwards sets it, a caller's own is dropped. No header means the session ``""``; only without one
``/sessions`` tells, and ends, all of them.

With the header ``X-Gymbox-Judge``, `/verify` may answer 202 and ``{"questions": [{number, params, sample}, …]}``:
what its `verify` asks a judge. Whoever called asks one and brings the answers to `/verify/answers`, until there is a
verdict; ``{number, failed: why}`` where it gave none. Asked again, either call tells what still has no answer.

A body has at most 4 MiB where the tools token suffices and 64 MiB elsewhere, but for files and a command's raw input.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gymbox_sandbox.responses import Response

SESSION_HEADER = "X-Gymbox-Session"
JUDGE_HEADER = "X-Gymbox-Judge"
SERVER_SOCKET = "server.sock"
"""Name of the server's socket inside the sandbox's directory."""
READY_SOCKET = "ready.sock"
"""Name of the socket on which the starter waits: the server connects to it once it answers, writes `ready\\n` (or
`failed <json problem>\\n`) and keeps the connection open for as long as it lives, so its end is seen at once."""


class Strict(BaseModel):
    # built when first used: a server of most sandboxes never needs most of them, and begins to answer sooner
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Health(Strict):
    status: Literal["ok"] = "ok"
    environment: str
    version: str
    sessions: int
    """Instances alive now."""
    snapshot: str = ""
    """Id of the snapshot that it was made from, once that is in place."""


class ResetRequest(Strict):
    task: dict[str, Any]
    """The row, without what is hidden from the agent."""


class ResetAnswer(Strict):
    tools: list[dict[str, Any]]
    """Definitions in the Responses API's function-tool form."""


class SessionsEnd(Strict):
    sessions: list[str]
    """Names; such as there are none of are fine."""


class VerifyRequest(Strict):
    task: dict[str, Any]
    """The whole row, hidden parts included."""
    response: Response


class ToolResult(Strict):
    output: str
    is_error: bool = False


class Pty(Strict):
    rows: int = Field(24, ge=1, le=1000)
    columns: int = Field(80, ge=1, le=1000)


class ExecRequest(Strict):
    command: str | list[str]
    """A list is run as it is; a string by `/bin/bash -c` where there is bash, else `/bin/sh -c`."""
    stdin: str | None = None
    """Base64. None: no input (an empty one), unless `stdin_open`."""
    stdin_open: bool = False
    """Streamed exec only: input follows by `POST /exec/{exec_id}/stdin`."""
    cwd: str | None = None
    """Default: the workspace."""
    env: dict[str, str] = Field(default_factory=dict)
    timeout: float = Field(60, gt=0, le=86_400)
    """Seconds; then the whole process tree is killed."""
    output_limit: int = Field(1_000_000, ge=0, le=8_000_000)
    """Bytes kept of each of stdout and stderr, from the start; what exceeds it is counted, not kept. A streamed exec
    keeps nothing and sends all: the command waits for a slow reader."""
    encoding: Literal["text", "base64"] = "text"
    """`text` replaces what is not UTF-8; `base64` is byte-exact."""
    stream: bool = False
    """Answer as server-sent events: `started {exec_id, pid}` (pid 0: it was killed before it ran), `stdout`/`stderr
    {data}` (base64), and last `exit` with the ExecResult (stdout and stderr left empty), or `error` with a problem.
    Hanging up, streamed or not, kills the command's whole tree."""
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Plain exec only: the caller's name for this very request. Asked again with the same id and body, the command is
    not run again: its answer is, or will be, that of the first. It runs to its end or timeout whether or not its
    caller stays. Another body under the id is a conflict (409); an answer that is no longer kept (the last 256 are, up
    to 16 MB) is gone (410)."""
    pty: Pty | None = None
    """Streamed exec only: run on a terminal; everything comes as `stdout`."""


class ExecResult(Strict):
    exit_code: int | None
    """None if it was killed by a signal."""
    signal: int | None = None
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    """Size of the whole output; larger than what is kept where `truncated`."""
    stderr_bytes: int = 0
    truncated: bool = False
    duration: float
    """Seconds."""
