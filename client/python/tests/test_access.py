"""Tokens, and denials by a node's policy."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from conftest import Node, namespace, tokens

import kvstore
from kvstore.client import _tell_unknown_variables
from kvstore.errors import BadRequest, PermissionDenied

TOKEN = "a-token-that-is-long-enough-for-a-test"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy") / "policy.toml"
    policy.write_text(
        f'[jobs]\ntoken-sha256 = ["{hashlib.sha256(TOKEN.encode()).hexdigest()}"]\nroles = ["reader", "writer"]\n'
        f'[users]\nmatch = ["unix:uid={os.getuid()}"]\nroles = ["reader"]\n'
    )
    made = Node("--policy-file", str(policy))
    yield made
    made.close()


def test_a_reader_puts_nothing(guarded):
    with kvstore.Client(guarded.endpoint, deadline=10) as client:
        space = client.open(namespace())
        blocks = np.zeros((2, 4096), dtype="uint8")
        stored = space.put(space.hash_chain(tokens(32)), blocks)
        assert stored.stored == 0
        assert isinstance(stored.why, PermissionDenied)
        assert isinstance(stored.why, PermissionError)
        assert "permission denied" in client.stats()[0]["error"]


def test_a_token_by_argument_file_and_environment(guarded, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")

    def put(**more):
        with kvstore.Client(guarded.endpoint, deadline=10, **more) as client:
            space = client.open(namespace())
            return space.put(space.hash_chain(tokens(32)), np.zeros((2, 4096), dtype="uint8")).stored

    assert put(token=TOKEN) == 2
    assert put(token_file=file) == 2
    monkeypatch.setenv("KVSTORE_TOKEN", TOKEN)
    assert put() == 2
    monkeypatch.setenv("KVSTORE_TOKEN_FILE", str(file))
    monkeypatch.setenv("KVSTORE_TOKEN", "not looked at")
    assert put() == 2
    monkeypatch.setenv("KVSTORE_TOKEN_FILE", "")
    monkeypatch.setenv("KVSTORE_TOKEN", "")
    with pytest.raises(PermissionDenied):
        put(token=TOKEN[:-1] + "T")
    with pytest.raises(BadRequest, match="5 characters"):
        put(token="short")


def test_a_misspelt_variable_is_told_once(monkeypatch, caplog):
    _tell_unknown_variables.cache_clear()
    monkeypatch.setenv("KVSTORE_ENDPOINT", "unix:///nowhere")
    for _ in range(2):
        kvstore.Client("unix:///nowhere").close()
    told = [each.getMessage() for each in caplog.records if each.name == "kvstore"]
    assert len(told) == 1
    assert "did you mean 'KVSTORE_ENDPOINTS'?" in told[0]
