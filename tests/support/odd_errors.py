"""Exceptions that libraries raise, or might: their words, their class, their causes or anything else cannot be had."""

from __future__ import annotations

import sys
from typing import Any


class NoStr(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot say")


class NoRepr(Exception):
    def __repr__(self) -> str:
        raise ValueError("cannot show")


class StrIsNumber(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307


class StrExits(Exception):
    def __str__(self) -> str:  # noqa: PLE0307
        sys.exit(3)


class StrInterrupts(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Recursive(Exception):
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name + "x")


class Lazy(Exception):
    """As API clients have it: an error that gives access to the fields of the answer."""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["answer"][name]


class NoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"no {name}")


class NoCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise ValueError("no cause")


class Unequal(Exception):
    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


class NoBool(Exception):
    def __bool__(self) -> bool:
        raise ValueError("neither")

    def __len__(self) -> int:
        raise ValueError("no length")


class NoReduce(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class TwoArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class LiesAboutItsClass(Exception):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise ValueError("no class")


class Base(BaseException):
    pass


class NamelessMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Exception, metaclass=NamelessMeta):
    pass


def noted() -> BaseException:
    error = ValueError("with notes")
    error.__notes__ = [7, None, "\ud800"]
    return error


def circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def own_cause() -> BaseException:
    one = ValueError("own cause")
    one.__context__ = ValueError("other")
    one.__context__.__context__ = one
    return one


def long_chain() -> BaseException:
    error = ValueError("the last")
    for _ in range(3000):
        error, before = ValueError("one of many"), error
        error.__cause__ = before
    return error


def nested_groups() -> BaseException:
    error: Exception = ValueError("inner")
    for _ in range(200):
        error = ExceptionGroup("group", [error])
    return error
