"""Text of strangers in every cell, and states that are damaged, deleted, migrated or held while a page is open."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import lxml.html
import pytest

from ferryman import limits
from ferryman.dashboard import actions
from ferryman.dashboard.app import PAGES
from ferryman.dashboard.cells import WORD_CHARACTERS, ago, clean, clean_lines, code, command_of, when
from ferryman.destinations.base import Delivery, Outcome
from ferryman.engine.migration import migrate
from ferryman.intake import JobQueue
from ferryman.operations import Retried
from ferryman.plan import Plan
from ferryman.queues import Queue
from ferryman.state.activity import Activity
from ferryman.state.commands import Command
from ferryman.state.state import PLAN as PLAN_FILE
from ferryman.storage import files
from tests.dashboard.conftest import Opened, fill, skeleton, words
from tests.support.plan_world import PlanWorld

PLAN = "/plans/trial-v1"
MARKUP = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>{{7*7}}"
BIDI = "invoice\u202egnp.exe\u2066\u200b"
CONTROL = "line\rbreak\x1b[31mred\x07"
LONG = "0123456789" * 20
LINES = "two\nlines\r\nand\rmore"
IDS = [
    MARKUP,
    BIDI,
    CONTROL,
    LONG,
    LINES,
    "]]><![CDATA[<svg onload=alert(1)>-->",
    "nul\x00byte",
    "ünïcödé 文書 🚢",
    "a/../../etc/passwd",
    "a b&c=d?f%20g+h",
    "'; DROP TABLE ledger; --",
]


PLAIN_IDS = [f"plain-{chr(ord('a') + n)}" for n in range(len(IDS))]


def _answer(delivery: Delivery) -> Outcome:
    return Outcome.permanent(f"{delivery.id} {'<b>long</b> ' * 100_000} https://user:secret@host/x?key=hidden")


def _world_of(ids: Sequence[str], folder: Path) -> PlanWorld:
    world = PlanWorld(folder)
    world.build(answer=_answer)
    world.put(*ids)
    world.run()
    return world


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> PlanWorld:
    """A state like ``hostile``, of as many documents with plain names."""
    return _world_of(PLAIN_IDS, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> PlanWorld:
    """A state of a plan whose documents are named, and whose errors are worded, by an attacker."""
    return _world_of(IDS, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("path", [PLAN, "/", *(f"{PLAN}/{name}" for name in ("failures", "runs", "verify"))])
def test_no_page_takes_what_strangers_wrote_for_markup(path: str, hostile: PlanWorld, opened: Opened) -> None:
    parameters = {"status": "failed", "wave": "1"}
    text = opened(hostile.state).get(path, params=parameters).text
    _is_harmless(text)
    assert len(text) < 400_000


@pytest.mark.rule("dashboard.strangers")
@pytest.mark.parametrize(
    "page", ["", "/failures", "/failures?status=failed", "/runs?wave=1", "/verify", "/document", "/confirm", "/outcome"]
)
def test_what_strangers_wrote_makes_no_element(page: str, hostile: PlanWorld, plain: PlanWorld, opened: Opened) -> None:
    """Each page has the elements, with the attributes, that it has of plain names, in the same order, all closed."""
    site, other = opened(hostile.state, allow_actions=True), opened(plain.state, allow_actions=True)
    for ids in zip(IDS, PLAIN_IDS, strict=True) if "?" not in page else [("", "")]:
        queries = [urlencode({"id": id, "document": id, "verb": "retry", "message": id}) for id in ids]
        paths = [page if "?" in page else f"{page}?{query}" for query in queries]
        pages = [each.get(PLAN + path) for each, path in zip((site, other), paths, strict=True)]
        assert [each.status_code for each in pages] == [200, 200]
        assert skeleton(pages[0].text) == skeleton(pages[1].text)


@pytest.mark.rule("dashboard.strangers")
@pytest.mark.parametrize("id", IDS)
def test_a_form_acts_on_the_document_that_its_page_is_about(
    id: str, hostile: PlanWorld, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there is a line break in its id, which browsers change in the fields of a form."""
    asked: list[Command] = []
    monkeypatch.setattr(actions, "submit_command", lambda plan, state, command: asked.append(command) or Retried(1))
    site = opened(hostile.state, allow_actions=True)
    page = site.get(f"{PLAN}/confirm", params={"verb": "retry", "document": id}).text
    [form] = lxml.html.fromstring(page).xpath("//main//form[@method='post']")
    fields = {name: re.sub(r"\r\n|\r|\n", "\r\n", value) for name, value in form.fields.items() if value is not None}
    site.post(form.action, data=fields, follow_redirects=False)
    assert [each.document for each in asked] == [id]


