"""Who may see the dashboard, and who may act: Host, tokens, sessions, CSRF, a trusted proxy, the base path."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

from ferryman.dashboard.app import PAGES
from ferryman.dashboard.guard import Settings, parse_tokens
from ferryman.errors import UsageError
from tests.dashboard.conftest import OPERATOR, READER, TOKENS, Opened
from tests.support.plan_world import PlanWorld

PLAN = "/plans/trial-v1"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil.example:80", "", "a b", "[::1", "🙂"])
def test_a_host_that_is_not_ours_is_refused(host: str, tmp_path: Path, opened: Opened) -> None:
    """Else a name that an attacker points to this address could read its pages in a visitor's browser."""
    response = opened(tmp_path).get("/", headers={b"host": host.encode()})
    assert response.status_code == 421
    assert "Plans" not in response.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8440", "127.0.0.1:8440", "[::1]:8440", "10.1.2.3"])
def test_our_names_and_addresses_are_ours(host: str, tmp_path: Path, opened: Opened) -> None:
    assert opened(tmp_path).get("/", headers={"host": host}).status_code == 200


def test_another_name_is_ours_if_it_is_allowed(tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, allowed_hosts=frozenset({"ferryman.example.org"}))
    assert site.get("/", headers={"host": "ferryman.example.org"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "--token"),
        ({"host": "::"}, "--token"),
        ({"host": "192.168.1.5", "user_header": "X-User"}, "--token"),
        ({"base_path": "/ferryman/"}, "--base-path"),
        ({"base_path": "//evil"}, "--base-path"),
        ({"base_path": "/../x"}, "--base-path"),
        ({"user_header": "X-User", "allow_actions": True}, "--operator"),
        ({"operators": frozenset({"a"})}, "--user-header"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Settings(**settings).check()


@pytest.mark.parametrize("text", ["short", "alice:operator:short", "al ice:reader:0123456789012345", "@/no/such/file"])
def test_a_token_that_is_none_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_tokens([text])
    assert "0123456789012345" not in str(raised.value)


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who\nalice:operator:0123456789abcdef0\n\nbob:reader:fedcba98765432100\n")
    assert [(t.name, t.is_operator) for t in parse_tokens([f"@{file}"])] == [("alice", True), ("bob", False)]


def test_no_page_is_shown_without_a_token(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state, tokens=TOKENS, host="0.0.0.0")
    for path in PAGES:
        address = path.replace("{plan}", "trial-v1").replace("{queue}", "q").replace("{flow}", "f")
        response = site.get(address.replace("{intake}", "i"), headers={"authorization": "Bearer wrong-0123456789"})
        assert response.status_code == 401
        assert "trial" not in response.text
    assert site.post(f"{PLAN}/confirm", data={"verb": "retry"}).status_code in (401, 303)


def test_all_tokens_are_compared_whichever_matches(opened: Opened, tmp_path: Path, monkeypatch: Any) -> None:
    """The time that it takes says nothing about which token was near."""
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    guard = opened(tmp_path, tokens=TOKENS).app
    for secret in (READER, OPERATOR, "wrong", "\udc80"):
        compared.clear()
        guard.find_token(secret)  # type: ignore[attr-defined]
        assert len(compared) == len(TOKENS)


def test_a_browser_signs_in_and_out(world: PlanWorld, opened: Opened) -> None:
    """The page that was asked for comes after the token; the cookie is no use to scripts or other sites."""
    site = opened(world.state, tokens=TOKENS, base_path="/ferryman")
    site.headers["accept"] = "text/html"
    asked = site.get("/ferryman/plans/trial-v1", follow_redirects=False)
    assert asked.status_code == 303
    assert asked.headers["location"] == "/ferryman/login?next=/plans/trial-v1"
    assert site.fill_in("/ferryman/login", "/ferryman/login", token="wrong").status_code == 403
    done = site.post("/ferryman/login", data={"token": READER, "next": "/plans/trial-v1"}, follow_redirects=False)
    assert done.headers["location"] == "/ferryman/plans/trial-v1"
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/ferryman" in cookie
    assert READER not in cookie
    assert "rita" in site.text("/ferryman/")
    site.fill_in("/ferryman/logout", "/ferryman/")
    site.cookies.set("ferryman-session", cookie.split("=", 1)[1].split(";")[0])
    assert "rita" not in site.get("/ferryman/").text


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "evil"])
def test_signing_in_leads_to_no_other_site(target: str, tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, tokens=TOKENS)
    done = site.post("/login", data={"token": READER, "next": target}, follow_redirects=False)
    assert done.headers["location"] == "/"


