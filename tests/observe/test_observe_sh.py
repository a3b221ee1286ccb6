"""deploy/observe.sh: starts what it says, refuses what it cannot, leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import BUILD, answers, eventually, free_port, get
from stack import DEPLOY, missing

SCRIPT = str(DEPLOY / "observe.sh")


def refusal(*arguments: str, status: int, **environment: str) -> str:
    command = [SCRIPT, *arguments]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kvobserve"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def complete() -> None:
    if lacks := missing():
        pytest.skip(f"there is no {', no '.join(lacks)}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "2"], "unknown argument '--node'"),
        (["--nodes"], "--nodes wants a value"),
        (["--nodes", "0"], "--nodes is '0', allowed are 1 to 9"),
        (["--prometheus-port", "65536"], "--prometheus-port is '65536', allowed are 1 to 65535"),
        (["--first-port", "http"], "--first-port is 'http', allowed are 1 to 65535"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments, status=2)


def test_a_build_that_is_not_there_is_named_with_how_to_make_it() -> None:
    assert "there is no /nowhere/store/node/kvstore-node. Build it: cmake" in refusal("--build", "/nowhere", status=1)


def test_prometheus_that_is_not_there_is_named_with_how_to_install_it(complete: None, scratch: Path) -> None:
    for program in ("bash", "dirname", "sed"):
        (scratch / program).symlink_to(shutil.which(program) or program)
    text = refusal("--build", str(BUILD), status=1, PATH=str(scratch))
    assert "there is no prometheus. Install it: deploy/install-dependencies.sh --observe" in text


def test_a_port_that_is_taken_is_named_and_nothing_is_started(complete: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refusal("--build", str(BUILD), "--alertmanager-port", str(port), status=1)
    assert f"already listens on 127.0.0.1:{port}. Stop it, or choose another port: --alertmanager-port" in text


def test_it_runs_until_ctrl_c_and_leaves_nothing_behind(complete: None, scratch: Path) -> None:
    port, alertmanager_port = free_port(), free_port()
    ports = f"--prometheus-port {port} --alertmanager-port {alertmanager_port}"
    command = [SCRIPT, "--build", str(BUILD), "--nodes", "2", *ports.split()]
    log = scratch / "log"
    with log.open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        eventually("it runs or has ended", lambda: "Ctrl-C" in log.read_text() or running.poll() is not None, 90)
        assert running.poll() is None, log.read_text()

        def have_traffic() -> bool:
            answer = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query=kvstore_match_hit_blocks_total>0"))
            return len(answer["data"]["result"]) == 2

        eventually("both nodes are scraped, and the load hits", have_traffic, 60)
        assert answers(f"http://127.0.0.1:{alertmanager_port}/-/ready")
        # A node that is stopped, as the script proposes, must not keep it from ending.
        node = int(re.findall(r"kill -STOP (\d+)", log.read_text())[0])
        os.kill(node, signal.SIGSTOP)
    finally:
        running.send_signal(signal.SIGINT)
        status = running.wait(60)
    assert status == 0, log.read_text()
    assert [each.name for each in scratch.iterdir()] == ["log"]
    assert not answers(f"http://127.0.0.1:{port}/-/ready")
    eventually("no process of it is left", lambda: not processes_with(str(scratch)))


def processes_with(text: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if text in line:
            found.append(line)
    return found
