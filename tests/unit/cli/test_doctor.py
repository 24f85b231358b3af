"""`gymbox doctor` and `gymbox dev`."""

import json
import subprocess
import sys
from pathlib import Path

GYMBOX = str(Path(sys.executable).with_name("gymbox"))


def test_the_doctor_says_of_each_lack_what_mends_it() -> None:
    done = subprocess.run([GYMBOX, "doctor", "--json"], capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)
    assert {"Python", "environments", "admin token", "bubblewrap"} <= {finding["name"] for finding in findings}
    assert all(finding["ok"] or finding["remedy"] for finding in findings)


def test_without_an_engine_the_doctor_names_the_command_and_is_content(tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([GYMBOX, "doctor"], capture_output=True, text=True, env=environment, check=False)
    assert "MISS  Docker engine: none answers" in done.stdout
    assert f"mend it: {sys.executable} -m gymbox.setup_docker" in done.stdout
    assert done.returncode == 0, done.stderr


def test_a_token_that_others_can_read_is_a_lack(tmp_path: Path) -> None:
    token = tmp_path / ".config" / "gymbox" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("gbx_admin_x\n")
    token.chmod(0o644)
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([GYMBOX, "doctor"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert f"mend it: chmod 600 {token}" in done.stdout


def test_dev_test_hands_its_arguments_to_pytest() -> None:
    command = [GYMBOX, "dev", "test", "tests/unit/test_layers.py", "-q", "-k", "no_package"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
