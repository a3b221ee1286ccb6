"""A real Chromium, driven by chromedriver over its HTTP interface (W3C WebDriver, and DevTools commands passed through). No library is
needed: each command is one JSON request."""

from __future__ import annotations

import base64
import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from programs import Process, free_port

ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"
UP, DOWN, LEFT, RIGHT = "\ue013", "\ue015", "\ue012", "\ue014"


def missing() -> list[str]:
    """What is not there and has to be, in words."""
    return [
        f"{name} (deploy/install-dependencies.sh --page)"
        for name in ("chromium", "chromedriver")
        if shutil.which(name) is None
    ]


class Browser:
    """One window without a screen. `folder` takes its profile and the driver's log."""

    def __init__(self, folder: Path) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        port = self._url.rsplit(":", 1)[1]
        self._driver = Process(folder / "chromedriver.log", ["chromedriver", f"--port={port}"], f"{self._url}/status")
        arguments = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        arguments += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium's own sandbox refuses root
        capabilities = {
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"},
            "acceptInsecureCerts": True,
        }
        try:
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        except BaseException:
            self._driver.stop()
            raise
        self._session = f"/session/{made['sessionId']}"

    def close(self) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._driver.stop()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:2000]}") from None

    def command(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._ask("POST", self._session + path, body or {})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.command("/goog/cdp/execute", {"cmd": command, "params": parameters})

    # -- what a test does

    def size(self, width: int, height: int, *, is_phone: bool = False, scale: float = 1) -> None:
        """The viewport's, not the window's."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=is_phone,
        )

    def colours(self, scheme: str) -> None:
        """`light` or `dark`: as the person's system would say."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        self.command("/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """`script`: a function body; what it returns."""
        return self.command("/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.command("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, selector: str) -> None:
        found = self.command("/element", {"using": "css selector", "value": selector})
        self.command(f"/element/{next(iter(found.values()))}/click")

    def log(self) -> list[dict[str, Any]]:
        """Of the console, since the last call: also what the page's policy forbade."""
        entries: list[dict[str, Any]] = self.command("/se/log", {"type": "browser"})
        return entries

    def accessible(self) -> list[dict[str, Any]]:
        """What a screen reader is given, as {role, name, ...}, without what is ignored."""
        self.devtools("Accessibility.enable")
        nodes = self.devtools("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node.get("role", {}).get("value"),
                "name": node.get("name", {}).get("value", ""),
                **{each["name"]: each["value"].get("value") for each in node.get("properties", [])},
            }
            for node in nodes
            if not node.get("ignored")
        ]

    def picture(self, file: Path, *, is_whole: bool = False, clip: dict[str, float] | None = None) -> None:
        """PNG of the viewport, the whole page, or a part of it."""
        more: dict[str, Any] = {"captureBeyondViewport": True} if is_whole or clip else {}
        if is_whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        if clip:
            more["clip"] = {**clip, "scale": 1}
        taken = self.devtools("Page.captureScreenshot", format="png", **more)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(taken["data"]))
