"""What ``async def`` steps do to their event loop, and to what they wait for, when they misbehave."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ferryman.document import Document


def good(doc: Document) -> Document:
    """What a step does for all other documents."""
    doc["seen"] = doc["n"]
    return doc


async def part() -> None:
    sys.exit(2)


async def interrupted_part() -> None:
    raise KeyboardInterrupt


async def gather(doc: Document) -> Any:
    await asyncio.gather(part(), interrupted_part(), asyncio.sleep(0))


async def group(doc: Document) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(part())
        group.create_task(asyncio.sleep(60))


async def wait_for(doc: Document) -> Any:
    await asyncio.wait_for(part(), 60)


async def to_thread(doc: Document) -> Any:
    await asyncio.to_thread(sys.exit, 2)


async def cancels_itself(doc: Document) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return good(doc)


async def runs_a_loop(doc: Document) -> Any:
    asyncio.get_running_loop().run_until_complete(asyncio.sleep(0))


async def closes_the_loop(doc: Document) -> Any:
    asyncio.get_running_loop().close()


async def left_behind(doc: Document) -> Any:
    asyncio.get_running_loop().create_task(part())
    await asyncio.sleep(0.01)
    return good(doc)


async def interrupt_left_behind(doc: Document) -> Any:
    doc_task = asyncio.get_running_loop().create_task(interrupted_part())
    await asyncio.wait([doc_task])
    return good(doc)


async def soon(doc: Document) -> Any:
    asyncio.get_running_loop().call_soon(sys.exit, 2)
    await asyncio.sleep(0.01)
    return good(doc)


async def stops(doc: Document) -> Any:
    asyncio.get_running_loop().stop()
    return good(doc)


async def odd_handler(doc: Document) -> Any:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: sys.exit(2))
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)
    return good(doc)


async def swallows(doc: Document) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return good(doc)


async def hangs(doc: Document) -> Any:
    await asyncio.Event().wait()
