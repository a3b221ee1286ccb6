"""The status page in a real Chromium, on real nodes."""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import DOWN, ENTER, ESCAPE, LEFT, RIGHT, UP, Browser
from conftest import HOSTILE, HOSTILE_TENANT, MILLION, said
from forest import Forest
from processes import NODE, Certificates, Node, client_of
from programs import ROOT, Etcd, Process, eventually, free_port

PICTURE_BYTES_MAX = 200 * 1024
WIDE, PHONE = (1280, 900), (390, 844)


def show(browser: Browser, node: Node, *, size: tuple[int, int] = WIDE, colours: str = "light") -> None:
    """Opens the page and waits until everything on it is there."""
    browser.size(*size, is_phone=size[0] < 500)
    browser.colours(colours)
    browser.open(f"{node.url}/status")
    eventually("the tiles are there", lambda: browser.run("return document.querySelectorAll('.tile').length === 8"))
    eventually("the tree is there", lambda: browser.text("#tree-note") != "")
    eventually("charts are there", lambda: browser.text("#chart-hits .top") != "")


def bars(browser: Browser) -> list[dict[str, str]]:
    found: list[dict[str, str]] = browser.run(
        "return [...document.querySelectorAll('[role=treeitem]')].map(each => ({label: each.getAttribute('aria-label'), "
        "level: each.getAttribute('aria-level'), key: each.dataset.key}))"
    )
    return found


def complaints(browser: Browser) -> list[str]:
    """Of the console: errors of the page, and what its policy had to forbid."""
    return [entry["message"] for entry in browser.log() if entry["level"] == "SEVERE"]


