"""Sandbox: a sandbox for a Python program, of any image.

    async with Sandbox("debian:trixie-slim") as box:
        result = await box.exec("echo hello")
        print(result.exit_code, result.stdout)

What fails is raised as a Problem; a command that fails is none: its result says how it ended.
"""

from __future__ import annotations

import asyncio
import base64
import posixpath
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from gymbox_sandbox.wire import ExecRequest, ExecResult, Pty
from pydantic import ValidationError

from gymbox.client import ControllerClient
from gymbox.environment import Environment, explain
from gymbox.errors import ConfigError, Invalid, nearest
from gymbox.execution import Execution
from gymbox.http import HttpClient
from gymbox.requests import address
from gymbox.runs.environments import EnvironmentChoice, environments_of
from gymbox.runs.places import Places
from gymbox.runs.reach import reach
from gymbox.sandbox_client import SandboxClient
from gymbox.sdk.arguments import Content, as_bytes, given_of, known_to_controller, unfit
from gymbox.sdk.collected import LARGE_OUTPUT, LARGE_STDIN, collected
from gymbox.sdk.host import ProviderChoice, check_provider, shared_host
from gymbox.sdk.plain_environment import PlainEnvironment, plain_environment
from gymbox.sdk.pool import SandboxPool, of_its_own_kind
from gymbox.sdk.trees import pack, unpack

_OF_EACH = frozenset({"provider", "places", "cwd", "env", "timeout"})
"""Arguments that say nothing of what a sandbox is made of."""


