"""Names and texts of this package: endpoints, element types, results, errors."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import Node, namespace, pattern, tokens
from hypothesis import given
from hypothesis import strategies as st

import kvstore
from kvstore._access import nodes_of
from kvstore._fields import field_text
from kvstore.doors.options import AccessOptions, StoreOptions, check_options, client_of
from kvstore.errors import BadRequest, PermissionDenied, Unavailable

# -- endpoints


@pytest.mark.parametrize(
    ("given_", "nodes"),
    [
        ("tcp://a:1", ["tcp://a:1"]),
        ("tcp://a:1\n", ["tcp://a:1"]),
        ("tcp://a:1,tcp://b:2", ["tcp://a:1", "tcp://b:2"]),
        (" tcp://a:1 , tls://b:2\nunix:///c ", ["tcp://a:1", "tls://b:2", "unix:///c"]),
        (["tcp://a:1,tcp://b:2", "tcp://c:3"], ["tcp://a:1", "tcp://b:2", "tcp://c:3"]),
        ("unix:///a folder/x,y", ["unix:///a folder/x,y"]),
        (kvstore.Node("tcp://a:1", "n"), [kvstore.Node("tcp://a:1", "n")]),
        (("tcp://a:1", "tcp://b:2"), ["tcp://a:1", "tcp://b:2"]),
    ],
)
def test_endpoints_are_read_alike_wherever_they_stand(given_, nodes, monkeypatch):
    assert nodes_of(given_, "nodes") == nodes
    check_options(AccessOptions, {"endpoints": given_}, "place")
    if isinstance(given_, str):
        monkeypatch.setenv("KVSTORE_ENDPOINTS", given_)
        assert nodes_of(None, "nodes") == nodes


@pytest.mark.parametrize(
    "wrong", ["", " ,\n", [], b"tcp://a:1", Path("/run/kvstore.sock"), 7400, {"a": 1}, [b"x"], [[]]]
)
def test_what_is_no_endpoint_is_refused_with_its_option_its_value_and_what_is_allowed(wrong):
    for refuse, name in (
        (lambda: kvstore.Client(wrong), "nodes is "),
        (lambda: check_options(StoreOptions, {"endpoints": wrong}, "some_config"), "some_config: endpoints is "),
    ):
        with pytest.raises(BadRequest) as refused:
            refuse()
        assert str(refused.value).startswith(name + repr(wrong))
        assert "tcp://HOST:PORT" in str(refused.value)


@pytest.mark.parametrize("wrong", ["a:1", "tcp://a", "tcp://a:1;tcp://b:2", "/run/kvstore.sock"])
def test_an_endpoint_that_is_none_is_named(wrong):
    with pytest.raises(BadRequest, match="allowed") as refused:
        kvstore.Client(["tcp://a:1", wrong])
    assert wrong in str(refused.value)


# -- options of connectors


def test_options_of_doors_are_called_as_a_clients(node):
    given_ = {each.name for each in dataclasses.fields(AccessOptions)} - {"endpoints", "tenant"}
    assert given_ <= set(kvstore.Client.__init__.__kwdefaults__)
    with client_of(AccessOptions(node.endpoint), deadline=10) as client:
        assert client.ping()[0] is not None


def test_an_option_of_the_wrong_type_is_refused_by_name_and_a_token_is_not_shown():
    for name, value in (("tenant", 7), ("tls_cert", ["x"]), ("token_file", 1.5)):
        with pytest.raises(BadRequest, match=rf"place: {name} is .*, allowed is a string"):
            check_options(StoreOptions, {name: value}, "place")
    with pytest.raises(BadRequest) as refused:
        check_options(StoreOptions, {"token": ["secret"]}, "place")
    assert "token is a list" in str(refused.value)
    assert "secret" not in str(refused.value) + repr(StoreOptions(token="secret"))


# -- fields of a record


@pytest.mark.parametrize("dtype", ["float16", "torch.float16", np.float16, np.dtype("float16")])
def test_an_element_type_has_one_name_whatever_it_is_given_as(dtype):
    assert kvstore.Namespace(model="m", block_size=1, block_bytes=1, dtype=dtype).fields["dtype"] == "float16"
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8}
    assert kvstore.models.namespace_of(config, dtype=dtype).fields["dtype"] == "float16"


def test_torchs_element_types_have_numpys_names():
    torch = pytest.importorskip("torch")
    made = kvstore.Namespace(model="m", block_size=1, block_bytes=1, dtype=torch.bfloat16)
    assert made.fields["dtype"] == "bfloat16"


@pytest.mark.parametrize("wrong", [int, object(), 16, b"float16", np.zeros(1).data])
def test_what_is_no_element_type_is_refused_by_name(wrong):
    with pytest.raises(BadRequest, match=r"dtype is .*allowed are"):
        kvstore.Namespace(model="m", block_size=1, block_bytes=1, dtype=wrong)


@pytest.mark.parametrize("wrong", [np.float16, b"m", ["m"], {"m": 1}, np.zeros(2)])
def test_a_field_that_is_no_text_and_no_number_is_refused_by_name(wrong):
    with pytest.raises(BadRequest, match=r"x.rope is .*allowed are text and numbers"):
        kvstore.Namespace(model="m", block_size=1, block_bytes=1, x_rope=wrong)


def test_a_name_with_letters_beyond_ascii_is_served_and_readable():
    made = kvstore.Namespace(model="modèle-模型", block_size=np.int64(16), block_bytes=1)
    assert made.fields["model"] == "mod%C3%A8le-%E6%A8%A1%E5%9E%8B"
    assert made.block_size == 16
    assert kvstore.Namespace.from_text(made.text) == made


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_texts_stay_different_and_plain_ones_as_they_are(one, other):
    assert (field_text("model", one) == field_text("model", other)) == (one == other)
    made = field_text("model", one)
    assert all(" " <= each <= "~" for each in made)
    assert made == one or not one.isascii() or "%" in one or not one.isprintable()


def test_an_error_of_the_record_keeps_its_letters():
    with pytest.raises(BadRequest, match="modèle"):
        kvstore.Namespace.from_text("block_bytes=1\nblock_size=1\nmodel=modèle\n")


# -- results


def test_results_say_what_they_have(client):
    chain = client.open(namespace())
    hashes, blocks = chain.hash_chain(tokens(64)), pattern(4)
    assert "stored=4, already_stored=0, refused=0, why=None" in repr(chain.put(hashes, blocks))
    assert repr(chain.match(hashes)).startswith("MatchResult(block_count=4, disk_block_count=0, ")
    assert repr(chain.get(hashes, blocks)) == "GetResult(block_count=4, corrupt_count=0, why=None)"
    future = chain.submit_match(hashes)
    future.wait()
    assert repr(future) == "<kvstore.Future done>"
    with chain.lease(hashes) as lease:
        assert "of 4 blocks" in repr(lease)
    assert client._endpoints[0] in repr(client)
    things = client.open_set(kvstore.Namespace(kind="set", model=f"s{os.getpid()}", block_bytes_max=4096))
    names = [bytes([i]) * 32 for i in range(12)]
    assert "stored=12" in repr(things.put(names, list(pattern(12))))
    assert "held=<12 of uint8>" in repr(things.match(names))
    assert "held=[1, 1]" in repr(things.match(names[:2]))


# -- errors


def test_an_error_names_the_node_and_its_reason(tmp_path):
    gone = f"unix://{tmp_path}/nobody"
    with kvstore.Client(gone, deadline=5, wait_while_away=True) as client:
        with pytest.raises(Unavailable) as raised:
            client.open(namespace()).wait_open()
        assert f"{gone}: connect: No such file or directory" in str(raised.value)
        space = client.open(namespace(), wait=False)
        got = space.get(space.hash_chain(tokens(32)), pattern(2))
        assert got.block_count == 0
        assert f"{gone}: connect:" in str(got.why)


def test_a_refusal_names_the_node_and_what_it_said(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[me]\nmatch = ["unix:uid={os.getuid()}"]\nroles = ["reader"]\n')
    node = Node("--policy-file", str(policy))
    try:
        with kvstore.Client(node.endpoint, deadline=10) as client:
            space = client.open(namespace())
            put = space.put(space.hash_chain(tokens(32)), pattern(2))
            assert isinstance(put.why, PermissionDenied)
            assert node.endpoint in str(put.why)
    finally:
        node.close()


def test_busy_says_whose_limit_it_is(tmp_path):
    with kvstore.Client(f"unix://{tmp_path}/nobody", calls_max=1, deadline=30, wait_while_away=True) as client:
        space = client.open(namespace(), wait=False)
        hashes = space.hash_chain(tokens(32))
        futures = [space.submit_match(hashes) for _ in range(8)]
        said = [str(each.result().why) for each in futures if each.done()]
        for each in futures:
            each.cancel()
        assert all("calls_max" in text for text in said if text.startswith("busy"))
