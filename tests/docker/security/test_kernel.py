"""Privileges and system calls. Each attack must work where the control is off, else its test would prove nothing."""

from __future__ import annotations

import platform
from typing import Any

import pytest

PLAIN = {
    "K01 has capabilities": "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo OPEN",
    "K04 is root": "[ $(id -u) = 0 ] && echo OPEN",
    "K07 makes a device of the host's disk": "mknod /tmp/disk b 8 0 && echo OPEN",
    "K08 opens a packet socket": "import socket\nsocket.socket(17, 3, 0); print('OPEN')",
    "K09 opens a raw socket": "import socket\nsocket.socket(2, 3, 1); print('OPEN')",
    "K12 changes its root": "chroot / true && echo OPEN",
    "F01 replaces a program": "touch /usr/local/bin/python3 && echo OPEN",
    "F02 puts a module beside the server's": "touch /opt/gymbox/lib/json.py && echo OPEN",
    "R03 dumps core": "[ $(ulimit -Hc) != 0 ] && echo OPEN",
}
"""Work in an ordinary `docker run`."""

PRIVILEGED = {
    "K03 is not filtered": "grep -q 'Seccomp:.*0' /proc/self/status && echo OPEN",
    "K05 mounts": "mount -t tmpfs none /mnt && echo OPEN",
    "K06 becomes root of a new user namespace": "unshare -Ur true && echo OPEN",
    "K14 sets a core pattern": "import os\nos.open('/proc/sys/kernel/core_pattern', 1); print('OPEN')",
    "K30 reads the kernel's log": "dmesg >/dev/null && echo OPEN",
    "K33 makes a network namespace": "unshare -n true && echo OPEN",
    "K43 writes to its own control group": "import os, glob\n"
    "paths = glob.glob('/sys/fs/cgroup/memory/cgroup.procs') + glob.glob('/sys/fs/cgroup/cgroup.procs')\n"
    "os.open(paths[0], 1); print('OPEN')",
    "N12 gives itself an address": "import fcntl, socket, struct\n"
    "request = struct.pack('16sH2s4s8s', b'lo', 2, b'', socket.inet_aton('127.0.0.2'), b'')\n"
    "fcntl.ioctl(socket.socket(2, 2), 0x8916, request); print('OPEN')",
}
"""Stopped by an ordinary `docker run` too: they work where it is `--privileged`."""

