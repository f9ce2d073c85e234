"""Chromium without a window, behind its driver, from Debian's packages."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tests.servers.debian import debian_program
from tests.servers.server import Server


class ChromiumServer(Server):
    """Chromium's driver; each ``open`` is a browser of its own."""

    name = "chromium"

    @classmethod
    def install(cls) -> Path:
        debian_program("chromium", "chromium")
        return Path(debian_program("chromedriver", "chromium-driver"))

    def layout(self) -> None:
        """Nothing: each browser has a profile of its own."""

    def command(self) -> list[str]:
        return [str(self.home), f"--port={self.port}"]

    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.folder)}

    def ready(self) -> bool:
        return self.answers("/status")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self, width: int = 1400, height: int = 900, *, dark: bool = False, script: bool = True) -> Any:
        """A browser with a window of this size."""
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = debian_program("chromium", "chromium")
        for argument in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "disable-dev-shm-usage"):
            options.add_argument(f"--{argument}")
        options.add_argument(f"--window-size={width},{height}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        options.accept_insecure_certs = True
        driver = webdriver.Remote(self.url, options=options)
        self.resize(driver, width, height)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        cdp(driver, "Emulation.setEmulatedMedia", features=features)
        cdp(driver, "Emulation.setScriptExecutionDisabled", value=not script)
        return driver

    @staticmethod
    def resize(driver: Any, width: int, height: int) -> None:
        """Give the window this size, which may be that of a phone."""
        cdp(
            driver,
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )


def cdp(driver: Any, command: str, **parameters: Any) -> Any:
    """Give Chromium a command of its own protocol."""
    return driver.execute("executeCdpCommand", {"cmd": command, "params": parameters})["value"]


def screenshot(driver: Any, file: Path) -> None:
    """Write a picture of the whole page."""
    taken = cdp(driver, "Page.captureScreenshot", format="png", captureBeyondViewport=True)
    file.write_bytes(base64.b64decode(taken["data"]))


def console(driver: Any) -> list[str]:
    """What the browser complained of since it was asked last."""
    found = driver.execute("getLog", {"type": "browser"})["value"]
    return [each["message"] for each in found]
