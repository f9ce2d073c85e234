"""The dashboard in a real browser, behind a real proxy: what a person does, by click, by keyboard, on a phone."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

from ferryman import account
from ferryman.destinations.base import Delivery, Outcome
from ferryman.intake import JobQueue
from ferryman.operations import submit_command
from ferryman.plan import Plan
from ferryman.plan.load import load_plan
from ferryman.queues import Queue
from ferryman.sources import Memory
from ferryman.state.commands import Command
from tests.dashboard.browsing import click, complaints, evaluate, overflow, press, served, tab_to, text_of, type_keys
from tests.dashboard.conftest import OPERATOR, READER, TOKENS, fill
from tests.dashboard.showcase import showcase
from tests.dashboard.test_strangers import BIDI, CONTROL, IDS, LINES, MARKUP
from tests.servers.browser import ChromiumServer, cdp, console
from tests.servers.cache import Missing
from tests.servers.nginx import Nginx
from tests.servers.registry import require
from tests.support.plan_world import MEMORY, PlanWorld, run_plan

DOCS = Path(__file__).parents[2] / "docs"
PLAN = "/plans/trial-v1"
SIZES = [(1400, False), (1400, True), (400, False), (400, True)]
PATHS = (
    "/",
    PLAN,
    "/plans/newspapers-v2",
    f"{PLAN}/failures",
    f"{PLAN}/failures?status=rejected",
    f"{PLAN}/document?id=bug",
    f"{PLAN}/document?id=book",
    f"{PLAN}/document?id=none",
    f"{PLAN}/runs?wave=1",
    "/plans/newspapers-v2/verify",
    "/plans/newspapers-v2/remembered",
    "/plans/spent-v1/state",
    "/plans/spent-v1/state?node=totals",
    "/plans/spent-v1/state?node=totals&key=Ada",
    f"{PLAN}/confirm?verb=retry&status=failed",
    f"{PLAN}/outcome?message=x",
    "/queues",
    "/queues/orders",
    "/flows",
    "/flows/shop",
    "/intake",
    "{intake}",
    "{intake}?kind=jobs",
    "{intake}?kind=access",
    "{intake}/item?id={job}",
    "/login",
    "/no-such-page",
)
NOT_THERE = (f"{PLAN}/document?id=none", "/no-such-page")


@pytest.fixture(scope="module")
def chromium(server: Callable[[str], Any]) -> ChromiumServer:
    found: ChromiumServer = server("chromium")
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with something of everything, in which tests change nothing."""
    place = Path(tempfile.mkdtemp(prefix="ferryman-browsed-", dir=MEMORY if MEMORY.is_dir() else None))
    fill(place / "trial")
    with showcase(place):
        yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def site(folder: Path, chromium: ChromiumServer) -> Iterator[str]:
    with served("--allow-actions", ".", "shop/flow.py", cwd=folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser(chromium: ChromiumServer) -> Iterator[Any]:
    with chromium.open() as driver:
        yield driver


def _axe(driver: Any) -> list[str]:
    try:
        return complaints(driver)
    except Missing as e:
        require(str(e))


def test_pages_fit_their_window_and_are_accessible(site: str, chromium: ChromiumServer, folder: Path) -> None:
    """Each page, in a wide light window or on a dark phone: nothing is cut off, axe finds nothing serious, the browser
    complains of nothing, and scripts and styles of ours are allowed by our own policy."""
    paths = _paths(site, folder)
    with chromium.open(1400) as driver:
        _look_at(driver, site, paths[::2])
    with chromium.open(400, dark=True) as driver:
        _look_at(driver, site, paths[1::2])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_all_pages_fit_and_are_accessible(
    width: int, dark: bool, site: str, chromium: ChromiumServer, folder: Path
) -> None:
    with chromium.open(width, dark=dark) as driver:
        _look_at(driver, site, _paths(site, folder))


def _paths(site: str, folder: Path) -> list[str]:
    with JobQueue.open(f"sqlite:///{folder}/intake/queue.db") as queue:
        job = queue.list_jobs()[0]
    with urllib.request.urlopen(f"{site}/intake") as answer:
        [intake, *_] = re.findall(r'href="(/intake/[^"?]+)"', answer.read().decode())
    return [path.format(intake=intake, job=job) for path in PATHS]


def _look_at(driver: Any, site: str, paths: Sequence[str]) -> None:
    for path in paths:
        driver.get(site + path)
        text_of(driver)
        assert overflow(driver) <= 0, path
        assert _axe(driver) == [], path
        said = console(driver)
        if path in NOT_THERE:
            assert "404" in said.pop(0), path
        assert said == [], path


# --- what a person does: looking ---


def test_a_document_and_a_key_are_found(site: str, browser: Any) -> None:
    """By click and by keyboard."""
    browser.get(f"{site}/plans/trial-v1")
    text_of(browser)
    tab_to(browser, "Id of a document").send_keys("book")
    press(browser, Keys.ENTER)
    assert browser.find_element("tag name", "h1").text == "book"
    click(browser, "book#p1")
    browser.find_element("id", "find-id").send_keys("boook")
    click(browser, "Find")
    assert "There is no such document" in text_of(browser)
    click(browser, "book")

    browser.get(f"{site}/plans/spent-v1")
    click(browser, "State by key")
    click(browser, "totals")
    click(browser, "Ada")
    assert "Sequence" in text_of(browser)
    key = tab_to(browser, "Key")
    key.clear()
    key.send_keys("Nobody")
    press(browser, Keys.ENTER)
    assert "Nobody has no state in totals" in text_of(browser)


def test_a_queue_is_paged_through(site: str, browser: Any) -> None:
    """From its end to its beginning by click, and back by keyboard."""
    browser.get(f"{site}/queues")
    click(browser, "orders")
    text = text_of(browser)
    assert "57 messages kept" in text
    seen = [_indexes(browser)]
    while browser.find_elements("link text", "Older"):
        click(browser, "Older")
        seen.append(_indexes(browser))
    assert {index for page in seen for index in page} == {*range(1, 58)}
    tab_to(browser, "Newer")
    press(browser, Keys.ENTER)
    assert _indexes(browser)[0] == 21


def _indexes(driver: Any) -> list[int]:
    text_of(driver)
    return [int(each.text) for each in driver.find_elements("css selector", "td[data-label='Index']")]


def test_plans_flows_and_runs_are_gone_through(site: str, browser: Any) -> None:
    """From the list to a plan that runs, to its waves and what happened in one; from a flow to its plans."""
    browser.get(site)
    assert "running" in text_of(browser)
    tab_to(browser, "newspapers-v2")
    press(browser, Keys.ENTER)
    assert "Wave 3: deliver" in text_of(browser)
    click(browser, "Runs")
    click(browser, "1")
    assert "What happened in wave 1" in text_of(browser)
    click(browser, "Verify")
    assert "up to wave 2 of 3" in text_of(browser)
    click(browser, "Remembered")
    assert "embed" in text_of(browser)
    browser.get(f"{site}/flows")
    click(browser, "shop")
    assert "letters reads it" in text_of(browser)
    assert evaluate(browser, "document.querySelector('figure img').decode().then(() => true)")
    click(browser, "spent")
    assert "12 to come" in text_of(browser)


def test_a_page_that_refreshes_itself_keeps_the_focus(site: str, browser: Any) -> None:
    """And details as they were opened: the plan's page refreshes itself every three seconds while it runs."""
    browser.get(f"{site}/plans/newspapers-v2")
    text_of(browser)
    tab_to(browser, "gazette/1911-03-12.txt")
    before = browser.switch_to.active_element
    WebDriverWait(browser, 60).until(staleness_of(before))
    assert evaluate(browser, "document.activeElement.textContent") == "gazette/1911-03-12.txt"

    browser.get(f"{site}{PLAN}/document?id=bug")
    text_of(browser)
    trace = browser.find_element("css selector", "details[open] > summary")
    tab_to(browser, "Traceback")
    type_keys(browser, Keys.SPACE)
    WebDriverWait(browser, 60).until(staleness_of(trace))
    assert evaluate(browser, "document.activeElement.textContent") == "Traceback of the step"
    assert not evaluate(browser, "document.querySelector('details').open")


def test_times_are_in_the_zone_of_the_reader(site: str, chromium: ChromiumServer) -> None:
    """Their text or their title, with how long ago it was in the other; in UTC without a script."""
    with chromium.open() as driver:
        cdp(driver, "Emulation.setTimezoneOverride", timezoneId="Asia/Kathmandu")
        cdp(driver, "Emulation.setLocaleOverride", locale="en-GB")
        driver.get(f"{site}{PLAN}/document?id=bug")
        text_of(driver)
        full, short = _time(driver, "time.full"), _time(driver, "time:not(.full)")
    with chromium.open(script=False) as driver:
        driver.get(f"{site}{PLAN}/document?id=bug")
        text_of(driver)
        plain = _time(driver, "time.full")
    at = dt.datetime.fromisoformat(full["at"])
    local = f"{at.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=45))):%H:%M:%S} GMT+5:45"
    assert full["text"].endswith(local)
    assert full["title"].endswith(" ago")
    assert short["text"].endswith(" ago")
    assert short["title"].endswith(" GMT+5:45")
    assert plain["text"] == f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _time(driver: Any, selector: str) -> dict[str, str]:
    element = driver.find_element("css selector", selector)
    return {
        "at": element.get_attribute("datetime"),
        "text": element.text,
        "title": element.get_attribute("title"),
    }


# --- what a person does: acting ---


class Acting(NamedTuple):
    """A site where an operator is logged in, in a browser, over states that the tests change, each something else."""

    url: str
    driver: Any
    trial: PlanWorld
    letters: PlanWorld
    queue: JobQueue


@pytest.fixture(scope="module")
def acting(chromium: ChromiumServer) -> Iterator[Acting]:
    place = Path(tempfile.mkdtemp(prefix="ferryman-acting-", dir=MEMORY if MEMORY.is_dir() else None))
    trial, letters = fill(place), PlanWorld(place / "sent", _letters).build()
    letters.put("ada", "grace", "hedy")
    letters.run()
    queue = JobQueue.open(f"sqlite:///{place}/queue.db")
    batch = queue.create_batch({"submitter": "carla"})
    for number in range(3):
        batch.create_job({"jobID": f"job {number}"}, 3)
    tokens = [f"--token={each}" for each in TOKENS]
    with queue, served("--allow-actions", *tokens, cwd=place) as url, chromium.open() as driver:
        yield Acting(url, driver, trial, letters, queue)
    shutil.rmtree(place, ignore_errors=True)


def _letters(world: PlanWorld) -> Plan:
    """A plan that sends at most once, of whose deliveries nobody knows the outcome."""
    plan = Plan("letters", version=1)
    world.out().before = _no_answer
    plan.source("docs", Memory(world.documents)).destination("post", world.out(), guarantee="at-most-once", batch=1)
    return plan


def _no_answer(chunk: list[Delivery]) -> None:
    raise RuntimeError("connection reset")


@pytest.fixture
def operator(acting: Acting) -> Acting:
    """Otto, logged in."""
    acting.driver.get(f"{acting.url}/login")
    if acting.driver.find_elements("name", "token"):
        acting.driver.find_element("name", "token").send_keys(OPERATOR)
        press(acting.driver, Keys.ENTER)
    return acting


def test_a_token_is_given_and_taken_back(acting: Acting) -> None:
    """By keyboard: the field has the focus, a wrong token is said to be wrong; by click one leaves again."""
    driver = acting.driver
    driver.get(f"{acting.url}{PLAN}/runs")
    assert "Your token" in text_of(driver)
    driver.switch_to.active_element.send_keys("nobody's")
    press(driver, Keys.ENTER)
    assert driver.find_element("css selector", "[role=alert]").text == "This is no token of this dashboard."
    assert _axe(driver) == []
    driver.switch_to.active_element.send_keys(OPERATOR)
    press(driver, Keys.ENTER)
    assert driver.current_url == f"{acting.url}{PLAN}/runs"
    assert "otto" in text_of(driver)
    tab_to(driver, "Leave")
    press(driver, Keys.ENTER)
    driver.get(acting.url)
    driver.find_element("name", "token").send_keys(READER)
    click(driver, "Go on")
    assert "reader rita" in text_of(driver)
    driver.find_element("css selector", ".person button").click()


def test_groups_and_all_that_are_filtered_are_retried(operator: Acting) -> None:
    """One reason by click; then all that were rejected, whatever the reason, by keyboard, with a word on why."""
    driver, trial = operator.driver, operator.trial
    driver.get(f"{operator.url}{PLAN}/failures?status=failed")
    click(driver, "Retry it")
    click(driver, "Retry 1 delivery")
    assert "1 delivery: 1 pending" in text_of(driver)
    driver.get(f"{operator.url}{PLAN}/failures?status=rejected")
    text_of(driver)
    tab_to(driver, "Retry all that pass these filters")
    press(driver, Keys.ENTER)
    assert "Retry: 2 deliveries" in text_of(driver)
    driver.switch_to.active_element.send_keys("glued")
    press(driver, Keys.ENTER)
    assert "2 deliveries: 2 pending" in text_of(driver)
    assert "retry by otto: glued" in trial.history("bad22")[-1]["message"]
    assert trial.counts()["pending"] == 4


def test_what_is_in_doubt_is_resolved(operator: Acting) -> None:
    """One of them by keyboard, on its own page; then all of one reason by click."""
    driver = operator.driver
    driver.get(f"{operator.url}/plans/letters-v1/document?id=ada")
    text_of(driver)
    tab_to(driver, "Resolve as failed")
    press(driver, Keys.ENTER)
    tab_to(driver, "Resolve --as failed 1 delivery")
    press(driver, Keys.ENTER)
    assert "1 delivery: 1 failed" in text_of(driver)
    driver.get(f"{operator.url}/plans/letters-v1")
    click(driver, "Resolve as delivered")
    click(driver, "Resolve --as delivered 2 deliveries")
    assert "2 deliveries: 2 delivered" in text_of(driver)
    assert operator.letters.counts("post") == {"delivered": 2, "failed": 1}


def test_a_document_is_sent_again(operator: Acting) -> None:
    driver = operator.driver
    driver.get(f"{operator.url}{PLAN}/document?id=a")
    click(driver, "Send again")
    assert "read again and send again, changed or not" in text_of(driver).lower()
    click(driver, "Retry --force 1 delivery")
    assert "is queued" in text_of(driver) or "pending" in text_of(driver)
    assert operator.trial.history("a")[-1]["message"].startswith("retry --force by otto")


def test_jobs_are_held_released_and_requeued(operator: Acting) -> None:
    """Two are ticked and held by keyboard; one is released, another one fails and is requeued, by click."""
    driver, queue = operator.driver, operator.queue
    one, two, three = queue.list_jobs()
    driver.get(operator.url + "/intake")
    click(driver, "3 Pending")
    for job in (one, two):
        tab_to(driver, f"Choose {job}").send_keys(Keys.SPACE)
    tab_to(driver, "Message").send_keys("a better scan comes")
    tab_to(driver, "Hold")
    press(driver, Keys.ENTER)
    assert f"{one}: Held" in text_of(driver)
    assert [queue.load_job(job).status for job in (one, two, three)] == ["Held", "Held", "Pending"]
    assert queue.load_job(one).message == "a better scan comes (by otto)"
    steps = ((one, "2 Held", "Release", "Pending"), (three, "2 Pending", "Fail", "Failed"))
    for job, pill, action, status in (*steps, (three, "1 Failed", "Requeue", "Estimating")):
        driver.get(f"{operator.url}/intake")
        click(driver, pill)
        click(driver, job)
        click(driver, action)
        assert queue.load_job(job).status == status


def test_a_retry_by_click_without_a_script(tmp_path: Path, chromium: ChromiumServer) -> None:
    """From the list of plans to the outcome; with scripts, the focus goes to the content first."""
    world = fill(tmp_path)
    with served("--allow-actions", world.state, cwd=tmp_path) as url:
        with chromium.open(script=False) as driver:
            driver.get(url)
            for words in ("trial-v1", "field 'title' is missing", "refused", "Retry it", "Retry 1 delivery"):
                click(driver, words)
            assert "1 delivery: 1 pending" in text_of(driver)
        with chromium.open(400) as driver:
            driver.get(url)
            driver.switch_to.active_element.send_keys(Keys.TAB)
            assert driver.switch_to.active_element.text == "To the content"
            driver.switch_to.active_element.send_keys(Keys.ENTER)
            assert evaluate(driver, "document.activeElement.id") == "main"
    assert world.counts()["pending"] == 2


def test_what_strangers_wrote_does_nothing(tmp_path: Path, chromium: ChromiumServer) -> None:
    """In names, reasons and messages: no dialog opens, and the browser complains of nothing, not even of what the
    policy would keep from running. A document with line breaks in its id is retried by click."""
    world = PlanWorld(tmp_path / "work")
    world.build(answer=lambda delivery: Outcome.permanent(f"{MARKUP} {BIDI} {CONTROL}"))
    world.put(*IDS)
    world.run()
    Queue("q", tmp_path / "work").append([{MARKUP: BIDI}])
    with served("--allow-actions", "work", cwd=tmp_path) as url, chromium.open() as driver:
        for page in ("", "/failures?status=failed", "/runs?wave=1", f"/document?{urlencode({'id': MARKUP})}"):
            driver.get(f"{url}/plans/trial-v1{page}")
            text_of(driver)
            assert overflow(driver) <= 0
        driver.get(f"{url}/queues/q")
        driver.get(f"{url}/plans/trial-v1/document?{urlencode({'id': LINES})}")
        click(driver, "Retry it")
        click(driver, "Retry 1 delivery")
        assert "1 delivery: 1 pending" in text_of(driver)
        assert console(driver) == []
    assert world.statuses(LINES)[-1] == "RESTART"


@pytest.mark.slow
def test_a_page_refreshes_itself(tmp_path: Path, chromium: ChromiumServer) -> None:
    """With what became of a command meanwhile, and its times in the reader's zone again."""
    world = fill(tmp_path)
    with served(world.state, cwd=tmp_path) as url, chromium.open() as driver:
        cdp(driver, "Emulation.setTimezoneOverride", timezoneId="Asia/Kathmandu")
        driver.get(f"{url}/plans/trial-v1/outcome?message=retry+by+a%3A+b")
        assert "is queued" in text_of(driver)
        submit_command(world.plan, world.state, Command("retry", "a", "b", document="bad1"))
        _wait_for(driver, "1 delivery: 1 pending")
        assert _time(driver, "time")["title"].endswith(" GMT+5:45")


def _wait_for(driver: Any, words: str) -> None:
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


def test_at_a_prefix_that_the_proxy_says(site: str, browser: Any) -> None:
    """nginx takes it off each path and says so: links, styles, scripts and pictures have it again."""
    prefix = "/tools/ferryman"
    try:
        Nginx.install()
    except Missing as e:
        require(str(e))
    proxy = Nginx()
    proxy.site = f"""
        server {{
            listen 127.0.0.1:{proxy.site_port};
            location {prefix}/ {{ proxy_pass {site}/; proxy_set_header X-Forwarded-Prefix {prefix}; }}
        }}
    """
    with proxy:
        browser.get(f"http://127.0.0.1:{proxy.site_port}{prefix}/")
        console(browser)
        for words in ("trial-v1", "refused", "Retry it"):
            click(browser, words)
            assert f":{proxy.site_port}{prefix}/plans/trial-v1" in browser.current_url
        click(browser, "Leave it")
        assert evaluate(browser, "getComputedStyle(document.querySelector('.groups')).display") == "grid"
        assert console(browser) == []


@pytest.mark.slow
def test_a_newcomer_finds_the_broken_files_of_the_demo(chromium: ChromiumServer, tmp_path: Path) -> None:
    """With two commands, and nothing else of the page: which three files are broken, why, and the command that retries
    one, which is then typed."""
    page = (DOCS / "how-to" / "watch-your-plans.md").read_text("utf-8")
    first, second, *_ = re.findall(r"^\$ ferryman (.*)$", page, re.MULTILINE)
    assert (first, second) == ("demo", "dashboard")
    ferryman = [sys.executable, "-m", "ferryman.cli"]
    subprocess.run([*ferryman, first], cwd=tmp_path, check=False)
    with served(cwd=tmp_path) as url, chromium.open(1280, 720) as driver:
        driver.get(url)
        assert "has failures" in text_of(driver)
        click(driver, "standard-library-v1")
        text = text_of(driver)
        for name, why in (
            ("dangling.txt", "which does not exist"),
            ("loop.txt", "which leads in a circle"),
            ("undecodable.txt", "not utf-8 text"),
        ):
            assert name in text
            assert why in text
        click(driver, "broken/undecodable.txt")
        click(driver, "Retry it")
        text_of(driver)
        command = driver.find_element("css selector", "main .command code").text
    assert f"$ {command}\n" in page
    subprocess.run([*ferryman, *command.split()[1:]], cwd=tmp_path, check=True)
    plan, state = load_plan(str(tmp_path / "ferryman-demo" / "plan.py")), tmp_path / "ferryman-demo" / "state"
    run_plan(plan, state, checked=False)
    events = account.history(state / plan.key, "broken/undecodable.txt", plan)
    assert [event["status"] for event in events] == ["ERROR_DOC", "RESTART", "ERROR_DOC"]  # it is broken still