def test_a_form_needs_the_token_of_its_session(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, allow_actions=True)
    before = own_world.counts()
    for csrf in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "é"}):
        response = site.post(f"{PLAN}/confirm", data={"verb": "retry", **csrf})
        assert response.status_code == 403
    other = opened(own_world.state, allow_actions=True).get(f"{PLAN}/confirm", params={"verb": "retry"}).text
    foreign = other.split('name="csrf" value="')[1].split('"')[0]
    assert site.post(f"{PLAN}/confirm", data={"verb": "retry", "csrf": foreign}).status_code == 403
    assert own_world.counts() == before


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
)
def test_a_form_of_another_site_is_refused(headers: dict[str, str], world: PlanWorld, opened: Opened) -> None:
    response = opened(world.state, allow_actions=True).post(f"{PLAN}/confirm", data={"verb": "retry"}, headers=headers)
    assert response.status_code == 403
    assert "another site" in response.text


def test_nothing_acts_without_allow_actions(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state)
    text = site.text(f"{PLAN}/confirm", verb="retry", status="failed")
    assert "This dashboard only shows" in text
    response = site.fill_in(f"{PLAN}/confirm", verb="retry")
    assert response.status_code == 403
    assert own_world.status()["waves"] == 1


def test_a_reader_sees_and_does_not_act(own_world: PlanWorld, opened: Opened) -> None:
    site = opened(own_world.state, tokens=TOKENS, token=READER, allow_actions=True)
    assert "rita is a reader here" in site.text(f"{PLAN}/confirm", verb="retry")
    assert site.fill_in(f"{PLAN}/confirm", verb="retry").status_code == 403
    assert own_world.status()["waves"] == 1


def test_persons_come_from_a_trusted_proxy(world: PlanWorld, opened: Opened) -> None:
    """The proxy says who it is, and nobody else: a request without the header is not let in."""
    site = opened(
        world.state, user_header="X-User", allow_actions=True, operators=frozenset({"otto"}), base_path="/ferryman"
    )
    assert site.get("/ferryman/").status_code == 403
    for header, mode in (("otto", "may act otto"), ("rita", "reader rita")):
        site.headers["x-user"] = header
        assert mode in site.text("/ferryman/")
    site.headers["x-user"] = "<script>alert(1)</script>"
    assert site.get("/ferryman/").status_code in (401, 403)


def test_a_shared_token_says_that_it_names_nobody(world: PlanWorld, opened: Opened) -> None:
    shared = opened(
        world.state, tokens=("shared-secret-0123456789",), token="shared-secret-0123456789", allow_actions=True
    )
    assert "That does not say which person it was" in shared.text("/")
    named = opened(world.state, tokens=TOKENS, token=OPERATOR, allow_actions=True)
    text = named.text("/")
    assert "done by otto" in text
    assert "which person" not in text


def test_pages_allow_no_script_but_our_files(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    for path in ("/", PLAN, f"{PLAN}/failures", "/no-such-page"):
        response = site.get(path)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert " style=" not in response.text
        assert " onclick" not in response.text
        assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("sent", ["/ferryman/plans/trial-v1", "/plans/trial-v1"])
def test_links_begin_with_the_base_path(sent: str, world: PlanWorld, opened: Opened) -> None:
    """Whether or not the proxy takes it off."""
    text = opened(world.state, base_path="/ferryman").get(sent).text
    assert 'href="/ferryman/plans/trial-v1/failures"' in text
    assert 'href="/plans' not in text
    assert 'src="/ferryman/static/htmx.min.js"' in text


def test_a_proxy_may_say_the_base_path(world: PlanWorld, opened: Opened) -> None:
    site = opened(world.state)
    text = site.get("/plans/trial-v1", headers={"x-forwarded-prefix": "/tools/ferryman/"}).text
    assert 'href="/tools/ferryman/plans/trial-v1/failures"' in text
    for wrong in ("//evil.example", "/../..", 'javascript:"', '/a"><script>', "/" + "a" * 300):
        assert 'href="/plans' in site.get("/plans/trial-v1", headers={"x-forwarded-prefix": wrong}).text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/%2e%2e/guard.py",
        "/static/..%2fguard.py",
        "/static//etc/passwd",
        "/plans/..%2f..%2fetc",
        "/plans/%00",
        "/queues/..",
        "/intake/../../x",
        "/plans/trial-v1/../../../etc/passwd",
    ],
)
def test_no_path_climbs(path: str, world: PlanWorld, opened: Opened) -> None:
    response = opened(world.state).get(path)
    assert response.status_code in (200, 404)
    assert "root:" not in response.text
    assert "import" not in response.text


def test_forms_that_are_too_large_are_refused(tmp_path: Path, opened: Opened) -> None:
    site = opened(tmp_path, tokens=TOKENS)
    assert site.post("/login", data={"token": "x" * 100_000}).status_code == 413
    many = "&".join(f"f{n}=1" for n in range(5_000))
    assert site.post("/login", content=many).status_code == 403