@pytest.mark.parametrize("break_", ["\n", "\r\n"])
def test_a_reason_of_several_lines_stays_in_the_filter(break_: str, tmp_path: Path, opened: Opened) -> None:
    """A browser sends each line break of a form as CR LF."""
    world = PlanWorld(tmp_path)
    world.build(answer=lambda delivery: Outcome.permanent(f"ERROR: no such column{break_}LINE 1: SELECT"))
    world.put("a")
    world.run()
    text = opened(world.state).text(f"{PLAN}/failures", reason="ERROR: no such column\r\nLINE 1: SELECT")
    assert "Deliveries newest first" in text


@pytest.mark.rule("dashboard.strangers")
def test_a_command_stays_in_its_quotes() -> None:
    """However long a word is, and wherever it is cut: else what is copied into a terminal would run what a stranger
    wrote."""
    for shift in range(12):
        word = "a" * (WORD_CHARACTERS // 2 - shift) + "'" * 8 + "b" * WORD_CHARACTERS + "'; $(touch x) `touch x` '" * 50
        command = command_of("history", "PLAN", word, "--limit", "1")
        assert shlex.split(command) == ["ferryman", "history", "PLAN", clean(word, WORD_CHARACTERS), "--limit", "1"]


def test_an_id_of_a_million_characters_makes_no_long_page(tmp_path: Path, opened: Opened) -> None:
    """It has no link: no server takes a URL of that length."""
    world = PlanWorld(tmp_path)
    world.build(answer=_answer)
    world.put("x" * 1_000_000, "<&>" * 1_000)
    world.run()
    site = opened(world.state)
    for page in ("", "/failures?status=failed", "/runs?wave=1"):
        text = site.get(f"{PLAN}{page}").text
        assert len(text) < 200_000
        assert len({*re.findall(r'href="[^"]*/document\?id=[^"]*', text)}) == 1


@pytest.mark.rule("dashboard.strangers")
@pytest.mark.parametrize(
    "name", ["a?b#c%2F-v1", "<img src=x onerror=alert(1)>", "line\nbreak", BIDI, "ünïcödé 文書", "a'b\"c"]
)
def test_a_folder_of_any_name_is_opened_by_its_link(name: str, tmp_path: Path, opened: Opened) -> None:
    """Also if a part of it has a meaning in URLs."""
    world = PlanWorld(tmp_path / "made").build()
    world.put("a")
    world.run()
    (tmp_path / "copied").mkdir()
    shutil.copytree(world.root, tmp_path / "copied" / name)
    site = opened(tmp_path / "copied")
    page = site.get("/").text
    [link] = lxml.html.fromstring(page).xpath("//table//th/a/@href")
    text = site.get(link).text
    assert "1 delivered" in words(text)
    for each in (page, text):
        skeleton(each)
        _is_harmless(each)


def test_names_in_a_record_that_was_changed_are_text(own_world: PlanWorld, opened: Opened) -> None:
    """No plan has such names; whoever can write to a state may have put them there."""
    name = f"{MARKUP} {BIDI} {CONTROL} ]]>"
    record = own_world.root / PLAN_FILE
    text = json.dumps(files.unseal(record)).replace('"out"', json.dumps(name))
    files.replace(record, files.seal(json.loads(text)))
    site = opened(own_world.state)
    for page in ("", "/failures", "/runs", "/verify"):
        response = site.get(f"{PLAN}{page}")
        assert response.status_code == 200
        skeleton(response.text)
        _is_harmless(re.sub(r' value="[^"]*"', "", response.text))
    picture = site.get(f"{PLAN}/picture.svg").text
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(picture).iter()}
    assert tags <= {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "g", "text", "polygon"}
    _is_harmless(picture)


