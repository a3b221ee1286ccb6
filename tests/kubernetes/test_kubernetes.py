"""What deploy/kubernetes says of kvstore-node is what kvstore-node is: options, ports, paths, signals, memory.

Rendered by kubectl or kustomize, without a cluster; the programs are those of KV_BUILD (build/release).
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
BUILD = Path(os.environ.get("KV_BUILD", ROOT / "build/release"))
NODE, CTL = BUILD / "store/node/kvstore-node", BUILD / "client/tools/kvstorectl"
RENDERED = ["base", *(f"overlays/{folder.name}" for folder in sorted((KUBERNETES / "overlays").iterdir()))]
BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

Object = dict[str, Any]


@functools.cache
def renderer() -> list[str]:
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        about = subprocess.run(
            ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60, check=False
        )
        version = json.loads(about.stdout or "{}").get("clientVersion", {}) if about.returncode == 0 else {}
        numbers = tuple(int(re.sub(r"\D", "", version.get(part, "0")) or 0) for part in ("major", "minor"))
        if numbers >= (1, 22):  # components, labels
            return ["kubectl", "kustomize"]
        pytest.skip(f"kubectl {numbers[0]}.{numbers[1]} is too old for components, 1.22 is needed")
    pytest.skip("there is neither kustomize nor kubectl (deploy/install-dependencies.sh --kubernetes)")


@functools.cache
def rendered(folder: str) -> list[Object]:
    done = subprocess.run(
        [*renderer(), str(KUBERNETES / folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(folder: str, kind: str) -> Object:
    (found,) = [each for each in rendered(folder) if each["kind"] == kind]
    return dict(found)


def pod(folder: str) -> Object:
    return dict(one(folder, "StatefulSet")["spec"]["template"]["spec"])


def container(folder: str) -> Object:
    (found,) = pod(folder)["containers"]
    return dict(found)


def config_text(folder: str) -> str:
    return str(one(folder, "ConfigMap")["data"]["kvstore-node.toml"])


def variables(folder: str) -> dict[str, str]:
    """The environment as the kubelet makes it, for the pod kvstore-0 of the namespace default."""
    fields = {"metadata.namespace": "default", "metadata.name": "kvstore-0"}
    made: dict[str, str] = {}
    for each in container(folder)["env"]:
        value = each.get("value", "") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        made[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made[found[1]], value)
    return made


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Z]\w*)", text).groups()  # type: ignore[union-attr]
    return int(number) * BYTES[unit]


def options_of(*command: object) -> set[str]:
    text = subprocess.run([*map(str, command), "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    return set(re.findall(r"^ +(?:-\w,)?--([a-z][a-z-]*)", text, re.MULTILINE))


@functools.cache
def certificates() -> Path:
    """Files of the names that the Secret has, as cert-manager would make them for kvstore-0."""
    folder = Path(tempfile.mkdtemp(prefix="kvkubernetes"))
    names = "subjectAltName=DNS:*.kvstore.default.svc,IP:127.0.0.1"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ),
            *("-subj", "/CN=kvstore", "-addext", names),
            *("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")),
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _certificates_go() -> Iterator[None]:
    yield
    shutil.rmtree(certificates(), ignore_errors=True)


def check_config(folder: str, config: Path) -> subprocess.CompletedProcess[str]:
    text = config_text(folder).replace("/etc/kvstore/tls", str(certificates()))
    config.write_text(text)
    # The volume of the disk is the pod's.
    own = {name: value.replace("/var/lib/kvstore", str(config.parent)) for name, value in variables(folder).items()}
    return subprocess.run(
        # Its capacity is for the pod; this machine may have less.
        [str(NODE), "--config", str(config), "--capacity", "64MiB", "--check-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**own, "PATH": os.environ["PATH"]},
    )


@pytest.mark.parametrize("folder", RENDERED)
def test_a_node_accepts_its_configuration_and_environment(folder: str, tmp_path: Path) -> None:
    done = check_config(folder, tmp_path / "kvstore-node.toml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", RENDERED)
def test_each_key_and_each_variable_is_an_option(folder: str) -> None:
    options = options_of(NODE)
    keys = set(re.findall(r"^#? ?([a-z][a-z-]*) = ", config_text(folder), re.MULTILINE))
    assert keys
    assert keys <= options
    named = {name for name in variables(folder) if name.startswith("KVSTORE_")} - {"KVSTORE_NODE_ID"}  # node-id
    assert all(name.startswith("KVSTORE_NODE_") for name in named)
    assert {name.removeprefix("KVSTORE_NODE_").lower().replace("_", "-") for name in named} <= options
    assert {each.removeprefix("--") for each in container(folder)["args"] if each.startswith("--")} <= options


@pytest.mark.parametrize("folder", RENDERED)
def test_no_variable_of_kubernetes_own_is_taken_for_an_option(folder: str) -> None:
    # A Service called kvstore gives KVSTORE_PORT and more, unless service links are off.
    assert pod(folder)["enableServiceLinks"] is False


@pytest.mark.parametrize("folder", RENDERED)
def test_ports_are_those_of_the_configuration_and_all_others_go_by_their_names(folder: str) -> None:
    ports = {each["name"]: each["containerPort"] for each in container(folder)["ports"]}
    text = config_text(folder)
    assert re.search(rf'"(?:tls|tcp)://\[::\]:{ports["kvstore"]}"', text)
    assert f'admin = "[::]:{ports["admin"]}"' in text
    for each in one(folder, "Service")["spec"]["ports"]:
        assert each["port"] == ports[each["targetPort"]]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(folder)[probe]["httpGet"]["port"] in ports
    for endpoint in one(folder, "PodMonitor")["spec"]["podMetricsEndpoints"]:
        assert endpoint["port"] in ports
    if "KVSTORE_NODE_ADVERTISE" in variables(folder):
        service = one(folder, "Service")["metadata"]["name"]
        assert (
            variables(folder)["KVSTORE_NODE_ADVERTISE"] == f"tls://kvstore-0.{service}.default.svc:{ports['kvstore']}"
        )


@pytest.mark.parametrize("folder", RENDERED)
def test_each_selector_finds_the_pods_and_nothing_is_selected_by_chance(folder: str) -> None:
    stateful = one(folder, "StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "kvstore"
    assert stateful["serviceName"] == one(folder, "Service")["metadata"]["name"]
    selectors = [one(folder, "Service")["spec"]["selector"], stateful["selector"]["matchLabels"]]
    selectors += [
        one(folder, kind)["spec"]["selector"]["matchLabels"] for kind in ("PodDisruptionBudget", "PodMonitor")
    ]
    selectors += [each["labelSelector"]["matchLabels"] for each in pod(folder)["topologySpreadConstraints"]]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
    # The alerts and dashboards know the job by this name.
    assert labels[one(folder, "PodMonitor")["spec"]["jobLabel"]] == "kvstore"


@pytest.mark.parametrize("folder", RENDERED)
def test_each_mount_has_its_volume_and_each_volume_its_source(folder: str) -> None:
    claims = [each["metadata"]["name"] for each in one(folder, "StatefulSet")["spec"].get("volumeClaimTemplates", [])]
    volumes = {each["name"]: each for each in pod(folder)["volumes"]}
    mounts = container(folder)["volumeMounts"]
    assert {each["name"] for each in mounts} == {*volumes, *claims}
    assert volumes["config"]["configMap"]["name"] == one(folder, "ConfigMap")["metadata"]["name"]
    (config,) = [each for each in mounts if each["name"] == "config"]
    assert config["mountPath"] == container(folder)["args"][1]
    # What the node names is where something is mounted that it may write, or the Secret.
    paths = re.findall(r'"(?:unix://)?(/[a-z][^"]*)"', config_text(folder))
    disk = variables(folder).get("KVSTORE_NODE_DISK_PATH")
    for path in [*paths, *([disk] if disk else [])]:
        assert any(path.startswith(each["mountPath"] + "/") for each in mounts), path


@pytest.mark.parametrize("folder", RENDERED)
def test_memory_holds_the_arena_and_a_fifth_more(folder: str) -> None:
    limits = container(folder)["resources"]["limits"]
    capacity = size(re.search(r'^capacity = "(\w+)"', config_text(folder), re.MULTILINE)[1])  # type: ignore[index]
    pages = limits.get("hugepages-2Mi")
    if pages:
        assert size(pages) >= capacity
        assert size(limits["memory"]) >= capacity // 5
    else:
        assert size(limits["memory"]) >= capacity * 6 // 5
    requests = container(folder)["resources"]["requests"]
    assert all(requests[name] == value for name, value in limits.items())


def test_files_on_disk_fit_into_the_claim() -> None:
    (claim,) = one("overlays/disk", "StatefulSet")["spec"]["volumeClaimTemplates"]
    capacity = size(re.search(r'^capacity = "(\w+)"', config_text("overlays/disk"), re.MULTILINE)[1])  # type: ignore[index]
    disk = size(variables("overlays/disk")["KVSTORE_NODE_DISK_CAPACITY"])
    wanted = 1.05 * (1.25 * (disk + capacity) + 2 * 2**30)
    assert size(claim["spec"]["resources"]["requests"]["storage"]) >= wanted
    # The kubelet would make the directory writable by the group at each start; a node refuses that.
    assert pod("overlays/disk")["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("folder", RENDERED)
def test_the_hook_before_a_stop_is_a_command_and_there_is_time_for_it(folder: str) -> None:
    hook = container(folder).get("lifecycle", {}).get("preStop")
    defaults = {
        name: float(value) for name, value in re.findall(r"^ +--([a-z-]+) TIME=([0-9.]+)", node_help(), re.MULTILINE)
    }
    seconds = sum(defaults[name] for name in ("hand-over-seconds", "drain-seconds", "disk-stop-seconds"))
    if hook:
        shell, flag, line = hook["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        words = line.split()
        assert words[:3] == ["kvstorectl", "cluster", "drain"]
        given = {each.removeprefix("--") for each in words if each.startswith("--")}
        assert given <= options_of(CTL, "cluster", "drain")
        assert f'"{words[words.index("--endpoint") + 1]}"' in config_text(folder)
        seconds += float(words[words.index("--wait-seconds") + 1])
    else:
        assert not re.search(r"^etcd = ", config_text(folder), re.MULTILINE), "a cluster's node hands over"
    assert pod(folder)["terminationGracePeriodSeconds"] > seconds


@functools.cache
def node_help() -> str:
    return subprocess.run([str(NODE), "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("folder", RENDERED)
def test_the_image_and_its_user_are_the_container_files(folder: str) -> None:
    text = (KUBERNETES / "Containerfile").read_text()
    user = pod(folder)["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in text
    assert f"--uid {user['runAsUser']} " in text
    assert user["fsGroup"] == user["runAsGroup"]
    version = re.search(r"^project\(kvstore VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert version
    assert container(folder)["image"] == f"kvstore:{version[1]}"
    exposed = re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert exposed
    assert {int(each) for each in exposed[1].split()} == {each["containerPort"] for each in container(folder)["ports"]}


@pytest.mark.parametrize("folder", RENDERED)
def test_the_container_may_do_nothing_beside_its_work(folder: str) -> None:
    security = container(folder)["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert pod(folder)["securityContext"]["runAsNonRoot"] is True
    assert pod(folder)["automountServiceAccountToken"] is False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_node_with_this_configuration_answers_the_probes_and_the_monitor(tmp_path: Path) -> None:
    folder = "overlays/trial"
    assert check_config(folder, tmp_path / "kvstore-node.toml").returncode == 0
    admin = free_port()
    node = subprocess.Popen(
        [
            *(str(NODE), "--config", str(tmp_path / "kvstore-node.toml"), "--capacity", "64MiB"),
            *("--listen", f"unix://{tmp_path}/kvstore.sock", "--admin", f"127.0.0.1:{admin}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        paths = {
            container(folder)[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        paths |= {endpoint["path"] for endpoint in one(folder, "PodMonitor")["spec"]["podMetricsEndpoints"]}
        end = time.monotonic() + 30
        while status_of(f"http://127.0.0.1:{admin}/readyz") != 200 and time.monotonic() < end:
            time.sleep(0.05)
        assert {path: status_of(f"http://127.0.0.1:{admin}{path}") for path in paths} == dict.fromkeys(paths, 200)
    finally:
        node.terminate()
        assert node.wait(timeout=60) == 0
