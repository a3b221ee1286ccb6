"""``python -m kvstore``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvstore.tools import main
from kvstore.tools.text import bytes_text, parse_bytes, seconds_text, table

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def test_status(node, capsys):
    assert main(["status", "-e", node.endpoint]) == 0
    assert "serving" in capsys.readouterr().out
    assert main(["status", "-e", node.endpoint, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["values"]["capacity_bytes"] > 0
    assert main(["status", "-e", "unix:///nowhere", "--deadline", "0.2"]) == 1
    assert "down: " in capsys.readouterr().out


def test_doctor(node, capsys):
    assert main(["doctor", "-e", node.endpoint]) == 0
    out = capsys.readouterr().out
    assert "through memory lent to" in out
    assert main(["doctor", "-e", "unix:///nowhere", "--deadline", "0.2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert any(finding["verdict"] == "FAILED" and finding["advice"] for finding in found["findings"])


@pytest.mark.parametrize(
    "more", [["--op", "match"], ["--op", "get"], ["--op", "put"], ["--concurrency", "3"], ["--asyncio"]]
)
def test_bench(node, capsys, more):
    arguments = ["bench", "-e", node.endpoint, "--block-bytes", "64KiB", "--duration", "0.5", "--json", *more]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["calls"] > 0  # on a busy machine not many more


def test_size(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["size", "--config", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "131,072" in out
    assert "1 GiB in all" in out
    assert main(["size", "--config", str(tmp_path / "config.json"), "--json", "--dtype", "float8_e4m3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["groups"][0]["bytes_per_token"] == 65536
    assert result["compute_seconds"] > result["fetch_seconds"]
    assert main(["size", "--config", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_the_module_runs():
    done = subprocess.run([sys.executable, "-m", "kvstore", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kvstore 0.")


def test_numbers_for_people():
    assert [bytes_text(n) for n in (700, 2 << 20, 3 << 29)] == ["700 B", "2 MiB", "1.5 GiB"]
    assert [seconds_text(n) for n in (95e-5, 0.0123, 1.2, 12000)] == ["950 us", "12.3 ms", "1.2 s", "3 h 20 min"]
    assert [parse_bytes(text) for text in ("4096", "4KiB", "2MB", "1.5GiB")] == [4096, 4096, 2000000, 3 << 29]
    assert table(["a", "number"], [["x", "1"], ["long", "22"]]).splitlines()[1] == "x          1"
