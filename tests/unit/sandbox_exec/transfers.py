"""Transfers: files and archives, put into a host and got from it."""

from __future__ import annotations

import io
import tarfile


async def put(host, path, data, route="/files", **parameters):
    async with host.client.put(route, params={"path": str(path), **parameters}, data=data) as answer:
        return answer.status, await answer.json()


async def get(host, path, route="/files"):
    async with host.client.get(route, params={"path": str(path)}) as answer:
        return answer.status, await answer.read() if answer.status == 200 else await answer.json()


def tar_of(*members, form=tarfile.PAX_FORMAT):
    """A tar of (name, content) or TarInfo members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            elif isinstance(member[0], tarfile.TarInfo):
                member[0].size = len(member[1])
                archive.addfile(member[0], io.BytesIO(member[1]))
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def member(name, kind, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info
