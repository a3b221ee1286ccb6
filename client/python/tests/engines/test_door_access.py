"""Every connector under a policy with tenants: by TLS and a certificate, and by a token; logs and refusals."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Node, free_port
from door import HERE, Door
from test_doors import FOUR, doors, until_used  # noqa: F401  # doors: a fixture

TOKEN = "a-token-that-is-long-enough-for-a-test"
TENANT = "blue"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a node and of an engine, signed by one authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("node", "engine"):
        (folder / "names").write_text(f"subjectAltName=IP:127.0.0.1,DNS:{name}.test")
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", "request", *signer, "-out", f"{name}.pem")
    return folder


def guarded(folder: Path, section: str, *options: str) -> Node:
    """A node whose policy admits clients that fit the section, for the tenant alone."""
    policy = folder / "policy.toml"
    policy.write_text(f'[engines]\n{section}\ntenant = "{TENANT}"\nroles = ["reader", "writer", "operator"]\n')
    return Node("--policy-file", str(policy), *options)


@pytest.fixture
def by_token(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    node = guarded(tmp_path, f'token-sha256 = ["{hashlib.sha256(TOKEN.encode()).hexdigest()}"]')
    (tmp_path / "token").write_text(TOKEN + "\n")
    yield node.endpoint, {"tenant": TENANT, "token_file": str(tmp_path / "token")}
    node.close()


@pytest.fixture
def by_certificate(tmp_path: Path, certificates: Path) -> Iterator[tuple[str, dict[str, str]]]:
    port = free_port()
    files = {each: str(certificates / each) for each in ("ca.pem", "node.pem", "node.key", "engine.pem", "engine.key")}
    node = guarded(
        tmp_path,
        'match = ["engine.test"]',
        *("--listen", f"tls://127.0.0.1:{port}", "--tls-cert", files["node.pem"], "--tls-key", files["node.key"]),
        *("--tls-ca", files["ca.pem"]),
    )
    access = {"tls_cert": files["engine.pem"], "tls_key": files["engine.key"], "tls_ca": files["ca.pem"]}
    yield f"tls://127.0.0.1:{port}", {"tenant": TENANT} | access
    node.close()


@pytest.mark.parametrize("how", ["by_token", "by_certificate"])
def test_an_engine_works_under_a_policy_by_its_options_alone(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    doors: Any,  # noqa: F811
    how: str,
) -> None:
    endpoint, access = request.getfixturevalue(how)
    monkeypatch.setattr(Door, "more", access)
    one, other = doors(endpoint), doors(endpoint)
    until_used(one)
    assert other.load(FOUR) == [True] * len(FOUR)


def test_an_engine_that_the_policy_does_not_know_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
    doors: Any,  # noqa: F811
    by_token: tuple[str, dict[str, str]],
) -> None:
    endpoint, access = by_token
    monkeypatch.setattr(Door, "more", access)
    until_used(doors(endpoint))
    for more in ({"tenant": TENANT}, {"token_file": access["token_file"]}, access | {"tenant": "green"}):
        monkeypatch.setattr(Door, "more", more)
        assert not any(doors(endpoint, 0.5).load(FOUR))


def test_the_namespace_is_told_where_the_engines_own_lines_are(doors: Any, own_node: Node) -> None:  # noqa: F811
    """vLLM's handler belongs to ``vllm``, SGLang's to the root; each of LMCache's loggers has one of its own."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger({"vllm": "vllm", "sglang": None, "lmcache": "lmcache.kvstore"}[HERE])
    if HERE == "lmcache":
        from kvstore.lmcache import connector  # noqa: F401

        assert logger.handlers
    handler = Lines(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    if HERE == "sglang":
        logger.setLevel(logging.INFO)  # as its server does
    try:
        doors(own_node.endpoint).load(FOUR)  # by then workers have reported their weights
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert any("kvstore: " in line and ", namespace Namespace(" in line for line in lines), lines
