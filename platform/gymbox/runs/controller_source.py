"""Controller source: where the runs that a controller does have their sandboxes from, in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from gymbox_sandbox.lifecycle import Priority

from gymbox.controller.line import Claim
from gymbox.controller.sandboxes import Sandboxes
from gymbox.errors import ConfigError, Problem
from gymbox.judge import judge_of, judge_of_proxy
from gymbox.local_controller import LEASE, LocalController
from gymbox.providers import base_of, isolation_of, versions_of
from gymbox.runs.sandbox_source import SandboxSource, SourceRequest, Sourcing, preparing


async def sweep(sandboxes: Sandboxes, runs: Collection[str]) -> None:
    """Delete the sandboxes that an earlier controller has made for these runs, which are nobody's: what goes on with a
    run makes its own. (Of containers that tasks share it is not known whose they were; their leases end them.)"""
    for sandbox in sandboxes.all():
        if sandbox.ended is None and sandbox.request.lease == LEASE and sandbox.request.run in runs:
            await sandboxes.delete(sandbox.id)


def sourcing_of(sandboxes: Sandboxes, proxy_url: str, token: str) -> Sourcing:
    """Where these runs have their sandboxes from, without a hop between.

    Args:
        proxy_url: where this process reaches the proxy; its /models/judge is asked where a run brings no judge.
        token: the admin token.
    """

    @asynccontextmanager
    async def source(request: SourceRequest) -> AsyncIterator[SandboxSource]:
        http = request.http
        async with judge_of(request.settings.judge, http) as judge:
            if judge is None and request.needs_judge:
                try:
                    judge = await judge_of_proxy(proxy_url, token, http)
                except Problem as error:
                    raise ConfigError(f"these environments need a judge: {error.detail}; set judge=") from error
            with preparing(request.told):
                images = {each.name: await sandboxes.provider.prepare(each) for each in request.environments}

            def of_run(run: str, priority: Priority, share: float) -> LocalController:
                return LocalController(sandboxes, http, judge, Claim(run, priority, share))

            isolation, versions = isolation_of(sandboxes.provider), versions_of(sandboxes.provider)
            bases = {each.name: base_of(sandboxes.provider, each) for each in request.environments}
            local = LocalController(sandboxes, http, judge)
            yield SandboxSource(local, isolation, images, versions, bases, lambda: sandboxes.containers, judge, of_run)

    return source
