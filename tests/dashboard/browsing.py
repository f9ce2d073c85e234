"""The dashboard as its command serves it, and what a person in front of a browser does with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.servers.browser import cdp
from tests.servers.cache import Missing, cached

AXE: Final = "4.14.1"
WAIT_S: Final = 60.0
TABS: Final = 150
"""Stops that a person would not go through for anything: the longest page has fewer."""
STALE: Final = 5
"""Times that a button may be replaced, by a page that refreshes itself, just when it is clicked."""
COUNTING: Final = ("nobody has asked this since it changed", "are being counted", "is being counted")
"""Words of a page that refreshes itself until it has its answers."""


@contextmanager
def served(*arguments: object, cwd: Path) -> Iterator[str]:
    """``ferryman dashboard`` in a process of its own; yields its URL, without a slash at the end."""
    command = [sys.executable, "-m", "ferryman.cli", "dashboard", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), url
            yield url.rstrip("/")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def axe_script() -> str:
    """axe-core, from npm."""

    def fill(folder: Path) -> None:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"axe-core@{AXE}"], cwd=folder, capture_output=True, text=True, check=False
        )
        if packed.returncode:
            raise Missing(f"npm pack axe-core@{AXE} failed: {packed.stderr[-300:]}")
        subprocess.run(["tar", "-xzf", packed.stdout.split()[-1]], cwd=folder, check=True)

    try:
        return (cached(f"axe-core-{AXE}", fill) / "package" / "axe.min.js").read_text("utf-8")
    except FileNotFoundError:
        raise Missing("npm is missing: install it (Debian, Ubuntu: apt-get install npm)") from None


def complaints(driver: Any) -> list[str]:
    """What axe finds on the page that is serious, or worse."""
    evaluate(driver, axe_script() + ";0")
    found = evaluate(driver, "axe.run().then(r => JSON.stringify(r.violations))")
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in json.loads(found)
        if each["impact"] in ("serious", "critical")
    ]


def evaluate(driver: Any, expression: str) -> Any:
    """The value of an expression in the page; the browser's own tool is not bound by the page's policy."""
    answer = cdp(driver, "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in answer, answer
    return answer["result"].get("value")


def overflow(driver: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return int(evaluate(driver, "document.documentElement.scrollWidth - window.innerWidth"))


def text_of(driver: Any) -> str:
    """What the page says, once it has counted."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, WAIT_S).until(lambda _: not any(words in _text(driver) for words in COUNTING), "counts")
    return _text(driver)


def _text(driver: Any) -> str:
    from selenium.common.exceptions import StaleElementReferenceException

    try:
        return " ".join(driver.find_element("tag name", "body").text.split())
    except StaleElementReferenceException:  # the page was refreshed meanwhile
        return COUNTING[0]


def click(driver: Any, words: str) -> None:
    """Click on the first link or button that begins with these words, and wait for the next page."""
    from selenium.common.exceptions import StaleElementReferenceException

    text = text_of(driver)
    literal = f"'{words}'" if "'" not in words else f'"{words}"'
    paths = [f"//main//{tag}[starts-with(normalize-space(.), {literal})]" for tag in ("a", "button")]
    for _ in range(STALE):
        found = [each for path in paths for each in driver.find_elements("xpath", path)]
        assert found, f"nothing here is called {words!r}: {text}"
        try:
            _go_on(driver, found[0].click)
        except StaleElementReferenceException:  # the page was refreshed meanwhile
            continue
        return
    raise AssertionError(f"{words!r} is replaced whenever it is clicked")


def tab_to(driver: Any, words: str) -> Any:
    """Go from where the focus is to the next link, button or field whose name begins with these words, by Tab alone."""
    from selenium.webdriver.common.keys import Keys

    names = []
    for _ in range(TABS):
        type_keys(driver, Keys.TAB)
        active, name = _focused(driver)
        names.append(name)
        if name.startswith(words):
            return active
    raise AssertionError(f"Tab does not come to {words!r}, only to {names}")


def _focused(driver: Any) -> tuple[Any, str]:
    """Return the element that has the focus, and its name."""
    from selenium.common.exceptions import StaleElementReferenceException

    while True:
        active = driver.switch_to.active_element
        with suppress(StaleElementReferenceException):  # the page has refreshed itself, and kept the focus
            return active, active.accessible_name


def type_keys(driver: Any, *keys: str) -> None:
    """Press keys, wherever the focus is."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def press(driver: Any, *keys: str) -> None:
    """Press keys, wherever the focus is, and wait for the next page."""
    _go_on(driver, lambda: type_keys(driver, *keys))


def _go_on(driver: Any, act: Callable[[], object]) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    before = driver.find_element("tag name", "html")
    act()
    WebDriverWait(driver, WAIT_S).until(lambda _: _is_gone(before) and _is_loaded(driver))


def _is_gone(element: Any) -> bool:
    from selenium.common.exceptions import WebDriverException

    try:
        return not element.is_enabled()
    except WebDriverException:
        return True


def _is_loaded(driver: Any) -> bool:
    return bool(driver.execute_script("return document.readyState") == "complete")
