"""Separation of objects with equal names in LMCache: its keys lack weights and adapters, so an option must supply them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lmcache")

from conftest import Node
from test_lmcache_adapter import adapters, key_of, load, object_of, same, spec, store  # noqa: F401

import kvstore
from kvstore.lmcache import Adapter, Connector, Remote

DOORS = ("plugin", "native_plugin")


def without(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "weights_epoch"}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_that_cannot_know_the_weights_is_refused_by_name(node: Node, door: str) -> None:
    params = without(spec(node.endpoint, door)["adapter_params"])
    with pytest.raises(
        kvstore.BadRequest, match="weights_epoch is missing: LMCache tells a model's name, and neither its weights"
    ):
        Adapter(params) if door == "plugin" else Connector(**params)


def test_the_older_interface_is_refused_alike(node: Node) -> None:
    remote = Remote.__new__(Remote)
    config = SimpleNamespace(extra_config={"kvstore.endpoints": node.endpoint})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote.__mro__[1], "__init__", lambda self, config, metadata: None)
        with pytest.raises(kvstore.BadRequest, match="weights_epoch is missing"):
            remote.__init__(None, SimpleNamespace(metadata=None), config)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("other", DOORS)
def test_objects_of_one_name_are_shared_in_one_epoch_alone(
    node: Node,
    adapters: Any,  # noqa: F811
    door: str,
    other: str,
) -> None:
    model, keys, objects = f"{door}-{other}", [key_of(i) for i in range(4)], [object_of(i) for i in range(4)]
    assert store(adapters(spec(node.endpoint, door, model)), keys, objects).is_successful()
    targets = [object_of(None) for _ in keys]
    assert load(adapters(spec(node.endpoint, other, model, weights_epoch=2)), keys, targets) == [False] * 4
    assert load(adapters(spec(node.endpoint, other, model)), keys, targets) == [True] * 4
    assert same(targets, objects)
