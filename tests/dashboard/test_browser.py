"""The dashboard in a real browser, behind a real proxy: what a person does, by click, by keyboard, on a phone.

With ``FERRYMAN_SCREENSHOTS=docs/pictures`` the story of the newcomer (``-k newcomer``) makes the pictures of the docs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.cli.start import prepare
from ferryman.plan.load import load_plan
from ferryman.queues import Queue
from tests.dashboard.browsing import click, complaints, evaluate, overflow, served, text_of
from tests.dashboard.conftest import fill
from tests.servers.browser import ChromiumServer, console, screenshot
from tests.servers.cache import Missing
from tests.servers.nginx import Nginx
from tests.servers.registry import require
from tests.support.plan_world import MEMORY, run_plan

DOCS = Path(__file__).parents[2] / "docs"
PLAN = "/plans/trial-v1"
SIZES = [(1400, False), (400, True)]
PATHS = (
    "/",
    PLAN,
    f"{PLAN}/failures",
    f"{PLAN}/failures?status=rejected",
    f"{PLAN}/document?id=bug",
    f"{PLAN}/document?id=book",
    f"{PLAN}/document?id=none",
    f"{PLAN}/runs?wave=1",
    f"{PLAN}/verify",
    f"{PLAN}/remembered",
    f"{PLAN}/confirm?verb=retry&status=failed",
    f"{PLAN}/outcome?message=x",
    "/queues",
    "/queues/orders",
    "/flows",
    "/intake",
    "/no-such-page",
)


@pytest.fixture(scope="module")
def chromium(server: Callable[[str], Any]) -> ChromiumServer:
    found: ChromiumServer = server("chromium")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a state and a queue, in which tests change nothing."""
    place = tmp_path_factory.mktemp("browsed")
    fill(place)
    Queue("orders", place / "queues").append([{"order": n} for n in range(3)])
    return place


@pytest.fixture(scope="module")
def site(folder: Path, chromium: ChromiumServer) -> Iterator[str]:
    with served("--allow-actions", cwd=folder) as url:
        yield url