@pytest.mark.parametrize("id", IDS)
def test_each_document_is_found_by_its_link(id: str, hostile: PlanWorld, opened: Opened) -> None:
    """Whatever its id is made of, the page of a document and the one of its retry are about it alone."""
    site = opened(hostile.state)
    response = site.get(f"{PLAN}/document", params={"id": id})
    assert response.status_code == 200
    _is_harmless(response.text)
    response = site.get(f"{PLAN}/confirm", params={"verb": "retry", "document": id})
    assert response.status_code == 200
    _is_harmless(response.text)
    assert "1 delivery" in response.text


def _is_harmless(text: str) -> None:
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<b>long" not in text
    assert "secret@host" not in text
    assert "key=hidden" not in text
    assert "49" not in text.partition("{{7*7}}")[0][-2:]
    for sign in "\u202e\u2066\u200b\x1b\x07":
        assert sign not in text


@pytest.mark.parametrize("id", ["\udc80", "x" * 10_000, "\x00", MARKUP + "?"])
def test_an_id_that_nobody_has_is_not_there(id: str, hostile: PlanWorld, opened: Opened) -> None:
    text = opened(hostile.state).get(f"{PLAN}/document?id=" + _quoted(id)).text
    assert "There is no such document" in text
    _is_harmless(text)


def _quoted(text: str) -> str:
    return quote(text, errors="surrogateescape")


@pytest.mark.parametrize(
    "query",
    ["page=-1", "page=0", "page=99999999999999999999", "page=²", "wave=x", "status=nonsense", "status=%00", "page[]=1"],
)
def test_no_parameter_is_an_error_of_ours(query: str, world: PlanWorld, opened: Opened) -> None:
    for path in ("failures", "runs", "document", "confirm", "outcome", "state"):
        response = opened(world.state).get(f"{PLAN}/{path}?{query}")
        assert response.status_code in (200, 400, 404), response.text


def test_the_reason_of_an_operator_is_text(own_world: PlanWorld, opened: Opened) -> None:
    """On the page of the outcome, on the document's, and among the events of the wave."""
    site = opened(own_world.state, allow_actions=True)
    why = f"{MARKUP} {BIDI} {CONTROL} https://user:secret@host/x?key=hidden"
    done = site.give("resolve --as dropped", why, document="refused")
    texts = [done.text, site.get(f"{PLAN}/document?id=refused").text, site.get(f"{PLAN}/runs?wave=2").text]
    for text in texts:
        assert "alert" in text
        _is_harmless(text)


def test_fields_of_the_intake_are_text(tmp_path: Path, opened: Opened) -> None:
    """Logins and queries of URLs are left out, in whatever field they are."""
    queue = JobQueue.open(f"sqlite:///{tmp_path}/queue.db")
    url = "https://user:secret@host/x?key=hidden"
    batch = queue.create_batch({"submitter": f"{MARKUP} {BIDI}", "manifest": url})
    batch.create_job({"jobID": f"{MARKUP} {CONTROL}", "payload_url": url, "deeper": {"list": [url]}}, 3)
    [job], [name] = queue.list_jobs(), queue.list_batches()
    queue.load_job(job).set_status("Held", f"{MARKUP} {url}")
    site = opened(tmp_path)
    [key] = site.get("/intake").text.split('href="/intake/')[1:2]
    place = f"/intake/{key.partition(chr(34))[0].partition('?')[0]}"
    for path, shown in ((place, ""), (f"{place}?kind=jobs", "alert"), (f"{place}/item?id={job}", "https://host/x")):
        response = site.get(path)
        assert response.status_code == 200
        assert shown in response.text
        _is_harmless(response.text)
    _is_harmless(site.get(f"{place}/item?id={name}").text)


