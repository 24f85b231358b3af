"""Background routes: jobs and shells over HTTP, each a translation; loaded where one is first used."""

from __future__ import annotations

import re
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gymbox_sandbox.background import ID_PATTERN, JobRequest, ShellRequest, ShellRun
from gymbox_sandbox.bodies import read_as
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.event_stream import EventStream
from gymbox_sandbox.exec_routes import framed
from gymbox_sandbox.hang_up import unless_hung_up
from gymbox_sandbox.jobs import Job
from gymbox_sandbox.problems import Invalid

_LONGEST_WAIT = 3600.0


async def list_jobs(commands: Commands, request: Request) -> Response:
    return JSONResponse({"jobs": [view.model_dump() for view in commands.jobs.views()]})


async def start_job(commands: Commands, request: Request) -> Response:
    return _view(await commands.jobs.start(_id(request), await read_as(JobRequest, request)))


async def show_job(commands: Commands, request: Request) -> Response:
    job = commands.jobs[_id(request)]
    if wait := _number(request, "wait", 0.0, _LONGEST_WAIT):
        await unless_hung_up(request.receive, job.wait(wait))
    return _view(job)


async def kill_job(commands: Commands, request: Request) -> Response:
    job = commands.jobs[_id(request)]
    await job.kill()
    return _view(job)


async def forget_job(commands: Commands, request: Request) -> Response:
    await commands.jobs.forget(_id(request))
    return Response(status_code=204)


async def job_output(commands: Commands, request: Request) -> Response:
    encoding = request.query_params.get("encoding", "text")
    if encoding not in ("text", "base64"):
        raise Invalid(f"encoding is text or base64, not {encoding!r}")
    output = commands.jobs[_id(request)].output(_offset(request), encoding)
    return Response(output.model_dump_json(), media_type="application/json")


async def job_events(commands: Commands, request: Request) -> Response:
    job, offset = commands.jobs[_id(request)], _offset(request)
    events = job.follow(offset)
    return EventStream(await anext(events), events, framed)


async def list_shells(commands: Commands, request: Request) -> Response:
    return JSONResponse({"shells": [view.model_dump() for view in commands.shells.views()]})


async def open_shell(commands: Commands, request: Request) -> Response:
    shell = await commands.shells.open(_id(request), await read_as(ShellRequest, request))
    return Response(shell.view().model_dump_json(), media_type="application/json")


async def show_shell(commands: Commands, request: Request) -> Response:
    return Response(commands.shells[_id(request)].view().model_dump_json(), media_type="application/json")


async def run_in_shell(commands: Commands, request: Request) -> Response:
    wanted = await read_as(ShellRun, request)
    run = partial(commands.shells.run, _id(request), wanted)
    result = await unless_hung_up(request.receive, run())
    return Response(result.model_dump_json(), media_type="application/json")


async def close_shell(commands: Commands, request: Request) -> Response:
    commands.shells.close(_id(request))
    return Response(status_code=204)


def _view(job: Job) -> Response:
    return Response(job.view().model_dump_json(), media_type="application/json")


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    if not re.fullmatch(ID_PATTERN, id):
        raise Invalid(f"{id!r} is no id: up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return id


def _offset(request: Request) -> int:
    return int(_number(request, "offset", 0, 1e15))


def _number(request: Request, name: str, default: float, most: float) -> float:
    text = request.query_params.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise Invalid(f"{name} is a number from 0 to {most:g}, not {text!r}")
    return number