def _axe(driver: Any) -> list[str]:
    try:
        return complaints(driver)
    except Missing as e:
        require(str(e))


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_pages_fit_their_window_and_are_accessible(width: int, dark: bool, site: str, chromium: ChromiumServer) -> None:
    """The pages that people use most: nothing is cut off, axe finds nothing serious, the browser complains of nothing,
    and scripts and styles of ours are allowed by our own policy."""
    with chromium.open(width, dark=dark) as driver:
        _look_at(driver, site, (PLAN, f"{PLAN}/failures?status=rejected", f"{PLAN}/document?id=bug"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_all_pages_fit_and_are_accessible(width: int, dark: bool, site: str, chromium: ChromiumServer) -> None:
    with chromium.open(width, dark=dark) as driver:
        _look_at(driver, site, PATHS)


def _look_at(driver: Any, site: str, paths: tuple[str, ...]) -> None:
    for path in paths:
        driver.get(site + path)
        text_of(driver)
        assert overflow(driver) <= 0, path
        assert _axe(driver) == [], path
        assert [line for line in console(driver) if "404" not in line] == [], path


def test_a_retry_by_click_and_by_keyboard(tmp_path: Path, chromium: ChromiumServer) -> None:
    """From the list of plans to the outcome, without a script; then the same by keyboard, with scripts."""
    from selenium.webdriver.common.keys import Keys

    world = fill(tmp_path)
    with served("--allow-actions", world.state, cwd=tmp_path) as url:
        with chromium.open(script=False) as driver:
            driver.get(url)
            for words in ("trial-v1", "field 'title' is missing", "refused", "Retry it", "Retry 1 delivery"):
                click(driver, words)
            assert "1 delivery: 1 pending" in text_of(driver)
        with chromium.open(400) as driver:
            driver.get(f"{url}{PLAN}/confirm?verb=retry&document=bad1")
            text_of(driver)
            field = driver.switch_to.active_element
            assert field.get_attribute("name") == "why"
            field.send_keys("glued" + Keys.ENTER)
            _wait_for(driver, "1 delivery: 1 pending")
            driver.get(url)
            active = driver.switch_to.active_element
            active.send_keys(Keys.TAB)
            assert driver.switch_to.active_element.text == "To the content"
            driver.switch_to.active_element.send_keys(Keys.ENTER)
            assert evaluate(driver, "document.activeElement.id") == "main"
    assert "glued" in world.history("bad1")[-1]["message"]
    assert world.counts()["pending"] == 3


@pytest.mark.slow
def test_a_page_refreshes_itself(tmp_path: Path, chromium: ChromiumServer) -> None:
    world = fill(tmp_path)
    with served(world.state, cwd=tmp_path) as url, chromium.open() as driver:
        driver.get(f"{url}/plans/trial-v1/outcome?message=retry+by+a%3A+b")
        assert "is queued" in text_of(driver)
        from ferryman.operations import submit_command
        from ferryman.state.commands import Command

        submit_command(world.plan, world.state, Command("retry", "a", "b", document="bad1"))
        _wait_for(driver, "1 delivery: 1 pending")
        assert "UTC" in driver.find_element("css selector", "time").get_attribute("title") or evaluate(
            driver, "Intl.DateTimeFormat().resolvedOptions().timeZone"
        )


def _wait_for(driver: Any, words: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, 60).until(lambda _: words in text_of(driver), f"no {words!r}")


def test_under_a_path_behind_a_proxy_with_tls(tmp_path: Path, chromium: ChromiumServer) -> None:
    """The configuration of the how-to, with this test's ports and files: a person signs in at nginx, acts, and is in
    the ledger by that name; another one only reads."""
    import trustme

    try:
        Nginx.install()
    except Missing as e:
        require(str(e))
    text = (DOCS / "how-to" / "run-the-dashboard-behind-a-proxy.md").read_text("utf-8")
    site = re.findall(r"```nginx\n(.*?)```", text, re.DOTALL)[0]
    command = re.findall(r"ferryman dashboard /srv/states (.*?)\n```", text, re.DOTALL)[0].replace("\\\n", " ")
    world = fill(tmp_path)
    certificate = trustme.CA().issue_cert("ferryman.example.org", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    hashed = subprocess.run(
        ["openssl", "passwd", "-apr1", "secret"], capture_output=True, text=True, check=True
    ).stdout.strip()
    (tmp_path / "users").write_text(f"alice:{hashed}\nbob:{hashed}\n")
    tmp_path.chmod(0o755)
    with served(world.state, *command.split(), "--allow-host", "localhost", cwd=tmp_path) as url:
        proxy = Nginx()
        for old, new in (
            ("443 ssl", f"127.0.0.1:{proxy.site_port} ssl"),
            ("ferryman.example.org", "localhost"),
            ("/etc/ssl/ferryman.pem", f"{tmp_path}/both.pem"),
            ("/etc/ssl/ferryman.key", f"{tmp_path}/both.pem"),
            ("/etc/nginx/ferryman.users", f"{proxy.folder}/users"),
            ("http://127.0.0.1:8440", url.removesuffix("/ferryman")),
        ):
            assert old in site, old
            site = site.replace(old, new)
        proxy.site = site
        shutil.copy(tmp_path / "users", proxy.folder / "users")
        with proxy, chromium.open() as driver:
            _through_the_proxy(driver, f"localhost:{proxy.site_port}/ferryman")
    assert world.history("refused")[-1]["message"].startswith("retry by alice")


def _through_the_proxy(driver: Any, address: str) -> None:
    driver.get(f"https://alice:secret@{address}/")
    click(driver, "trial-v1")
    assert evaluate(driver, "document.querySelector('figure img').naturalWidth") > 100
    for words in ("Failures", "field 'title' is missing", "refused", "Retry it", "Retry 1 delivery"):
        click(driver, words)
    assert "1 delivery: 1 pending" in text_of(driver)
    assert [line for line in console(driver) if "favicon" not in line] == []
    driver.get(f"https://bob:secret@{address}/plans/trial-v1/confirm?verb=retry")
    assert "bob is a reader here" in text_of(driver)


@pytest.fixture(scope="module")
def demo() -> Iterator[Path]:
    """What `ferryman demo` leaves, made without Spark."""
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="ferryman-demo-", dir=MEMORY if MEMORY.is_dir() else None))
    folder = place / "ferryman-demo"
    prepare(folder)
    run_plan(load_plan(str(folder / "plan.py")), folder / "state", checked=False)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_a_newcomer_finds_the_broken_files_of_the_demo(demo: Path, chromium: ChromiumServer, tmp_path: Path) -> None:
    """Without the docs: which three files are broken, why, and how to retry one. Makes the pictures of the docs."""
    pictures = Path(os.environ.get("FERRYMAN_SCREENSHOTS", tmp_path))
    with served("--allow-actions", cwd=demo) as url:
        with chromium.open(1280, 720) as driver:
            driver.get(url)
            assert "has failures" in text_of(driver)
            screenshot(driver, pictures / "dashboard-plans.png")
            click(driver, "standard-library-v1")
            text = text_of(driver)
            for name, why in (
                ("dangling.txt", "which does not exist"),
                ("loop.txt", "which leads in a circle"),
                ("undecodable.txt", "not utf-8 text"),
            ):
                assert name in text
                assert why in text
            _settle(driver)
            screenshot(driver, pictures / "dashboard-plan.png")
            click(driver, "broken/undecodable.txt")
            text_of(driver)
            screenshot(driver, pictures / "dashboard-document.png")
            click(driver, "Retry it")
            text_of(driver)
            screenshot(driver, pictures / "dashboard-confirm.png")
            click(driver, "Retry 1 delivery")
            assert "1 delivery: 1 pending" in text_of(driver)
            assert "ferryman run ferryman-demo/plan.py --state ferryman-demo/state" in text_of(driver)
        with chromium.open(400, 800, dark=True) as driver:
            driver.get(f"{url}/plans/standard-library-v1")
            text_of(driver)
            _settle(driver)
            screenshot(driver, pictures / "dashboard-phone.png")
    plan, state = load_plan(str(demo / "ferryman-demo" / "plan.py")), demo / "ferryman-demo" / "state"
    run_plan(plan, state, checked=False)
    events = account.history(state / plan.key, "broken/undecodable.txt", plan)
    assert [event["status"] for event in events] == ["ERROR_DOC", "RESTART", "ERROR_DOC"]  # it is broken still


def _settle(driver: Any) -> None:
    """Wait until all pictures of the page are there."""
    from selenium.webdriver.support.wait import WebDriverWait

    done = "[...document.images].every(each => each.complete && each.naturalWidth)"
    WebDriverWait(driver, 60).until(lambda _: evaluate(driver, done))