def test_messages_of_a_queue_are_text(tmp_path: Path, opened: Opened) -> None:
    texts = [MARKUP, BIDI, CONTROL, "]]>", "\0", "y" * 100_000]
    Queue("q", tmp_path).append([{"text": each, each: {each: [each]}} for each in texts])
    Queue("plain", tmp_path).append([{"text": "a"} for _ in texts])
    site = opened(tmp_path)
    text = site.get("/queues/q").text
    _is_harmless(text)
    assert len(text) < 20_000
    assert skeleton(text) == skeleton(site.get("/queues/plain").text)


def test_cells_are_short_and_harmless() -> None:
    assert clean("https://user:p@ss/word@host/x?token=1 end").startswith("https://")
    assert "token" not in clean("see https://host/x?token=1 for more")
    assert "p@ss" not in clean("postgresql://u:p@ss@host/db")
    assert len(clean("x" * 1_000_000)) < 700
    assert clean("a\nb\u202ec") == "a b\\u202ec"
    assert clean("\udcff") == "?"
    assert clean_lines("a\n<b>\r") == "a\n<b>"
    assert code("<b>") == "<bdi>&lt;b&gt;</bdi>"
    assert "1 000 000 characters" in code("x" * 1_000_000)
    assert ago(-200) == "3 min ago"
    assert ago(7200) == "in 2 h"
    assert when("no time") == ""
    assert when(float("nan")) == ""
    assert "UTC" in when("2026-01-31T12:00:00+01:00")


def test_a_long_text_without_urls_costs_little() -> None:
    """The search for URLs is linear: a million letters before no colon are one pass."""
    assert clean("a" * 1_000_000 + ":").endswith(":")


# --- states in trouble ---


def _every_page(site: Any, codes: tuple[int, ...]) -> list[str]:
    texts = []
    for path in PAGES:
        if path.startswith("/plans/{plan}"):
            parameters = {"id": "a", "verb": "retry", "status": "failed", "message": "x"}
            response = site.get(path.replace("{plan}", "trial-v1"), params=parameters)
            assert response.status_code in codes, (path, response.text)
            assert "Traceback" not in response.text
            assert "File &#34;" not in response.text
            texts.append(response.text)
    return texts


