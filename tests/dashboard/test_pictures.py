"""The pictures of the docs: ``FERRYMAN_SCREENSHOTS=docs/pictures pytest tests/dashboard/test_pictures.py`` makes them.

Otherwise they are made into a temporary folder, and only what they show is checked.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.start import prepare
from ferryman.plan.load import load_plan
from ferryman.verification import verify
from tests.dashboard.browsing import click, evaluate, served, text_of
from tests.dashboard.showcase import showcase
from tests.servers.browser import ChromiumServer, screenshot
from tests.support.plan_world import run_plan

DOCS = Path(__file__).parents[2] / "docs"
TARGET = os.environ.get("FERRYMAN_SCREENSHOTS")
LIBRARY = Path("/srv/library")
"""Folder that pictures of the docs show."""
DEMO = "/plans/standard-library-v1"
WIDE = {
    "plans": "/",
    "plan": DEMO,
    "failures": "/plans/newspapers-v2/failures?status=rejected",
    "document": "/plans/newspapers-v2/document?id=gazette/1911-03-13.txt",
    "runs": "/plans/newspapers-v2/runs?wave=2",
    "verify": DEMO + "/verify",
    "queue": "/queues/orders",
    "flow": "/flows/shop",
    "intake": "{intake}?kind=jobs",
    "confirm": "/plans/newspapers-v2/confirm?verb=retry&status=rejected",
}
"""Picture -> page."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo, as it leaves it and verified, and the showcase; made without Spark."""
    place = LIBRARY if TARGET else tmp_path_factory.mktemp("srv") / "library"
    place.mkdir(parents=True)
    try:
        folder = place / "ferryman-demo"
        prepare(folder)
        plan = load_plan(str(folder / "plan.py"))
        run_plan(plan, folder / "state", checked=False)
        verify(plan, state=folder / "state")
        with showcase(place):
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_pictures_of_the_docs(library: Path, server: Callable[[str], Any], tmp_path: Path) -> None:
    """Of each page one, of the plan's page also in the dark and on a phone; no temporary folder is in them."""
    chromium = server("chromium")
    assert isinstance(chromium, ChromiumServer)
    target = Path(TARGET or tmp_path)
    token = "anna:operator:a-secret-of-annas-own"
    with served("--allow-actions", ".", "shop/flow.py", "--token", token, cwd=library) as url:
        with chromium.open(1280, 560) as driver:
            _log_in(driver, url)
            driver.get(f"{url}/intake")
            intake = driver.find_element("css selector", "main h2 a").get_attribute("href").removeprefix(url)
            for name, path in WIDE.items():
                _take(driver, url + path.format(intake=intake), target / f"dashboard-{name}.png")
        with chromium.open(1280, 560, dark=True) as driver:
            _log_in(driver, url)
            _take(driver, url + DEMO, target / "dashboard-plan-dark.png")
        with chromium.open(400, 800, dark=True) as driver:
            _log_in(driver, url)
            _take(driver, url + DEMO, target / "dashboard-phone.png")


def _log_in(driver: Any, url: str) -> None:
    driver.get(url)
    driver.find_element("name", "token").send_keys("a-secret-of-annas-own")
    click(driver, "Go on")


def _take(driver: Any, url: str, file: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    driver.get(url)
    text = text_of(driver)
    done = "[...document.images].every(each => each.complete && each.naturalWidth)"
    WebDriverWait(driver, 60).until(lambda _: evaluate(driver, done))
    assert not TARGET or not re.search(r"/tmp|/dev/shm", text)
    assert not TARGET or str(DOCS.parent) not in text
    screenshot(driver, file)
    assert file.stat().st_size > 10_000


def test_each_picture_is_in_the_docs() -> None:
    pages = "".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    shown = set(re.findall(r"pictures/(dashboard-[\w-]+)\.png", pages))
    made = {f"dashboard-{name}" for name in (*WIDE, "plan-dark", "phone")}
    kept = {path.stem for path in (DOCS / "pictures").glob("dashboard-*.png")}
    assert shown == kept
    assert kept <= made