@pytest.fixture(autouse=True)
def no_complaints(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" not in request.fixturenames:
        return
    browser = request.getfixturevalue("browser")
    browser.open("about:blank")  # or it would go on asking a node that another test stops
    found = complaints(browser)
    assert found == [] or request.node.get_closest_marker("complains")


def test_a_node_without_blocks_says_so(browser: Browser, empty: Node, pictures: Path) -> None:
    show(browser, empty)
    assert browser.text("#node-state") == "serving"
    assert browser.text("#node-name") == "empty"
    assert "No blocks are stored here." in browser.text("#tree-note")
    assert "No namespace was opened yet." in browser.text("#spaces")
    assert "belongs to no cluster" in browser.text("#cluster")
    assert len(bars(browser)) == 1
    browser.picture(pictures / "empty.png", is_whole=True)


def test_names_from_clients_are_text_and_nothing_else(browser: Browser, small: Node, pictures: Path) -> None:
    show(browser, small)
    assert HOSTILE in browser.text("#spaces")
    assert HOSTILE_TENANT in browser.text("#spaces")
    assert HOSTILE_TENANT in browser.text("#tenants")
    assert any(HOSTILE in bar["label"] for bar in bars(browser))
    assert HOSTILE in browser.text("#tree")
    assert browser.run("return window.hurt ?? null") is None
    assert (
        browser.run("return document.querySelectorAll('main img, main script, main iframe, main [onerror]').length")
        == 0
    )
    assert "c0ffee" not in browser.run("return document.documentElement.outerHTML")
    browser.picture(pictures / "hostile-names.png", is_whole=True)


def test_ten_blocks_are_shown_one_by_one(browser: Browser, small: Node) -> None:
    show(browser, small)
    found = bars(browser)
    # All, two namespaces, a run of four with two branches, and a run of three.
    assert sorted(int(bar["level"]) for bar in found) == [1, 2, 2, 3, 3, 4, 4]
    assert "Every block was counted." in browser.text("#tree-note")
    (shared,) = (bar for bar in found if "Tokens 0 to 64" in bar["label"])
    assert "448 B, 7 blocks" in shared["label"] and "2 branches" in shared["label"]
    browser.click(f'[data-key="{shared["key"]}"]')
    eventually(
        "its blocks are drawn", lambda: browser.run("return document.querySelectorAll('.cells span').length") == 4
    )
    assert "Tokens\n0 \u2013 64" in browser.text("#part")
    assert browser.run("return document.querySelectorAll('#trail button').length") == 2


@pytest.mark.complains
def test_its_policy_forbids_what_the_page_does_not_need(browser: Browser, small: Node) -> None:
    show(browser, small)
    tried = browser.run(
        "const tried = []; try { document.body.innerHTML += '<img src=x>'; tried.push('html'); } catch (error) {}"
        "const inline = document.createElement('div'); try { inline.setAttribute('onclick', 'window.hurt=3'); } catch (error) {}"
        "document.body.append(inline); inline.click(); if (window.hurt) tried.push('handler');"
        "return tried"
    )
    assert tried == []
    assert browser.run("return fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in entry["message"] for entry in browser.log())


def test_it_asks_nobody_else(browser: Browser, small: Node) -> None:
    show(browser, small)
    asked = browser.run("return performance.getEntriesByType('resource').map(each => each.name)")
    assert asked and all(name.startswith(f"{small.url}/status/") for name in asked), asked


def test_it_follows_the_node(browser: Browser, small: Node) -> None:
    show(browser, small)
    before = small.json("now.json")["memory"]["blocks"]
    with client_of(small) as client:
        space = client.open(block_bytes=64, block_size=16, model="plain-7b", tenant="acme", salt="c0ffee")
        assert client.put(space, Forest(before).chain(90)) == 90
    eventually("the tile tells of 90 more", lambda: f"{before + 90} blocks" in browser.text("#tiles"), 10)
    browser.run("document.getElementById('tree').scrollIntoView()")  # nobody asks for what nobody sees
    eventually(
        "and so does the tree", lambda: any(f"{before + 90} blocks" in bar["label"] for bar in bars(browser)), 20
    )
    browser.click("#pause")
    paused = browser.run("return performance.getEntriesByType('resource').length")
    time.sleep(2.5)  # more than the time between two questions
    assert (
        browser.run("return performance.getEntriesByType('resource').length") <= paused + 1
    )  # one may have been under way
    browser.click("#pause")


def test_the_tree_needs_no_mouse(browser: Browser, small: Node) -> None:
    show(browser, small)
    focused = (
        "const at = document.activeElement; return at.getAttribute('aria-level') + ': ' + at.getAttribute('aria-label')"
    )
    browser.run("document.querySelector('[role=treeitem][tabindex=\"0\"]').focus()")
    assert browser.run("return document.querySelectorAll('[role=treeitem][tabindex=\"0\"]').length") == 1
    assert browser.run(focused).startswith("1: All namespaces")
    browser.press(DOWN)
    first = browser.run(focused)
    assert first.startswith("2: ")
    browser.press(RIGHT)
    assert browser.run(focused).startswith("2: ") and browser.run(focused) != first
    browser.press(LEFT)
    assert browser.run(focused) == first
    browser.press(UP)
    assert browser.run(focused).startswith("1: All namespaces")
    browser.press(DOWN)
    browser.press(ENTER)
    eventually(
        "the namespace is the picture",
        lambda: browser.run(focused).startswith("1: ") and "All" not in browser.run(focused),
    )
    assert "All namespaces" in browser.text("#trail")
    browser.press(ESCAPE)
    eventually("back again", lambda: browser.run("return document.querySelectorAll('#trail button').length") == 0)
    browser.run("document.querySelector('#chart-memory').focus()")
    browser.press(LEFT)
    eventually("a chart tells its values", lambda: "in memory" in browser.text("#chart-memory"))


def test_a_screen_reader_is_told_everything(browser: Browser, small: Node) -> None:
    show(browser, small)
    nodes = browser.accessible()
    by_role: dict[str, list[dict[str, object]]] = {}
    for node in nodes:
        by_role.setdefault(str(node["role"]), []).append(node)
    headings = [str(node["name"]) for node in by_role["heading"]]
    for expected in ("small", "Now", "History", "Prefix tree", "Namespaces", "Hottest prefixes", "Tenants", "Cluster"):
        assert expected in headings
    for role in ("button", "treeitem", "tree", "table", "link", "image"):
        assert by_role.get(role), role
        assert all(str(node["name"]).strip() for node in by_role[role]), f"a {role} without a name"
    assert {node["level"] for node in by_role["treeitem"]} == {1, 2, 3, 4}
    charts = [str(node["name"]) for node in by_role["image"]]
    assert any(name.startswith("Hit rate, ") for name in charts) and len(charts) == 6
    assert by_role["columnheader"] and by_role["rowheader"] and by_role["cell"]
    assert by_role["status"] and by_role["main"] and by_role["banner"]
    pressed = {str(node["name"]): node.get("pressed") for node in by_role["button"]}
    assert pressed["Hour"] == "true" and pressed["Day"] == "false"


CONTRAST = """
const rgb = (text) => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d');
  canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (text) => {
  const parts = rgb(text).slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (at) => {
  for (; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (rgb(colour)[3] === 255) return colour;
  }
  return 'white';
};
const words = [...document.querySelectorAll('body *')].filter((each) => [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) && each.checkVisibility() && !each.closest('.rest, noscript, script, style, svg'));
return words.map((each) => {
  const [a, b] = [light(getComputedStyle(each).color), light(behind(each))].sort();
  return [(b + 0.05) / (a + 0.05), each.className + ': ' + each.textContent.slice(0, 30)];
}).filter(([contrast]) => contrast < 4.5);
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_word_is_legible(browser: Browser, small: Node, colours: str, pictures: Path) -> None:
    show(browser, small, colours=colours)
    assert browser.run(CONTRAST) == []
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in paper.strip("rgb()").split(","))
    assert (brightness > 600) if colours == "light" else (brightness < 150)
    browser.picture(pictures / f"ten-blocks-{colours}.png", is_whole=True)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_phone(browser: Browser, small: Node, width: int, pictures: Path) -> None:
    show(browser, small, size=(width, 800))
    assert browser.run("return document.documentElement.scrollWidth") <= width
    outside = browser.run(
        "return [...document.querySelectorAll('main *')].filter(each => each.getBoundingClientRect().right > innerWidth + 1 "
        "&& each.checkVisibility() && !each.closest('.plot, .tree')).map(each => each.tagName + '.' + each.className)"
    )
    assert outside == []
    small_targets = browser.run(
        "return [...document.querySelectorAll('button')].filter(each => each.checkVisibility() && each.offsetHeight < 32).map(each => each.textContent)"
    )
    assert small_targets == []
    browser.picture(pictures / f"ten-blocks-{width}.png", is_whole=True)


@pytest.mark.complains
def test_a_node_that_goes_away_is_told_of(browser: Browser, folder: Path) -> None:
    node = Node(folder, "leaving")
    try:
        show(browser, node)
        assert browser.run("return document.getElementById('trouble').hidden")
    finally:
        node.stop()
    eventually("it says so", lambda: "does not answer" in browser.text("#trouble"), 15)
    assert browser.text("#node-state") == "no answer"
    assert browser.text("#node-name") == "leaving", "what was seen last stays"


@pytest.mark.complains
def test_a_policy_asks_for_a_token(browser: Browser, folder: Path) -> None:
    tokens = {role: f"a-token-for-the-page-{role}-that-is-long-enough" for role in ("metrics", "reader")}
    policy = "".join(
        f'[{role}]\ntoken-sha256 = ["{hashlib.sha256(token.encode()).hexdigest()}"]\nroles = ["{role}"]\n'
        for role, token in tokens.items()
    )
    file = folder / "policy.toml"
    file.write_text(policy)
    file.chmod(0o600)
    node = Node(folder, "guarded", f"--policy-file={file}")
    try:
        for page in ("now.json", "history.json", "tree.json"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                node.json(page)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                node.json(page, tokens["reader"])
            assert node.json(page, tokens["metrics"])
        browser.size(*WIDE)
        browser.open(f"{node.url}/status")
        eventually(
            "the page asks for a token", lambda: browser.run("return !document.getElementById('token-form').hidden")
        )
        denied = browser.run("return performance.getEntriesByType('resource').length")
        time.sleep(2.5)
        assert browser.run("return performance.getEntriesByType('resource').length") == denied, (
            "it does not try again and again"
        )
        enter = "document.getElementById('token').value = arguments[0]; document.querySelector('#token-form button').click()"
        browser.run(enter, "a-token-that-nobody-has-and-that-is-long")
        eventually("a wrong one is refused", lambda: "does not have this token" in browser.text("#trouble"))
        browser.run(enter, tokens["metrics"])
        eventually("the node is shown", lambda: browser.run("return document.querySelectorAll('.tile').length === 8"))
        eventually("the form is gone", lambda: browser.run("return document.getElementById('token-form').hidden"))
        assert tokens["metrics"] not in browser.run(
            "return document.documentElement.outerHTML + location.href + JSON.stringify({...localStorage, ...sessionStorage})"
        )
    finally:
        node.stop()


def test_a_cluster_is_shown(browser: Browser, folder: Path, pictures: Path) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd (deploy/install-dependencies.sh --cluster)")
    parts: list[Process] = []
    nodes: list[Node] = []
    try:
        parts.append(etcd := Etcd(folder))
        options = [f"--etcd={etcd.url}", "--zone=north", "--move-rate=0"]
        for name in ("first", "second"):
            nodes.append(Node(folder, name, *options))
            parts.append(nodes[-1])
        eventually(
            "both are members", lambda: len((nodes[0].json("now.json")["cluster"] or {}).get("members", [])) == 2
        )
        show(browser, nodes[0])
        eventually("both are shown", lambda: "second" in browser.text("#cluster"))
        assert "first (this one)" in browser.text("#cluster")
        assert "north" in browser.text("#cluster")
        assert browser.run("return document.querySelectorAll('#cluster .pill.serving').length") == 2
        browser.picture(pictures / "cluster.png", is_whole=True)
        browser.open("about:blank")
    finally:
        for part in reversed(parts):
            part.stop()


def test_with_tls_a_certificate_opens_the_page(folder: Path, small: Node) -> None:
    """Without a browser: headless, Chromium shows no certificate."""
    certificates = Certificates(folder)
    files = [f"--tls-cert={certificates.certificate}", f"--tls-key={certificates.key}", f"--tls-ca={certificates.ca}"]
    port = free_port()
    arguments = [str(NODE), f"--listen=unix://{folder}/tls.sock", f"--admin=https://127.0.0.1:{port}", *files]
    with (folder / "tls.log").open("wb") as log:
        node = subprocess.Popen([*arguments, "--capacity=16MiB", "--rdma=off"], stdout=log, stderr=log)
    try:
        url, visitor = f"https://127.0.0.1:{port}", certificates.visitor()

        def ask(page: str) -> tuple[str, str] | None:
            try:
                with urllib.request.urlopen(f"{url}{page}", timeout=10, context=visitor) as answer:
                    return answer.headers["Content-Security-Policy"] or "", answer.read().decode()
            except urllib.error.URLError:
                return None

        policy, page = eventually("the page comes", lambda: ask("/status"))
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and "<!doctype html>" in page
        answer = ask("/status/now.json")
        assert answer and json.loads(answer[1])["node"]["state"] == "serving"
        nobody = ssl.create_default_context(cafile=str(certificates.ca))
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            urllib.request.urlopen(f"{url}/status", timeout=10, context=nobody).read()
    finally:
        node.terminate()
        node.wait(20)


def test_a_million_blocks_are_a_sample_taken_in_small_steps(browser: Browser, large: Node) -> None:
    assert large.metric("kvstore_blocks") == MILLION
    tree = large.json("tree.json")
    assert not tree["is_exact"] and tree["blocks_per_sample"] > 50
    assert len(tree["parts"]) <= 1200
    assert len(json.dumps(tree)) < 512 * 1024
    assert tree["parts"][0]["parent"] == -1
    total = sum(part["blocks"] for part in tree["parts"] if part["parent"] < 0)
    assert abs(total - MILLION) < MILLION * 0.02, total
    held = []
    for _ in range(5):
        time.sleep(3)  # until the node looks again
        tree = large.json("tree.json")
        held.append(tree["lock_held_max_us"])
    # The machine may stop a thread while it holds the lock: of a few tries the best one says what the work is.
    said.append(
        f"a million blocks: {tree['lock_holds']} looks, the longest {min(held)} to {max(held)} us; {tree['took_us'] / 1e3:.0f} ms in all"
    )
    assert min(held) < 2000, held
    show(browser, large)
    assert "From a sample of one block in" in browser.text("#tree-note")
    assert 50 < len(bars(browser)) <= 1200


def test_a_million_blocks_can_be_looked_into_down_to_one(browser: Browser, large: Node) -> None:
    show(browser, large)
    for _ in range(12):
        found = bars(browser)
        if (
            "Every block was counted." in browser.text("#tree-note")
            and browser.run("return document.querySelectorAll('.cells span').length") > 0
        ):
            break
        deepest = max(found, key=lambda bar: int(bar["level"]))
        browser.run("document.querySelector(`[data-key='${arguments[0]}']`).click()", deepest["key"])
        eventually(
            "the node was asked",
            lambda: "Every block" in browser.text("#tree-note") or "a sample" in browser.text("#tree-note"),
        )
        time.sleep(0.5)
    assert browser.run("return document.querySelectorAll('.cells span').length") > 0
    browser.click("#trail button")
    eventually("back at the top", lambda: browser.run("return document.querySelectorAll('#trail button').length") == 0)


def test_every_field_is_documented(large: Node, small: Node) -> None:
    manual = (ROOT / "docs/operating.md").read_text()

    def names_of(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*(names_of(each) for each in value[:50])) if value else set()
        if not isinstance(value, dict):
            return set()
        found = set(value) if not all(key.isdecimal() for key in value) else set()
        return found.union(*(names_of(each) for key, each in value.items() if key != "fields"))

    for node in (large, small):
        for page in ("now.json", "history.json", "tree.json"):
            undocumented = {name for name in names_of(node.json(page)) if f"`{name}`" not in manual}
            assert undocumented == set(), page


def test_pictures_for_the_manual(browser: Browser, large: Node, pictures: Path) -> None:
    """Under a little load, so that there is something to see."""
    stop = threading.Event()

    def load() -> None:
        with client_of(large) as client:
            Forest(3).load(client, stop.is_set)

    worker = threading.Thread(target=load)
    worker.start()
    try:
        eventually("the history has some points", lambda: len(large.json("history.json")["age_s"]) >= 10, 60)
        for name, size, colours in (
            ("status-page", WIDE, "light"),
            ("status-page-dark", WIDE, "dark"),
            ("status-page-phone", PHONE, "dark"),
        ):
            show(browser, large, size=size, colours=colours)
            browser.click("[data-colour=uses]")
            top, bottom = browser.run(
                "const at = (id) => document.getElementById(id).getBoundingClientRect(); "
                "return [at('tree-heading').top + scrollY - 16, at('tree-note').bottom + scrollY + 16]"
            )
            clip = {"y": 0, "height": bottom} if size == WIDE else {"y": top, "height": 900}
            browser.picture(pictures / f"{name}.png", clip={"x": 0, "width": size[0], **clip})
            browser.picture(pictures / f"{name}-whole.png", is_whole=True)
    finally:
        stop.set()
        worker.join()
    for name in ("status-page", "status-page-dark", "status-page-phone"):
        picture = pictures / f"{name}.png"
        assert picture.stat().st_size < PICTURE_BYTES_MAX, name
        shown = ROOT / "docs" / picture.name
        assert shown.exists() and shown.stat().st_size < PICTURE_BYTES_MAX, f"{shown}: copy it from {picture}"
