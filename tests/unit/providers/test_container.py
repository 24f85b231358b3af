"""What the engine is asked for, held against the list of what must never be asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError
from gymbox.providers import StartSpec
from gymbox.providers.confinement import SECCOMP
from gymbox.providers.container import (
    CONTROLLER_LABEL,
    SERVICE_LABEL,
    SERVICES_LABEL,
    container_config,
    network_config,
    server_command,
    server_user,
)
from gymbox.providers.images import ServiceImage
from gymbox.providers.service_container import doomed, service_config, service_name
from gymbox_sandbox.options import User

FORBIDDEN_SYSCALLS = """
    acct add_key bpf chroot clock_adjtime clock_settime create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr move_mount move_pages nfsservctl
    open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root quotactl reboot request_key setdomainname
    sethostname setns settimeofday socketcall swapoff swapon syslog umount umount2 unshare uselib userfaultfd ustat
    vhangup
"""


def spec(**manifest: Any) -> StartSpec:
    content = Manifest.model_validate({"name": "plain", "description": "For a test.", **manifest})
    environment = Environment(Path("/environments/plain"), content)
    return StartSpec("box-1", environment, Path("/run/gymbox/box-1"), {"gymbox.sandbox": "box-1"})


def config(**manifest: Any) -> dict[str, Any]:
    return container_config(spec(**manifest), "image:tag", "controller-1", ["serve"])


def host(**manifest: Any) -> dict[str, Any]:
    host_config = config(**manifest)["HostConfig"]
    assert isinstance(host_config, dict)
    return host_config


# The numbers are those of section 5 of the CIS Docker Benchmark.


def test_cis_5_2_no_security_profile_is_turned_off() -> None:
    options = host()["SecurityOpt"]
    assert "no-new-privileges:true" in options  # 5.25
    assert not [option for option in options if "unconfined" in option or "disable" in option]  # 5.1, 5.2, 5.21


def test_cis_5_3_all_capabilities_are_dropped_but_the_supervisors_three() -> None:
    assert host()["CapDrop"] == ["ALL"]
    assert host()["CapAdd"] == ["KILL", "SETGID", "SETUID"]


def test_cis_5_4_it_is_not_privileged() -> None:
    assert host()["Privileged"] is False


def test_cis_5_5_only_the_sandboxs_own_directory_is_mounted() -> None:
    assert host()["Binds"] == ["/run/gymbox/box-1:/run/gymbox:rw"]
    assert "Mounts" not in host() and "VolumesFrom" not in host() and "Volumes" not in config()


def test_a_workspace_on_disk_is_a_nameless_volume_on_its_device_and_no_tmpfs() -> None:
    disk = replace(spec(limits={"workspace": "disk"}), disk="/dev/loop9")
    asked = container_config(disk, "image:tag", "controller-1", ["serve"])["HostConfig"]
    (volume,) = asked["Mounts"]
    assert volume["Target"] == "/workspace" and volume["Type"] == "volume" and "Source" not in volume
    options = {"type": "ext4", "device": "/dev/loop9", "o": "nosuid,nodev"}
    assert volume["VolumeOptions"] == {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}}
    assert set(asked["Tmpfs"]) == {"/tmp", "/home/agent"}


def test_files_and_logs_are_limited_as_the_manifest_says() -> None:
    asked = host(limits={"inodes": 500, "log_mb": 3})
    assert all("nr_inodes=500," in options for options in asked["Tmpfs"].values())
    assert asked["LogConfig"]["Config"] == {"max-size": "1536k", "max-file": "2"}
    with pytest.raises(ValueError, match="workspace_mb: 8"):
        spec(limits={"workspace": "disk", "workspace_mb": 7})


def test_cis_5_7_nothing_is_published() -> None:
    assert "PortBindings" not in host() and "PublishAllPorts" not in host() and "ExposedPorts" not in config()


def test_cis_5_9_no_namespace_is_shared_with_the_host() -> None:
    assert host()["NetworkMode"] == "none"
    assert host()["IpcMode"] == "private"  # 5.16
    assert host()["CgroupnsMode"] == "private"
    assert not {"PidMode", "UTSMode", "UsernsMode", "CgroupParent"} & host().keys()  # 5.15, 5.20, 5.24, 5.30


def test_cis_5_10_memory_is_limited_and_swap_adds_nothing() -> None:
    assert host(limits={"memory_mb": 512})["Memory"] == 512 * 1024 * 1024
    assert host()["MemorySwap"] == host()["Memory"]


def test_cis_5_11_processors_are_limited() -> None:
    limited = host(limits={"cpus": 0.5})
    assert limited["CpuQuota"] / limited["CpuPeriod"] == 0.5


def test_cis_5_12_the_root_file_system_is_read_only_and_what_is_not_has_a_size_and_a_number_of_files() -> None:
    assert host()["ReadonlyRootfs"] is True
    tmpfs = host(limits={"workspace_mb": 100, "tmp_mb": 50})["Tmpfs"]
    assert set(tmpfs) == {"/tmp", "/home/agent", "/workspace"}
    for path, options in tmpfs.items():
        size = 100 if path == "/workspace" else 50
        assert {"nosuid", "nodev", f"size={size}m", f"nr_inodes={size * 64}"} <= set(options.split(","))


def test_cis_5_14_it_is_never_restarted() -> None:
    assert host()["RestartPolicy"] == {"Name": "no"}


def test_cis_5_17_no_device_is_passed_in() -> None:
    assert not {"Devices", "DeviceRequests", "DeviceCgroupRules"} & host().keys()


def test_cis_5_18_files_and_core_dumps_are_limited() -> None:
    assert {"Name": "core", "Soft": 0, "Hard": 0} in host()["Ulimits"]
    assert {"Name": "nofile", "Soft": 99, "Hard": 99} in host(limits={"open_files": 99})["Ulimits"]


def test_cis_5_28_processes_are_limited() -> None:
    assert host(limits={"pids": 64})["PidsLimit"] == 64


def test_cis_5_31_the_engines_socket_is_never_mounted() -> None:
    assert "docker.sock" not in json.dumps(config())


def test_logs_are_limited_and_an_init_reaps() -> None:
    assert host()["LogConfig"]["Config"] == {"max-size": "10240k", "max-file": "2"}
    assert host()["Init"] is True


def test_nothing_of_the_starters_environment_variables_gets_in() -> None:
    assert config()["Env"] == []


def test_labels_of_the_provider_win_over_those_of_a_caller() -> None:
    given = StartSpec("box-1", spec().environment, Path("/run/x"), {"gymbox.controller": "another", "mine": "1"})
    labels = container_config(given, "image", "controller-1", [])["Labels"]
    assert labels["gymbox.controller"] == "controller-1"
    assert labels["mine"] == "1"


@pytest.mark.parametrize("wish", ["privileged", "volumes", "cap_add", "network_mode", "devices", "pid", "runtime"])
def test_a_manifest_cannot_ask_for_what_is_not_on_the_list(wish: str, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "environment.yaml").write_text(f"description: x\n{wish}: true\n")
    with pytest.raises(ConfigError, match=wish):
        Environment.load(folder)


def test_an_internal_network_is_the_sandboxs_own_and_the_host_has_no_address_in_it() -> None:
    internal = spec(network="internal")
    assert host(network="internal")["NetworkMode"] == "gymbox-box-1"
    assert host(network="internal")["Dns"] == ["127.0.0.2"]
    network = network_config(internal, "controller-1")
    assert network["internal"] is True
    assert network["options"]["com.docker.network.bridge.inhibit_ipv4"] == "true"


def test_the_server_runs_as_a_user_of_its_own_where_the_caller_is_root() -> None:
    assert str(server_user(User(0, 0))) == "10002:10003"
    assert str(server_user(User(1000, 1000))) == "1000:1000"


def test_the_server_takes_no_module_from_a_folder_that_the_agent_can_write_to() -> None:
    command = server_command(spec().environment, User(10002, 10003))
    assert "-I" in command[1] or command[1].startswith("-I")
    assert config()["WorkingDir"] == "/"


def test_the_manifests_deadlines_reach_the_server() -> None:
    command = server_command(spec(timeouts={"tool": 7, "verify": 8}, sessions=3).environment, User(1, 1))
    told = dict(zip(command[5::2], command[6::2], strict=True))
    assert (told["--tool-timeout"], told["--verify-timeout"], told["--max-sessions"]) == ("7", "8", "3")


def test_the_seccomp_profile_denies_what_it_does_not_name() -> None:
    profile = json.loads(SECCOMP)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert not allowed & set(FORBIDDEN_SYSCALLS.split())


def test_the_seccomp_profile_opens_only_harmless_families_of_sockets() -> None:
    rules = [rule for rule in json.loads(SECCOMP)["syscalls"] if "socket" in rule["names"]]
    assert sorted(rule["args"][0]["value"] for rule in rules) == [1, 2, 10, 16]
    assert all(rule["args"][0]["op"] == "SCMP_CMP_EQ" for rule in rules)


def test_the_seccomp_profile_has_no_second_architecture_to_slip_through() -> None:
    assert all(each["subArchitectures"] == [] for each in json.loads(SECCOMP)["archMap"])


def test_shared_memory_goes_with_the_processes_that_made_it() -> None:
    assert host()["Sysctls"] == {"kernel.shm_rmid_forced": "1"}


# Services, and ways out.

SERVICES = {"db": {"image": "db:1", "tmpfs": ["/data"]}}
IMAGE = ServiceImage("db:1", {"/data": (5, 6), "/var/lib/db": None})


def service(**changes: Any) -> dict[str, Any]:
    services = {"db": {**SERVICES["db"], **changes}}
    return service_config(spec(services=services), "db", IMAGE, "controller-1")


def test_a_service_is_held_against_the_same_list() -> None:
    made = service()
    found = made["HostConfig"]
    assert found["Privileged"] is False and found["CapDrop"] == ["ALL"] and found["ReadonlyRootfs"] is True
    assert set(found["CapAdd"]) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert service(user="db")["HostConfig"]["CapAdd"] == []
    assert found["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={SECCOMP}"]
    assert not {"Binds", "Mounts", "PortBindings", "PidMode", "UTSMode", "UsernsMode", "Devices"} & found.keys()
    assert found["Memory"] == found["MemorySwap"] and found["PidsLimit"] and found["CpuQuota"]
    assert found["RestartPolicy"] == {"Name": "no"} and found["LogConfig"]["Config"]["max-size"]
    assert made["Labels"][SERVICE_LABEL] == "box-1" and made["Labels"][CONTROLLER_LABEL] == "controller-1"


def test_a_services_writable_folders_are_in_memory_and_their_images_owners() -> None:
    found = service()["HostConfig"]["Tmpfs"]
    assert set(found) == {"/tmp", "/run", "/data", "/var/lib/db"}
    assert found["/data"].endswith(",uid=5,gid=6") and "uid=" not in found["/var/lib/db"]
    assert all("nosuid,nodev" in options and "size=256m" in options for options in found.values())


def test_a_sandbox_shares_one_network_that_leads_nowhere_with_its_services() -> None:
    own = spec(services=SERVICES)
    network = network_config(own, "controller-1")
    assert host(services=SERVICES)["NetworkMode"] == service()["HostConfig"]["NetworkMode"] == network["name"]
    assert network["internal"] is True and network["options"]["com.docker.network.bridge.inhibit_ipv4"] == "true"
    assert network["options"]["com.docker.network.bridge.enable_icc"] == "true"
    assert config(services=SERVICES)["Labels"][SERVICES_LABEL] == "db"


@pytest.mark.parametrize("network", ["models", "open", {"allow": ["example.org"]}])
def test_a_way_out_is_no_network(network: Any) -> None:
    assert host(network=network)["NetworkMode"] == "none"
    assert host(network=network)["Binds"][1:] == ["/run/gymbox/resolv.conf:/etc/resolv.conf:ro"]
    command = server_command(spec(network=network).environment, User(1, 1))
    assert command[command.index("--network") + 1] == ("models" if network == "models" else "hosts")


def test_what_must_go_when_a_controller_begins_is_told_by_labels() -> None:
    def row(name: str, state: str = "running", **labels: str) -> dict[str, Any]:
        return {"Names": [f"/{name}"], "State": state, "Labels": labels}

    rows = [
        row("whole", **{SERVICES_LABEL: "db"}),
        row("whole.db", **{SERVICE_LABEL: "whole"}),
        row("lacking", **{SERVICES_LABEL: "db,web"}),
        row(service_name("lacking", "db"), **{SERVICE_LABEL: "lacking"}),
        row(service_name("lacking", "web"), "exited", **{SERVICE_LABEL: "lacking"}),
        row("ended", "exited"),
        row(service_name("ended", "db"), **{SERVICE_LABEL: "ended"}),
        row(service_name("gone", "db"), **{SERVICE_LABEL: "gone"}),
        row("plain", "paused"),
        row("begun", "created"),
    ]
    gone = {each["Names"][0].removeprefix("/") for each in doomed(rows)}
    assert gone == {
        "lacking",
        service_name("lacking", "db"),
        service_name("lacking", "web"),
        "ended",
        service_name("ended", "db"),
        service_name("gone", "db"),
        "begun",
    }