def test_damage_is_named(own_world: PlanWorld, opened: Opened) -> None:
    """On each page that needs the damaged file, and in the list of plans; never as a trace."""
    [entry, *_] = sorted((own_world.root / "ledger" / "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:-20])
    site = opened(own_world.state)
    assert "trial-v1 damaged" in site.text("/")
    texts = _every_page(site, (200, 500))
    assert any("_delta_log" in text for text in texts)


@pytest.mark.parametrize("name", ["state.json", "plan.json"])
def test_a_damaged_record_is_named(name: str, own_world: PlanWorld, opened: Opened) -> None:
    (own_world.root / name).write_bytes(b"{")
    site = opened(own_world.state)
    assert "damaged" in site.text("/")
    assert any(name in text for text in _every_page(site, (200, 500)))


def test_damaged_data_is_named(own_world: PlanWorld, opened: Opened) -> None:
    for file in (own_world.root / "ledger").glob("*.parquet"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 400] = b"\xff" * 400
        file.write_bytes(content)
    texts = _every_page(opened(own_world.state), (200, 404, 500))
    names = [file.name for file in (own_world.root / "ledger").glob("*.parquet")]
    assert any(name in text for name in names for text in texts)


def test_a_state_is_deleted_while_a_page_is_open(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    assert site.get(PLAN).status_code == 200
    page = site.get(f"{PLAN}/confirm?verb=retry").text
    csrf = page.split('name="csrf" value="')[1].split('"')[0]
    shutil.rmtree(own_world.root)
    _every_page(site, (404, 400))
    text = site.text(PLAN, 404)
    assert "there is no state" in text or "its state was removed" in text  # before and after the next search
    assert site.post(f"{PLAN}/confirm", data={"csrf": csrf, "verb": "retry"}).status_code in (400, 404)
    assert not own_world.root.exists()


def test_a_state_is_replaced_while_a_page_is_open(own_world: PlanWorld, opened: Opened, tmp_path: Path) -> None:
    site = opened(own_world.state)
    assert "8 documents" in site.text(PLAN)
    shutil.rmtree(own_world.root)
    other = PlanWorld(own_world.folder).build()
    other.put("z")
    other.run()
    assert "1 document" in site.text(PLAN)


def test_pages_are_whole_while_waves_and_merges_go_on(
    place: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people look while runs commit, merge files, and a newer version takes over: no page is an error."""
    monkeypatch.setattr(limits, "COMPACT_FILES", 2)
    monkeypatch.setattr(limits, "CHECKPOINT_COMMITS", 4)
    monkeypatch.setattr(limits, "SELECTED_FROM", 0)
    world = PlanWorld(place).build()
    world.put("a")
    world.run()
    failed: list[str] = []
    seen = threading.Semaphore(0)
    ended = threading.Event()

    def look() -> None:
        site = opened(world.state)
        while not ended.is_set():
            for page in ("", "/failures?status=failed", "/document?id=a", "/runs?wave=1", "/verify"):
                response = site.get(f"{PLAN}{page}")
                if response.status_code != 200:
                    failed.append(f"{page}: {response.status_code} {response.text}")
            seen.release()

    people = [threading.Thread(target=look) for _ in range(2)]
    for each in people:
        each.start()
    for turn in range(3):
        world.put("a", f"b{turn}", text=str(turn))
        world.run(checked=False)
        assert seen.acquire(timeout=60)
    newer = Plan("trial", version=2)
    newer.source("docs", _memory(world)).destination("out", world.out())
    newer.freeze()
    migrate(world.root_of(newer), newer, 1)
    assert seen.acquire(timeout=60)
    ended.set()
    for each in people:
        each.join(60)
    assert failed == []


def test_a_state_that_a_run_holds_is_read(own_world: PlanWorld, opened: Opened) -> None:
    state = own_world.take()
    try:
        state.note_activity(Activity(wave=7, phase="deliver", since=1.0, done=3, expected=9, delivered=2))
        text = opened(own_world.state).text(PLAN)
    finally:
        state.release()
    assert "Wave 7: deliver" in text
    assert "3 of 9 done" in text
    assert "2 delivered" in text


def test_a_migrated_state_says_so_and_takes_no_command(place: Path, opened: Opened) -> None:
    world = fill(place)
    newer = Plan("trial", version=2)
    newer.source("docs", _memory(world)).destination("out", world.out())
    newer.freeze()
    migrate(world.root_of(newer), newer, 1)
    site = opened(world.state, allow_actions=True)
    assert "trial-v1 replaced by a newer version" in site.text("/")
    assert "taken over" in site.text(PLAN)
    done = site.give("retry", status="failed")
    assert done.status_code == 500
    assert "version 2 of this plan continues" in done.text


def _memory(world: PlanWorld) -> Any:
    from ferryman.sources import Memory

    return Memory(world.documents, max_deleted=1.0)


def test_one_bad_state_hides_no_other(place: Path, opened: Opened) -> None:
    good = PlanWorld(place / "good").build()
    good.put("a")
    good.run()
    bad = place / "bad" / "broken-v1"
    bad.mkdir(parents=True)
    (bad / "state.json").write_text(json.dumps({"plan": "broken"}))
    text = opened(place).text("/")
    assert "trial-v1 all arrived" in text
    assert "broken-v1" in text
