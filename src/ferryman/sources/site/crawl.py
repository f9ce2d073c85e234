"""A crawl of one host: asks for its pages at one rate, and says what each answer means for its document."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from ferryman.document import Document
from ferryman.errors import TransientError, Unavailable, as_exception, message_of
from ferryman.sources.base import Bookmark, Fetched, Listed, Note
from ferryman.sources.site.client import MAX_DELAY_S, MOVED, Response, Robots, SiteClient, is_left_out
from ferryman.sources.site.page import PageFacts, digest_of, is_related, is_same, read_page
from ferryman.sources.site.pages import (
    ASKS_PASSWORD,
    FeedMemory,
    HostMemory,
    PageState,
    SitePage,
    bookmarks,
    signature,
)
from ferryman.sources.site.scope import Scope, normalize, origin_of, pages_above, with_scheme_of
from ferryman.sources.site.sitemaps import BrokenSitemap, guids_are_stable, has_gap, read_feed, read_sitemaps

_AWAY_AFTER: Final = 5
"""Answers in a row that do not come before a host counts as away: a few addresses may be dead ends."""

_FAILS_AFTER: Final = 20
"""Answers of 429 and 5xx in a row before a host counts as away: a part of it may be broken."""

_SAMPLE: Final = 20
_SAMPLE_SHARE: Final = 0.01
"""Pages, at least, and their share, that are asked for in each scan although a sitemap calls them unchanged."""

_KEPT_SHARE: Final = 0.25
"""Share of ``refetch`` for which the times in the memory may be too old: a scan that finds nothing writes nothing."""

_ELSEWHERE: Final = 1000
_NAMED: Final = 3
_FORBIDDEN: Final = (401, 403)
_GONE: Final = (404, 410)

Fetch = Callable[[str], bytes | str]
"""Function that returns a page as a browser shows it."""


@dataclass(frozen=True)
class Rules:
    """Settings of a crawl, see ``Site``."""

    depth: int
    max_pages: int
    budget: int
    refetch_s: float
    revisit_s: float
    sitemaps: Sequence[str] | None
    feeds: Sequence[str]
    fetch: Fetch | None


class Crawl:
    """One scan of a host.

    Args:
        starts: addresses to begin with.
        remembered: pages of the last scan, which are changed.
        now: seconds since 1970.
    """

    def __init__(
        self,
        origin: str,
        starts: Sequence[str],
        scope: Scope,
        rules: Rules,
        client: SiteClient,
        memory: HostMemory,
        remembered: list[SitePage],
        now: float,
        rng: random.Random,
    ) -> None:
        self._origin, self._starts, self._scope, self._rules = origin, starts, scope, rules
        self._client, self._memory, self._now, self._rng = client, memory, int(now), rng
        self._old_chunks = memory.chunks
        self._old_signature = signature(memory, remembered)
        self._written = memory.began
        self._numbers = {page.url: number for number, page in enumerate(remembered)}
        self._pages = {page.url: page for page in remembered}
        self._links = {page.url: [remembered[n].url for n in page.links if n < len(remembered)] for page in remembered}
        self._robots = Robots()
        self._reached: set[str] = set()
        self._open: list[SitePage] = []
        self._is_following = False
        self._canonicals: dict[str, PageFacts | None] = {}
        self._queue: list[tuple[int, int, int, str]] = []
        self._skipped: set[str] = set()
        self._lastmods: dict[str, str] = {}
        self._yielded: set[str] = set()
        self._forbidden: list[str] = []
        self._empty: list[str] = []
        self._texts: dict[str, int] = {}
        self._repeated: list[str] = []
        self._html = 0
        self._elsewhere = dict.fromkeys(memory.elsewhere)
        self._incomplete: list[str] = []
        self._asked = 0
        self._away = self._failing = 0
        self._over_budget = self._too_many = False
        self._begins = False

    def run(self) -> Iterator[Listed | Fetched | Bookmark | Note]:
        """Yield the documents of the host, what people should know, and the memory for the next scan.

        Raises:
            Unavailable: the host is away. What was found before counts, and the next scan continues from there.
            TransientError: not all of it was looked at, for the reasons in the message.
        """
        memory = self._memory
        if not memory.is_open and 0 <= self._now - memory.began < self._rules.revisit_s:
            yield from self._yield_unchanged()
            return
        self._robots = self._client.robots(self._origin)
        self._begins = not memory.is_open
        if self._begins:
            memory.round, memory.began, memory.is_open = memory.round + 1, self._now, True
            memory.rereads = memory.scope != self._scope.digest
            memory.scope = self._scope.digest
        unavailable: Unavailable | None = None
        try:
            yield from self._begin()
            yield from self._visit_all()
            yield from self._look_again()
        except Unavailable as e:
            unavailable = e
        whole = unavailable is None and not self._over_budget
        memory.is_open = not whole
        self._settle(drop=whole and not self._incomplete)
        yield from self._yield_unchanged()
        yield from self._notes()
        yield from self._remember()
        if unavailable is not None:
            raise unavailable
        if self._over_budget:
            self._incomplete.insert(
                0,
                f"{self._asked} pages of {self._origin} were asked for, as budget={self._rules.budget} allows; the "
                "next scan goes on with the others",
            )
        if self._incomplete:
            raise TransientError("; ".join(self._incomplete))
        if not any(page.was_read or page.refused for page in self._pages.values()):
            first = next((page for page in self._pages.values() if page.url in self._starts), None)
            why = "" if first is None else f" ({first.url}: {_reason(first)})"
            raise TransientError(f"no page of {self._origin} could be read{why}")

    # -- where pages are found -----------------------------------------------------------------------

    def _begin(self) -> Iterator[Note]:
        """Reach the pages that the plan, sitemaps and feeds name."""
        if self._begins:
            self._ask_for_missing_page()
        if self._is_blind:
            yield Note(f"{self._origin}/robots.txt is a page, not a robots file: nothing is forbidden, or deleted")
            self._incomplete.append(f"{self._origin}/robots.txt is a page, so this may not be the site")
        if self._robots.asked_delay_s > MAX_DELAY_S:
            yield Note(
                f"{self._origin}/robots.txt asks for {self._robots.asked_delay_s:g} s between two requests; "
                f"{MAX_DELAY_S:g} s are kept"
            )
        for page in self._pages.values():
            if page.depth or not page.listed:
                self._scope.count(page.url)
        for url in self._starts:
            self._reach(url, 0)
        yield from self._read_sitemaps()
        yield from self._read_feeds()

    def _read_sitemaps(self) -> Iterator[Note]:
        given = self._rules.sitemaps
        named = [normalize(url, self._origin + "/") for url in self._robots.sitemaps]
        urls = list(given) if given is not None else [url for url in named if url] or [f"{self._origin}/sitemap.xml"]
        is_guess = given is None and not any(named)
        pages = read_sitemaps(self._client, urls, self._rules.max_pages, is_guess=is_guess)
        for broken in pages.broken:
            self._incomplete.append(f"sitemap {broken}")
        self._lastmods = {with_scheme_of(self._origin, url): lastmod for url, lastmod in pages.lastmods.items()}
        elsewhere = []
        for url in self._lastmods:
            if self._reach(url, 0):
                self._pages[url].listed = True
            elif origin_of(url) != self._origin and not self._client.may_ask(url):
                elsewhere.append(url)
        if elsewhere:
            yield Note(
                f"the sitemap of {self._origin} names {len(elsewhere)} pages of other hosts, such as {elsewhere[0]}, "
                "which are left out: name them in hosts="
            )

    def _read_feeds(self) -> Iterator[Note]:
        for url in self._rules.feeds:
            if origin_of(url) != self._origin:
                continue
            feed = self._memory.feeds.get(url, FeedMemory())
            try:
                entries = read_feed(self._client, url)
            except BrokenSitemap as e:
                self._incomplete.append(f"feed {url}: {e}")
                entries = list(feed.entries)
            is_stable = guids_are_stable(feed.entries, entries)
            if is_stable is not None:
                feed.stable = is_stable
            if has_gap(feed.entries, entries, by_guid=feed.stable):
                yield Note(f"feed {url}: none of its entries was there at the last look, so some may have been missed")
            old_links = {guid: link for link, guid in feed.entries}
            for link, guid in entries:
                if feed.stable and old_links.get(guid, link) != link and (old := self._pages.get(old_links[guid])):
                    old.listed = False  # the same entry under another link
                if self._reach(link, 0):
                    self._pages[link].listed = True
            feed.entries = entries
            self._memory.feeds[url] = feed
        for page in list(self._pages.values()):  # a feed forgets its entries: what it has named stays
            if page.listed and self._rules.feeds and page.url not in self._lastmods:
                self._reach(page.url, 0)

    def _reach(self, url: str, depth: int, *, by_link: bool = False) -> bool:
        """Note that there is a way to a page, and plan to ask for it if that is due; return whether it belongs here."""
        if origin_of(url) != self._origin:
            if by_link and len(self._elsewhere) < _ELSEWHERE and self._client.may_ask(url) and self._scope.has(url):
                self._elsewhere[url] = None
            return False
        page = self._pages.get(url)
        if url in self._reached:
            assert page is not None
            page.depth = min(page.depth, depth)
            return True
        if not self._scope.has(url) or depth > self._rules.depth:
            return False
        if page is None:
            if by_link and not self._scope.count(url):
                return False
            if len(self._pages) >= self._rules.max_pages:
                self._too_many = True
                return False
            page = self._pages[url] = SitePage(url)
        page.depth = depth
        self._reached.add(url)
        if page.round == self._memory.round:  # in an earlier scan of this round
            self._follow_links(page)
        elif self._may_skip(page):
            self._skipped.add(url)
            self._follow_links(page)
        else:
            heapq.heappush(self._queue, (page.checked, depth, len(self._reached), url))
        return True

    def _may_skip(self, page: SitePage) -> bool:
        """Return whether the sitemap says that a page is as it was, and is believed."""
        lastmod = self._lastmods.get(page.url, "")
        return (
            bool(lastmod)
            and not self._memory.rereads
            and page.state == PageState.DOCUMENT
            and lastmod == page.lastmod
            and not page.doubt
            and self._now >= self._memory.distrusted
            and 0 <= self._now - page.checked < self._rules.refetch_s
        )

    def _follow_links(self, page: SitePage) -> None:
        """Reach what a page links to, and what lies behind pages that are not asked for, without recursion."""
        self._open.append(page)
        if len(self._open) > 1 or self._is_following:
            return
        self._is_following = True
        while self._open:
            each = self._open.pop()
            for url in self._links.get(each.url, ()):
                self._reach(url, each.depth + 1, by_link=True)
            if each.state in (PageState.MOVED, PageState.ALIAS) and each.target:
                self._reach(each.target, each.depth, by_link=True)
        self._is_following = False

    # -- asking for pages ----------------------------------------------------------------------------

    def _visit_all(self) -> Iterator[Fetched | Note]:
        """Ask for all pages that are due; then for a sample of those that a sitemap says are unchanged."""
        yield from self._visit_queue()
        if self._over_budget or not self._skipped:
            return
        due = sorted(self._skipped)
        sample = self._rng.sample(due, min(len(due), max(_SAMPLE, int(len(due) * _SAMPLE_SHARE))))
        lies = 0
        for url in sample:
            before = self._pages[url].digest
            yield from self._visit(url)
            self._skipped.discard(url)
            lies += self._pages[url].digest != before or self._pages[url].state != PageState.DOCUMENT
        if lies:
            days = self._rules.refetch_s / 86_400
            yield Note(
                f"{self._origin}: {lies} of {len(sample)} pages that its sitemap calls unchanged have changed: lastmod "
                f"is not believed for {days:g} days, and every page is asked for"
            )
            self._memory.distrusted = self._now + int(self._rules.refetch_s)
            for url in sorted(self._skipped):
                heapq.heappush(self._queue, (self._pages[url].checked, 0, 0, url))
            self._skipped.clear()
        yield from self._visit_queue()

    def _visit_queue(self) -> Iterator[Fetched]:
        while self._queue:
            if self._asked >= self._rules.budget:
                self._over_budget = True
                return
            yield from self._visit(heapq.heappop(self._queue)[-1])

    def _visit(self, url: str) -> Iterator[Fetched]:
        """Ask for a page, and yield its document if it is not what it was."""
        page = self._pages[url]
        if page.round == self._memory.round:
            return
        if not self._robots.allows(url):
            page.checked, page.round = self._now, self._memory.round
            if page.was_read:
                page.doubt = "robots.txt forbids it"
                self._follow_links(page)
            else:
                page.state = PageState.NO_DOCUMENT
                self._forbidden.append(url)
            return
        answer = self._ask(page)
        page.checked = self._now
        if not answer.is_away:  # what could not be asked for is asked for when the host is back
            page.round = self._memory.round
        found = self._judge(page, answer)
        self._follow_links(page)
        self._count_failures(answer)
        if found is not None:
            self._yielded.add(url)
            yield found

    def _ask(self, page: SitePage) -> Response:
        self._asked += 1
        validators = {}
        if page.was_read and not page.refused and self._rules.fetch is None and not self._memory.rereads:
            validators = {"if-none-match": page.etag, "if-modified-since": "" if page.etag else page.modified}
        validators = {name: value for name, value in validators.items() if value}
        answer = self._client.get(page.url, validators)
        if answer.status == 304 and not validators:  # a cache between us answers for somebody else
            answer = self._client.get(page.url, {"cache-control": "no-cache"})
        return answer

    def _count_failures(self, answer: Response) -> None:
        """Count answers that say that the host is away.

        Raises:
            Unavailable: it is.
        """
        self._away = self._away + 1 if answer.status == 0 else 0
        self._failing = self._failing + 1 if answer.status == 0 or answer.status == 429 or answer.status >= 500 else 0
        if self._away >= _AWAY_AFTER or self._failing >= _FAILS_AFTER:
            raise Unavailable(
                f"{self._origin} is away: the last {max(self._away, self._failing)} pages were not answered, such as "
                f"{answer.url} ({answer.why}). Nothing of it is deleted; the next scan goes on there",
                scope=self._origin.partition("//")[2],
            )

    # -- what an answer means ------------------------------------------------------------------------

    def _judge(self, page: SitePage, answer: Response) -> Fetched | None:
        """Record what an answer says about a page; return its document if it is new or has changed."""
        page.doubt, was_settled, page.is_settled = "", page.is_settled, False
        if answer.target and answer.status in MOVED:
            self._mark_moved(page, answer.target)
            return None
        if answer.target:
            if self._memory.missing_target and answer.target == self._memory.missing_target:
                page.state = PageState.GONE
                return None
            if self._client.may_ask(answer.target):
                answer = self._client.follow(answer.target)
        if answer.target:  # to another host, or in a circle
            if page.was_read:
                self._doubt(page, f"redirects to {answer.target}")
            else:
                self._mark_no_document(page)
            return None
        if answer.status == 304 and page.was_read:
            page.state = PageState.DOCUMENT
            page.lastmod = self._lastmods.get(page.url, page.lastmod)
            return None
        if answer.status in _GONE:
            page.state = PageState.GONE
            return None
        if answer.status not in (200, 203):
            self._doubt(page, answer.why)
            page.is_settled = answer.status in _FORBIDDEN and not page.was_read
            if page.is_settled and was_settled:  # it was never ours to read
                page.doubt = ""
            return None
        page.lastmod = self._lastmods.get(page.url, page.lastmod)
        if is_left_out(answer.mime):
            if page.was_read and not was_settled:
                self._doubt(page, f"it is {answer.mime} now")
                page.is_settled = True
            else:
                self._mark_no_document(page)
            return None
        if not answer.body and page.was_read:
            self._doubt(page, "an empty answer")
            return None
        return self._judge_content(page, answer)

    def _judge_content(self, page: SitePage, answer: Response) -> Fetched | None:
        if answer.is_cut:
            page.refused = (
                f"{page.url} has more than max_bytes={len(answer.body)}. Raise the limit, or exclude the page."
            )
            page.state, page.size, page.digest = PageState.DOCUMENT, len(answer.body), page.digest or "-"
            return None
        page.refused = ""
        if not answer.is_html:
            return self._document(page, answer, None)
        if self._rules.fetch is not None:
            try:
                content = self._rules.fetch(page.url)
            except Exception as e:
                self._doubt(page, f"fetch= failed: {message_of(as_exception(e))}")
                return None
            body = content.encode() if isinstance(content, str) else content
            headers = {**answer.headers, "content-type": "text/html; charset=utf-8"}
            answer = answer._replace(body=body, headers=headers if isinstance(content, str) else answer.headers)
        facts = read_page(answer.body, answer.url, answer.charset, answer.values_of("x-robots-tag"))
        if facts.has_password and (answer.url != page.url or (page.was_read and not page.has_password)):
            self._doubt(page, "a page that asks for a password is in its place")
            return None
        if facts.refresh and facts.refresh != page.url:
            if page.was_read and facts.refresh == self._memory.missing_target:
                page.state = PageState.GONE
            else:
                self._mark_moved(page, facts.refresh, refreshes=True)
            return None
        if self._is_missing_page(facts):
            page.state = PageState.GONE
            return None
        self._html += 1
        if facts.is_empty and self._rules.fetch is None:
            self._empty.append(page.url)
        page.has_password = facts.has_password
        self._links[page.url] = self._links_of(page.url, facts)
        if facts.noindex:
            self._mark_no_document(page)
            return None
        if facts.canonical and facts.canonical != page.url and self._is_alias(page, facts):
            page.state, page.target, page.digest = PageState.ALIAS, facts.canonical, ""
            return None
        return self._document(page, answer, facts)

    def _document(self, page: SitePage, answer: Response, facts: PageFacts | None) -> Fetched | None:
        digest = digest_of(answer.body) if facts is None else facts.digest
        changed = digest != page.digest or page.state != PageState.DOCUMENT
        page.state, page.digest, page.size, page.target = PageState.DOCUMENT, digest, len(answer.body), ""
        page.etag, page.modified = answer.headers.get("etag", ""), answer.headers.get("last-modified", "")
        if facts is None:
            self._links[page.url] = []
        return document_of(page.url, answer, digest) if changed else None

    def _links_of(self, url: str, facts: PageFacts) -> list[str]:
        """Return the links of a page that are worth remembering. If a page above it has the same text, there are none:
        the server ignores the end of an address, and relative links lead to ever longer ones."""
        self._texts[url] = facts.text
        if facts.text and not facts.is_empty and any(self._texts.get(each) == facts.text for each in pages_above(url)):
            self._repeated.append(url)
            return []
        links = (with_scheme_of(self._origin, link) for link in facts.links)
        return [link for link in links if link != url and (self._scope.has(link) or link in self._pages)]

    def _is_alias(self, page: SitePage, facts: PageFacts) -> bool:
        """Return whether a page's canonical link may be believed: the page that it names is here, calls itself so, and
        has about the same text."""
        target = facts.canonical
        if origin_of(target) != self._origin or not self._scope.has(target) or not self._robots.allows(target):
            return False
        if target not in self._canonicals:
            answer = self._client.get(target)
            is_page = answer.status == 200 and answer.is_html
            self._canonicals[target] = read_page(answer.body, target, answer.charset) if is_page else None
        other = self._canonicals[target]
        if other is None or other.canonical not in ("", target) or other.noindex:
            return False
        if not is_related(facts.sketch, other.sketch):
            return False
        return self._reach(target, page.depth, by_link=True)

    def _mark_moved(self, page: SitePage, target: str, *, refreshes: bool = False) -> None:
        page.state, page.target, page.refreshes = PageState.MOVED, with_scheme_of(self._origin, target), refreshes
        self._links[page.url] = []
        self._reach(page.target, page.depth, by_link=True)

    def _mark_no_document(self, page: SitePage) -> None:
        page.state, page.digest, page.etag, page.modified = PageState.NO_DOCUMENT, "", "", ""

    def _doubt(self, page: SitePage, why: str) -> None:
        page.doubt = why

    # -- addresses that the host does not have ---------------------------------------------------------

    def _ask_for_missing_page(self) -> None:
        """Ask for an address that the host cannot have, to know what it answers for one that it does not have."""
        memory = self._memory
        memory.missing_page, memory.missing_target, memory.robots_is_missing = None, "", False
        folder = self._starts[0].partition("?")[0].rpartition("/")[0] if self._starts else self._origin
        url = f"{folder}/{self._rng.getrandbits(64):016x}"
        if not self._robots.allows(url):
            return
        answer = self._client.get(url)
        if answer.target and answer.status not in MOVED:
            memory.missing_target = answer.target
        if answer.target and self._client.may_ask(answer.target):
            answer = self._client.follow(answer.target)
        if answer.status != 200 or not answer.is_html:
            return
        missing = read_page(answer.body, answer.url, answer.charset)
        memory.missing_target = memory.missing_target or missing.refresh
        robots = read_page(self._robots.page, self._origin).sketch
        memory.robots_is_missing = bool(self._robots.page) and is_same(missing.sketch, robots)
        first = self._client.follow(self._starts[0] if self._starts else self._origin + "/")
        answers_everything = is_same(missing.sketch, read_page(first.body, first.url, first.charset).sketch)
        if not missing.is_empty and not answers_everything:
            memory.missing_page = list(missing.sketch)

    @property
    def _is_blind(self) -> bool:
        """Return whether a page is in place of robots.txt, and not because the host answers so for any address that
        it does not have: then this may be another site, such as one of maintenance."""
        return bool(self._robots.page) and not self._memory.robots_is_missing

    def _is_missing_page(self, facts: PageFacts) -> bool:
        """Return whether a page is what the host answers for one that it does not have."""
        missing = self._memory.missing_page
        return missing is not None and is_same(facts.sketch, tuple(missing))

    # -- the end ---------------------------------------------------------------------------------------

    @property
    def _doubts(self) -> list[SitePage]:
        return [page for page in self._pages.values() if page.doubt]

    def _look_again(self) -> Iterator[Fetched]:
        """Ask once more for pages to which nothing leads any more: those that the host does not have are gone, the
        others stay. While a page is in doubt, what only links led to is left alone: the page might lead there."""
        if self._over_budget or self._incomplete or self._too_many:
            return
        left = [
            page
            for page in self._pages.values()
            if page.url not in self._reached and page.was_read and self._scope.has(page.url)
        ]
        in_doubt = sum(bool(page.doubt) for page in self._pages.values())
        for page in sorted(left, key=lambda page: not page.doubt):  # whether those are still in doubt decides the rest
            if not page.doubt and not page.listed and in_doubt:
                continue
            if self._asked >= self._rules.budget:
                self._over_budget = True
                return
            self._reached.add(page.url)
            in_doubt -= bool(page.doubt)
            yield from self._visit(page.url)
            in_doubt += bool(page.doubt)

    def _settle(self, *, drop: bool) -> None:
        """Decide, at the end of a round, which pages are not documents any more.

        Args:
            drop: forget them; False: the round was not complete, so that they stay as they were.
        """
        if self._too_many:
            self._incomplete.append(
                f"{self._origin} has more than max_pages={self._rules.max_pages} pages. Raise it, or exclude some"
            )
            drop = False
        for page in list(self._pages.values()):
            if page.state == PageState.MOVED and page.was_read and not page.doubt and (why := self._move_doubt(page)):
                page.doubt = why
        if not drop:
            return
        in_doubt = bool(self._doubts)
        for page in list(self._pages.values()):
            if page.doubt and (page.was_read or page.url in self._reached):
                continue
            if not self._scope.has(page.url):
                del self._pages[page.url]
            elif page.state in (PageState.GONE, PageState.MOVED):
                page.digest = page.etag = page.modified = ""
                if page.url not in self._reached and not in_doubt:
                    del self._pages[page.url]
            elif not page.was_read and page.url not in self._reached and not in_doubt:
                del self._pages[page.url]

    def _move_doubt(self, page: SitePage) -> str:
        """Return why a page that has moved is kept: it comes back to itself, or where it leads is in doubt."""
        seen = {page.url}
        target = self._pages.get(page.target)
        while target is not None:
            if target.url in seen:
                return f"redirects in a circle by {page.target}"
            seen.add(target.url)
            if target.doubt:
                return f"has moved to {target.url}, which is in doubt ({target.doubt})"
            if target.has_password and not page.has_password:
                return f"has moved to {target.url}, which asks for a password"
            if target.state != PageState.MOVED:
                break
            target = self._pages.get(target.target)
        if page.refreshes and (target is None or not target.was_read or target.url in self._empty):
            return f"leads at once to {page.target}, where no page could be read"
        return ""

    def _yield_unchanged(self) -> Iterator[Listed]:
        """Yield the documents that were not yielded yet: they are as they were, or nothing says that they are not."""
        for page in self._pages.values():
            if page.url in self._yielded or not page.was_read:
                continue
            if page.refused and not page.doubt:
                yield Listed(page.url, page.size, "", refused=page.refused)
            else:
                yield Listed(page.url, page.size, page.digest, ASKS_PASSWORD if page.has_password else "")

    def _notes(self) -> Iterator[Note]:
        if doubts := self._doubts:
            named = ", ".join(f"{page.url} ({page.doubt})" for page in doubts[:_NAMED])
            yield Note(f"{len(doubts)} pages are in doubt, and stay as they are: {_with_more(named, len(doubts))}")
        if self._empty:
            named = _with_more(", ".join(self._empty[:_NAMED]), len(self._empty))
            yield Note(
                f"{len(self._empty)} of {self._html} pages are nearly empty: this site is made by JavaScript: give "
                f"fetch=, a function that returns a page as a browser shows it: {named}"
            )
        if self._forbidden:
            named = _with_more(", ".join(self._forbidden[:_NAMED]), len(self._forbidden))
            yield Note(f"robots.txt forbids {len(self._forbidden)} pages, which are left out: {named}")
        if self._repeated:
            named = _with_more(", ".join(self._repeated[:_NAMED]), len(self._repeated))
            yield Note(
                f"{len(self._repeated)} pages have the text of a page above them, and their links are not followed: "
                f"exclude them: {named}"
            )
        if repeating := self._scope.repeating:
            yield Note(f"links to addresses that repeat a part of them again and again are not followed: {repeating}")
        for pattern in sorted(self._scope.full_patterns)[:_NAMED]:
            yield Note(
                f"{self._origin}{pattern}: there are more pages of this pattern than per_pattern= allows, and the rest "
                "is left out. Raise it, or exclude them"
            )

    def _remember(self) -> Iterator[Bookmark]:
        numbers = {url: number for number, url in enumerate(self._pages)}
        for page in self._pages.values():
            page.links = [numbers[url] for url in self._links.get(page.url, ()) if url in numbers]
        self._memory.elsewhere = list(self._elsewhere)
        is_unchanged = signature(self._memory, self._pages.values()) == self._old_signature
        if (
            is_unchanged
            and not self._rules.revisit_s
            and 0 <= self._now - self._written < self._rules.refetch_s * _KEPT_SHARE
        ):
            return
        yield from bookmarks(self._origin, self._memory, self._pages.values(), self._old_chunks)


def document_of(url: str, answer: Response, digest: str) -> Fetched:
    """Return a page's document, with its fingerprint."""
    fields: dict[str, Any] = {"url": url, "content_hash": digest}
    if answer.mime:
        fields["mime"] = answer.mime
    if answer.charset:
        fields["charset"] = answer.charset
    try:
        modified = parsedate_to_datetime(answer.headers.get("last-modified", ""))
        fields["modified"] = modified.isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        pass
    return Fetched(Document.of(url, fields, answer.body), digest)


def _with_more(named: str, count: int) -> str:
    return f"{named} and {count - _NAMED} more" if count > _NAMED else named


def _reason(page: SitePage) -> str:
    if page.doubt:
        return page.doubt
    return {
        PageState.GONE: "there is no such page",
        PageState.MOVED: f"it has moved to {page.target}: name that address",
        PageState.ALIAS: f"it is another name of {page.target}",
        PageState.NO_DOCUMENT: "robots.txt forbids it, it asks not to be indexed, or is not a document",
    }.get(page.state, "it was not asked for")