SYSCALLS = {
    "K21 bpf": 321,
    "K22 perf_event_open": 298,
    "K23 io_uring_setup": 425,
    "K24 userfaultfd": 323,
    "K25 keyctl": 250,
    "K26 add_key": 248,
    "K27 kexec_load": 246,
    "K28 init_module": 175,
    "K29 open_by_handle_at": 304,
    "K31 setns": 308,
    "K32 pivot_root": 155,
    "K34 mount_setattr": 442,
    "K35 fsopen": 430,
    "K36 unshare": 272,
    "K37 clock_settime": 227,
}
"""Numbers on x86-64. Without the filter the kernel looks at the (senseless) arguments and says anything but EPERM."""
SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall({number}, -1, -1, -1, -1, -1)
print("OPEN" if result >= 0 or ctypes.get_errno() != 1 else "EPERM", result, ctypes.get_errno())
"""


@pytest.mark.parametrize("script", PLAIN.values(), ids=PLAIN.keys())
async def test_the_agent_cannot_what_an_ordinary_container_can(script: str, as_agent: Any, plainly: Any) -> None:
    assert plainly(script).opened
    assert not (await as_agent(script)).opened


@pytest.mark.parametrize("script", PRIVILEGED.values(), ids=PRIVILEGED.keys())
async def test_the_agent_cannot_what_a_privileged_container_can(script: str, as_agent: Any, privileged: Any) -> None:
    assert privileged(script).opened
    assert not (await as_agent(script)).opened


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
async def test_the_filter_refuses_each_call_that_has_led_out_of_a_container(as_agent: Any, privileged: Any) -> None:
    for name, number in SYSCALLS.items():
        script = SYSCALL.format(number=number)
        assert privileged(script).opened, name
        assert "EPERM" in await as_agent(script), name


async def test_k02_a_setuid_program_gives_nothing(as_agent: Any, plainly: Any) -> None:
    script = "[ $(setuid-id -u) = 0 ] && echo OPEN; grep NoNewPrivs /proc/self/status"
    assert plainly(script, user="10001").opened
    shown = await as_agent(script)
    assert "OPEN" not in shown and "NoNewPrivs:\t1" in shown


@pytest.mark.parametrize(("family", "name"), [(40, "K10 AF_VSOCK"), (38, "K11 AF_ALG"), (30, "AF_TIPC")])
async def test_a_family_of_sockets_that_has_led_out_is_refused_by_the_filter(
    family: int, name: str, as_agent: Any, privileged: Any
) -> None:
    script = f"""
    import errno, socket
    try:
        socket.socket({family}, 5 if {family} == 38 else 1, 0)
        print("OPEN")
    except OSError as error:
        print(errno.errorcode[error.errno])
    """
    # where this kernel lacks the family, the answer without a filter is another errno than the filter's
    assert privileged(script).strip() in ("OPEN", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"), name
    assert (await as_agent(script)).strip() == "EPERM", name


async def test_a_sandbox_of_any_image_is_as_confined(as_agent_of_any_image: Any) -> None:
    """The controls are those of the tests above: the same attacks work without hardening."""
    more = {
        "F02 puts a module beside the server's": "touch /opt/gymbox/environment/json.py && echo OPEN",
        "F02 replaces the runtime": "touch /opt/gymbox/rt/lib/x || touch /opt/gymbox/rt/bin/python3 && echo OPEN",
        "K02 has a setuid program": "[ $(setuid-id -u) = 0 ] && echo OPEN",
        "signals the server": "for pid in /proc/[0-9]*; do kill -9 ${pid#/proc/}; done 2>&1 | grep -v denied; echo",
        "reads the server's files": "cat /proc/1/environ /proc/[0-9]/mem /run/gymbox/* && echo OPEN",
    }
    for name, script in {**PLAIN, **PRIVILEGED, **more}.items():
        assert not (await as_agent_of_any_image(script)).opened, name
    if platform.machine() == "x86_64":
        for name, number in SYSCALLS.items():
            assert "EPERM" in await as_agent_of_any_image(SYSCALL.format(number=number)), name
    assert "NoNewPrivs:\t1" in await as_agent_of_any_image("cat /proc/self/status")
    assert "fine" in await as_agent_of_any_image("echo echo fine > /tmp/x && chmod +x /tmp/x && /tmp/x")


async def test_k39_to_k42_nothing_of_the_host_is_to_be_seen(as_agent: Any) -> None:
    """No control: an ordinary container does not see them either."""
    assert (await as_agent("find / -xdev -name '*docker*.sock' -o -xdev -name 'containerd*.sock' 2>/dev/null")) == ""
    assert await as_agent("ls /dev | grep -E '^(sd|vd|nvme|kvm|mem|kmsg|fuse)'") == ""
    assert int(await as_agent("ls /proc | grep -c '^[0-9]'")) < 20
    mounts = await as_agent("grep -E ' (ext4|xfs|btrfs) ' /proc/self/mounts | cut -d' ' -f2 | sort")
    docker_init = {"/usr/sbin/docker-init", "/sbin/docker-init"}
    ours = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/run/gymbox", "/coverage"}  # the last: where measured
    assert set(mounts.split()) <= ours | docker_init


async def test_what_an_agent_needs_still_works(as_agent: Any) -> None:
    """Hardening that breaks ordinary work would be turned off by its users."""
    assert "fine" in await as_agent("printf '#!/bin/sh\\necho fine\\n' > /tmp/x && chmod +x /tmp/x && /tmp/x")  # F03
    assert "fine" in await as_agent("cd /workspace && echo fine > a && cat a && cd ~ && echo fine > b")
    assert "42" in await as_agent(
        """
        import asyncio, multiprocessing, socket, sqlite3, subprocess, threading

        async def main():
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 8080)
            async with server:
                _, writer = await asyncio.open_connection("127.0.0.1", 8080)
                writer.close()
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0

        asyncio.run(main())
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        thread = threading.Thread(target=lambda: None)
        thread.start(), thread.join()
        sqlite3.connect("/tmp/x.db").execute("create table t (a)")
        assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
        print(42)
        """
    )