class Sandbox:
    """A sandbox for as long as the block lasts; each block has a new one, and it is removed however the block is left.

    Sandboxes of one event loop share a controller in this process, which the first of them starts and the last closes;
    `Sandbox.host()` keeps it in between. What a process leaves that is killed, the next one removes.

    Args:
        image: any Linux image, such as `debian:trixie-slim` or `name@sha256:…`, pulled where it is missing. None:
            Debian with Python; of the process provider, this machine.
        environment: in the place of an image: an environment's name, its folder, or an `Environment`. Its `reset`,
            tools and `verify` are methods of `client`.
        provider: `docker`, `process`, `auto` (Docker where an engine answers), or an object.
        controller: address of a running controller, in the place of a provider. It knows environments by their names;
            an image it takes from nobody.
        token: that controller's admin token; default: as for the command line.
        cwd: where commands run and from where relative paths count; a relative one counts from the workspace, which
            is the default. It is not made.
        env: variables of every command.
        timeout: seconds that a command may take that does not say otherwise.
        network: what environment.yaml can say of it; default: none.
        places: where environments, controllers' states and the admin token are; by default as for the command line.
        limits: any field of environment.yaml's `limits`: `cpus`, `memory_mb`, `pids`, `workspace_mb`, …

    Raises:
        ConfigError: these arguments make no sandbox; nothing was started.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        environment: EnvironmentChoice | None = None,
        provider: ProviderChoice = "auto",
        controller: str | None = None,
        token: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        network: Any = None,
        places: Places | None = None,
        **limits: Any,
    ) -> None:
        self.cwd = cwd
        self.env: dict[str, str] = {}
        self.timeout = timeout
        self._places = places or _here()
        self._provider = provider
        self._controller = controller
        self._token = token
        self._stack = AsyncExitStack()
        self._client: SandboxClient | None = None
        self._url = ""
        try:
            self.env = self._request(command="true", env=env).env
        except Invalid as error:
            raise ConfigError(f"the defaults of commands are wrong: {error.detail}") from error
        if controller is not None:
            check_provider(provider)
            address(controller, "controller")
            self._name = known_to_controller(image, environment, network, limits)
            return
        if token is not None:
            raise ConfigError("token= is for a controller that runs elsewhere: add controller=http://…")
        self._environment = self._wanted(image, environment, network, limits)
        check_provider(provider, self._environment)

    def _wanted(
        self, image: str | None, environment: EnvironmentChoice | None, network: Any, limits: Mapping[str, Any]
    ) -> Environment:
        if environment is None:
            return plain_environment(image, network, limits)
        if given := given_of(image, network, limits):
            raise ConfigError(f"{given} cannot be given with environment=: its environment.yaml says that")
        return environments_of([environment], self._places.environments)[0]

    @staticmethod
    def host(provider: ProviderChoice = "auto", *, places: Places | None = None) -> AbstractAsyncContextManager[Any]:
        """Keeps the controller of this event loop for this provider while the block lasts, so that a sandbox after
        another need not start it anew.

        Raises:
            ConfigError: there is no such provider; nothing was started.
            Problem, ConfigError: (on entering) the provider cannot be used.
        """
        check_provider(provider)
        return shared_host(provider, places or _here())

    @staticmethod
    def pool(image: str | None = None, *, size: int, ceiling: int | None = None, **settings: Any) -> SandboxPool:
        """Keeps `size` sandboxes started while its block lasts, so that each that is asked for opens in milliseconds.

        Args:
            ceiling: how many may wait where more are asked for than `size`; default: four times as many.
            settings: those of each Sandbox. A controller elsewhere has pools of its own: `gymbox pool set`.

        Raises:
            ConfigError: these arguments make no sandbox, or no pool; nothing was started.
        """
        if settings.get("controller") is not None:
            raise ConfigError("controller= has pools of its own: `gymbox pool set ENVIRONMENT --target N` there")
        first = Sandbox(image, **settings)
        environment = first._environment
        if isinstance(environment, PlainEnvironment):
            environment = of_its_own_kind(environment)
        kept = {name: value for name, value in settings.items() if name in _OF_EACH}

        def make() -> Sandbox:
            return Sandbox(environment=environment, **kept)

        return SandboxPool(environment, make, first._provider, first._places, size=size, ceiling=ceiling)

    async def __aenter__(self) -> Self:
        """
        Raises:
            ConfigError: the controller cannot be used, or has no such environment.
            ImageNotPulled, RegistryAway, ImageBuildFailed: there is no such image, or no sandbox can have it.
            StartFailed, AtCapacity, Unavailable: it did not become ready.
            RuntimeError: it is open already.
        """
        if self._client is not None:
            raise RuntimeError("this sandbox is open already; make another Sandbox for another one")
        async with AsyncExitStack() as stack:
            place = self._in_here if self._controller is None else self._elsewhere
            self._client = await place(stack)
            stack.callback(self._forget)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def client(self) -> SandboxClient:
        """All that can be asked of it: `reset`, `tools` and `verify` of an environment, too.

        Raises:
            RuntimeError: it is not open.
        """
        if self._client is None:
            raise RuntimeError("this sandbox is not open: use it inside `async with Sandbox(…) as box:`")
        return self._client

    @property
    def id(self) -> str:
        """What `gymbox sandbox` and the REST API call it."""
        return self.client.id

    @property
    def controller_url(self) -> str:
        """Of the REST API that knows it: `gymbox sandbox shell ID --controller URL`."""
        return self._url

    async def exec(
        self,
        command: str | list[str],
        *,
        stdin: Content | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        output_limit: int = 1_000_000,
    ) -> ExecResult:
        """Run a command as the agent's user and wait for its end; cancelling kills its whole tree.

        Args:
            command: a list is run as it is; a string by the shell.
            stdin: its input, of any size.
            cwd: default: the sandbox's; a relative one is relative to that.
            env: in addition to the sandbox's.
            timeout: seconds; then its whole tree is killed and the result says `timed_out`.
            output_limit: bytes kept of each of stdout and stderr.

        Raises:
            Invalid: an argument is wrong, or there is no such directory.
            SandboxEnded: the sandbox is no more, with the cause.
        """
        given = as_bytes(stdin)
        large = isinstance(output_limit, int) and output_limit > LARGE_OUTPUT
        kept = LARGE_OUTPUT if large else output_limit
        request = self._request(command=command, cwd=cwd, env=env, timeout=timeout, output_limit=kept)
        if len(given) > LARGE_STDIN or large:
            return await collected(self.client, request, given, output_limit)
        options = request.model_dump(exclude_unset=True, exclude={"command"})
        if given:
            options["stdin"] = base64.b64encode(given).decode()
        return await self.client.exec(command, **options)

    def exec_stream(
        self,
        command: str | list[str],
        *,
        stdin: Content | None = None,
        stdin_open: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        pty: Pty | None = None,
    ) -> AbstractAsyncContextManager[Execution]:
        """Run a command and follow its output as it comes; leaving the block early kills its whole tree.

            async with box.exec_stream("make") as execution:
                async for event in execution.events():
                    print(event.name, event.output)

        Args:
            stdin: input that is known; with `stdin_open`, more follows by `Execution.write`.
            pty: run on a terminal of this size; all output comes as stdout.

        Raises:
            Invalid, SandboxEnded: (on entering) as `exec`.
            TimedOut: it was silent for longer than it may run.
        """
        told = {"stdin": base64.b64encode(as_bytes(stdin)).decode()} if stdin else {}
        request = self._request(
            command=command, cwd=cwd, env=env, timeout=timeout, stdin_open=stdin_open, pty=pty, stream=True, **told
        )
        return self.client.exec_stream(request)

    async def read_file(self, path: str, *, most: int | None = None) -> bytes:
        """The bytes of a file.

        Args:
            most: bytes that it may have.

        Raises:
            NotFound: there is none.
            Invalid: it is no file, or has more than `most` bytes (`extra["cause"]` is `directory`, `special_file` or
                `too_large`).
            Forbidden: the agent's user may not read it.
        """
        return await self.client.read_file(self._at(path), most=most)

    async def read_text(self, path: str) -> str:
        """The text of a file in UTF-8; see `read_file`.

        Raises:
            UnicodeDecodeError: it is none.
        """
        return (await self.read_file(path)).decode()

    async def write_file(self, path: str, content: Content, mode: int = 0o644) -> None:
        """Write a file; missing folders are made.

        Raises:
            Invalid: there is a folder.
            Forbidden: the agent's user may not write there, or to that file.
            Conflict: the disk is full.
        """
        await self.client.write_file(self._at(path), as_bytes(content), mode)

    async def upload(self, source: Path | str, path: str) -> None:
        """Copy a file, or all that is in a folder, from here to `path`.

        Raises:
            ConfigError: it cannot be read.
            Problem: see `write_file`.
        """
        with TemporaryFile() as file:
            mode = await asyncio.to_thread(pack, Path(source), file)
            await self.client.put(self._at(path), file, tree=mode is None, mode=mode or 0)

    async def download(self, path: str, target: Path | str) -> None:
        """Copy a file, or all that is in a folder, from `path` to `target` here; nothing in it gets outside of that.

        Raises:
            NotFound: there is nothing.
            ConfigError: it cannot be written here.
        """
        with TemporaryFile() as file:
            kind = await self.client.save(self._at(path), file)
            await asyncio.to_thread(unpack, kind, file, Path(target))

    async def _in_here(self, stack: AsyncExitStack) -> SandboxClient:
        host = await stack.enter_async_context(shared_host(self._provider, self._places))
        self._url = host.url
        return await stack.enter_async_context(host.sandbox(self._environment))

    async def _elsewhere(self, stack: AsyncExitStack) -> SandboxClient:
        assert self._controller is not None
        http = await stack.enter_async_context(HttpClient())
        client = ControllerClient(self._controller, self._token or self._places.token, http)
        self._url = client.url
        manifests = {
            each.name: each for each in await reach(client, "leave controller= out to have one in this process")
        }
        if self._name not in manifests:
            hint = nearest(self._name, list(manifests))
            raise ConfigError(f"the controller at {client.url} has no environment {self._name!r}; {hint}")
        return await stack.enter_async_context(client.sandbox_of(manifests[self._name]))

    def _forget(self) -> None:
        self._client = None

    def _request(self, *, cwd: str | None = None, env: Any = None, timeout: float | None = None, **fields: Any) -> Any:
        """
        Raises:
            Invalid: an argument is wrong.
        """
        timeout = self.timeout if timeout is None else timeout
        variables = {**self.env, **env} if isinstance(env, Mapping) else self.env if env is None else env
        place = self._at(cwd) if isinstance(cwd, str) and cwd else cwd or self.cwd
        try:
            request = ExecRequest(cwd=place, env=variables, timeout=timeout, **fields)
        except ValidationError as error:
            raise Invalid(f"the command cannot be run:\n{explain(error, list(ExecRequest.model_fields))}") from error
        if wrong := unfit(request):
            raise Invalid(f"the command cannot be run:\n  {wrong}")
        return request

    def _at(self, path: str) -> str:
        return posixpath.join(self.cwd or "", path)


def _here() -> Places:
    from gymbox.cli.places import here  # where this user's files are is read from environment variables

    return here()
