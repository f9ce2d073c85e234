"""Steps that change text."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps import fill_template, keep_matches, replace_matches, split, trim, url_encode

texts = st.text(alphabet=st.sampled_from(" \t\u00a0\n,;ab"), max_size=12)


def after(step: Any, held: Any) -> Any:
    """What becomes of field ``a``."""
    return step(Document("i", a=held)).get("a")


@settings(deadline=None)
@given(texts)
def test_trimming_twice_is_trimming_once(text: str) -> None:
    """And what is left neither begins nor ends with white space."""
    once = after(trim("a"), text)

    assert after(trim("a"), once) == once
    assert once == once.strip()


def test_other_characters_can_be_trimmed() -> None:
    """In any order."""
    assert after(trim("a", "-*"), "-*x-*y*") == "x-*y"


@settings(deadline=None)
@given(texts, st.sampled_from([",", ";", ",;", " "]))
def test_parts_joined_are_the_text_again(text: str, separator: str) -> None:
    """Where empty parts are kept."""
    assert separator.join(after(split("a", separator, keep_empty=True), text)) == text


@settings(deadline=None)
@given(st.lists(texts, max_size=4))
def test_a_list_is_split_into_one_list(given: list[str]) -> None:
    """Without empty parts, if they are not asked for."""
    parts = after(split("a", ","), given)

    assert parts == [part for text in given for part in text.split(",") if part]


@pytest.mark.parametrize(
    ("step", "text", "parts"),
    [
        (split("a"), "  to be\tor\nnot ", ["to", "be", "or", "not"]),
        (split("a", "|"), "a|b", ["a", "b"]),
        (split("a", r"\s*;\s*", regex=True), "a ;b", ["a", "b"]),
        (split("a", "(?=[A-Z])", regex=True), "HenryTheFifth", ["Henry", "The", "Fifth"]),
        (split("a", ","), "", []),
        (split("a", ","), "whole", ["whole"]),
    ],
)
def test_where_text_is_cut(step: split, text: str, parts: list[str]) -> None:
    """A separator is literal, unless it is said to be a regular expression."""
    assert after(step, text) == parts


@settings(deadline=None)
@given(texts, st.sampled_from(["a", " ", ",+", "[ab]"]))
def test_replacing_is_that_of_re(text: str, pattern: str) -> None:
    """Every match, from left to right."""
    assert after(replace_matches("a", pattern, "<>"), text) == re.sub(pattern, "<>", text)


@settings(deadline=None)
@given(st.lists(texts, max_size=4), st.sampled_from(["a*", "[ab ]+", ".*"]))
def test_what_is_kept_matches_as_a_whole(given: list[str], pattern: str) -> None:
    """In its order; keeping again changes nothing. A single text goes by the same rule, with its field."""
    step = keep_matches("a", pattern)
    kept = after(step, given)

    assert kept == [text for text in given if re.fullmatch(pattern, text)]
    assert after(step, kept) == kept
    for text in given:
        assert ("a" in step(Document("i", a=text))) == (text in kept)


@settings(deadline=None)
@given(st.text())
def test_a_url_decodes_to_what_was_encoded(text: str) -> None:
    """And holds nothing but what may stand in one."""
    encoded = after(url_encode("a"), text)

    assert unquote(encoded) == text
    assert re.fullmatch(r"([A-Za-z0-9_.~-]|%[0-9A-F]{2})*", encoded)


def test_a_path_keeps_its_slashes() -> None:
    """If it is said so."""
    assert after(url_encode("a", safe="/"), "a b/c") == "a%20b/c"


def test_text_that_utf_8_cannot_hold_is_refused() -> None:
    """It cannot be encoded."""
    with pytest.raises(BadDocument, match="surrogates not allowed"):
        after(url_encode("a"), "\ud800")


@pytest.mark.parametrize(
    ("template", "fields", "text"),
    [
        ("$title ($year)", {"title": "Emma", "year": 1815}, "Emma (1815)"),
        ("${dc:title}", {"dc:title": "Emma"}, "Emma"),
        ("${a b}", {"a b": "x"}, "x"),
        ("$$5 ${n}th", {"n": 5}, "$5 5th"),
        ("$on $score", {"on": True, "score": 0.5}, "true 0.5"),
        ("$tags", {"tags": ["a", None, 3, False]}, "a, 3, false"),
        ("$tags", {"tags": []}, ""),
        ("$a", {"a": ""}, ""),
        ("$a", {"a": "$b {c.__class__} %s"}, "$b {c.__class__} %s"),
        ("no field", {}, "no field"),
    ],
)
def test_templates(template: str, fields: dict[str, Any], text: str) -> None:
    """Values are put in as they are, and are no templates themselves."""
    assert fill_template("to", template)(Document.of("i", fields))["to"] == text


def test_a_missing_field_leaves_the_target_as_it_is() -> None:
    """Unless something stands for it."""
    doc = Document("i", first="Jane", to="old")

    assert fill_template("to", "$first $last")(doc)["to"] == "old"
    assert fill_template("to", "$first $last", missing="?")(doc)["to"] == "Jane ?"


def test_lists_are_joined_as_wanted() -> None:
    """By any text."""
    assert fill_template("to", "$a", join="|")(Document("i", a=["x", "y"]))["to"] == "x|y"


@pytest.mark.parametrize("held", [{"k": 1}, [["nested"]], [{"k": 1}]])
def test_a_template_shows_no_dicts(held: Any) -> None:
    """There is no one way to write them."""
    with pytest.raises(BadDocument, match=r"i: field 'a' holds .* which a template cannot show"):
        fill_template("to", "$a")(Document("i", a=held))


@pytest.mark.parametrize("held", [3, True, {"k": 1}, ["x", 3], [["x"]]])
@pytest.mark.parametrize(
    "step", [trim("a"), split("a"), replace_matches("a", "x"), keep_matches("a", "x"), url_encode("a")]
)
def test_what_is_no_text_is_refused(step: Any, held: Any) -> None:
    """The message names document and field, and says what to do."""
    with pytest.raises(BadDocument, match=r"^i: field 'a' holds .* where text is needed\. Make text of it in a step"):
        after(step, held)


def test_a_long_value_is_cut_in_the_message() -> None:
    """A message is a line."""
    with pytest.raises(BadDocument) as caught:
        after(trim("a"), {str(n): "x" * 1000 for n in range(1000)})

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: trim("a", ""), "characters=''"),
        (lambda: split("a", ""), "separator=''"),
        (lambda: split("a", "(", regex=True), r"regular expression '\('"),
        (lambda: split("a", "(,)", regex=True), "has a capturing group"),
        (lambda: replace_matches("a", "[", "x"), r"regular expression '\['"),
        (lambda: replace_matches("a", "x", r"\1"), "invalid group reference"),
        (lambda: replace_matches("a", "x", r"\g<none>"), "none"),
        (lambda: keep_matches("a", "*"), "nothing to repeat"),
        (lambda: fill_template("a", "$"), r"write \$name or \${name}"),
        (lambda: fill_template("a", "${}"), r"write \$name or \${name}"),
        (lambda: fill_template("a", "5 $ each"), r"and \$\$ for a dollar sign"),
        (lambda: fill_template("", "x"), "field=''"),
        (lambda: url_encode("a", safe="é"), "give ASCII characters"),
    ],
)
def test_mistakes_are_found_when_the_step_is_made(make: Any, says: str) -> None:
    """In the plan file."""
    with pytest.raises(ValueError, match=says):
        make()
