"""Every limit, with its unit in its name and its reason beside it."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# --- scanning -----------------------------------------------------------------------------------
WAVE_BYTES: Final = GIB
"""Listed bytes a wave processes at most: what is committed and not delivered yet takes room on the disk."""

WAVE_SLOT_BYTES: Final = 64 * MIB
"""The same for each task slot: a wave is transformed while the one before it is delivered, so a scan should have many.
Not less, for each wave has its commits and its jobs."""

LEAST_WAVE_SLOT_BYTES: Final = 8 * MIB
"""The same of a scan that has little, which is cut into ``SCAN_WAVES``."""

SCAN_WAVES: Final = 8
"""Waves that a scan should have: what nothing runs beside, the first one's steps and the last one's delivery, is a
small part then."""

MAX_PENDING_BYTES: Final = 4 * WAVE_BYTES
"""What may be pending in the outbox while a scan reads on: a destination that is away for a day must not have the whole
source copied to the disk."""

TASK_BYTES: Final = 32 * MIB
"""Listed bytes a transform task takes: what one task may hold in memory, and what a killed worker costs."""

EVEN_TASK_BYTES: Final = 4 * MIB
"""Documents of so many bytes are worth a task although all cores have work: cores end at about the same time then. Not
fewer, for a chunk does not go on from one task's documents to the next one's."""

TASK_DOCUMENTS: Final = 65_536
"""Documents a transform task takes, for sources of very small documents."""

ONCE_DOCUMENTS: Final = 1000
"""The same of an at-most-once plan: when its worker dies, that many are in doubt."""

MAX_FILE_BYTES: Final = 256 * MIB
"""Largest file ``Files`` reads by default: a document lives whole in a worker's memory, a few times over."""

MAX_LINE_BYTES: Final = 16 * MIB
"""Longest line or row that is read by default: more is a file without line ends, or a quote that is never closed."""

PACKED_RATIO: Final = 1000
PACKED_FREE_BYTES: Final = GIB
"""A file may unpack to so many times its size; up to the second number of bytes nobody asks. Text packs 3 to 100 times
smaller, what gzip packs better than this is made to fill a disk."""

PACKED_MEMORY_BYTES: Final = 256 * MIB
"""What an unpacker may hold: the largest level of each packer needs less (xz -9: 65 MiB, zstd --ultra: 128 MiB)."""

COMPARED_ROWS: Final = 1_000_000
"""Rows of hashes, 50 bytes each, that a scan compares at once, to find which documents it has to look at."""

JOINED_ROWS: Final = 32_768
JOINED_BYTES: Final = 8 * MIB
"""Rows, and bytes, of listing and ``documents`` that are joined at once: a join takes some four times as much, and has
``QUERY_MEMORY``."""

CUT_ROWS: Final = 262_144
"""Rows of the listing, 100 bytes each, that are put into the source's order at once."""
MAX_DELETED: Final = 0.5
"""Share of a source's documents that may be missing at once before an operator is asked."""

NAMED_DOCUMENTS: Final = 100_000
"""Documents that a retry asks its sources for by name: the names travel with each task. If more are pending, all are
listed."""

COMMAND_DELIVERIES: Final = 50_000
"""Deliveries that an operator's command puts into one wave, about: one of 3 KB each lies in the driver's memory."""

FINGERPRINT_TRUST_S: Final = 2.0
"""A file changed less than this before its listing may change again within one tick of its clock: read it."""

SMALL_LISTING_PARTS: Final = 64
"""Folders a listing is cut into at most: enough to keep executors busy, few enough to walk in the driver."""

GUARDED_DOCUMENTS: Final = 100
"""Known documents from which on ``max_deleted`` holds for a first-level folder by itself: few may well go at once."""

LOOKED_AT_AGAIN: Final = 10_000
LOOKED_AT_A_FOLDER: Final = 32
"""Documents of a source, and of one of its folders, that the driver looks for before they are deleted: a look each, and
a machine that does not see a folder misses all that is in it."""

LOOKED_AT_IN_A_STORE: Final = 200
"""The same of what fsspec reaches: each look is a request."""

DOUBTS: Final = 1000
"""Folders of one piece of a listing that the driver looks at again: one look each, and an unmounted share shows in the
first. Empty folders may be many; what was known in them is looked at before it is deleted."""

# --- steps and delivering -------------------------------------------------------------------------
ATTEMPTS: Final = 3
"""Attempts a delivery gets before it is DEAD."""

BRAKE: Final = 20
"""Errors of so many documents in a row are the step's or the source's own: fewer may well be odd documents."""

OUTAGE_DOCUMENTS: Final = 3
"""Of a node that has worked in this run: new documents in a row, also over several waves, that have to meet errors of
the connection before it is away. One or two may have an address of their own that is dead."""

BRAKE_BATCHES: Final = 3
"""Batches of a queue that have to fail before a step is stopped: one or two may hold nothing but bad files."""

PATIENCE_S: Final = 86_400.0
PATIENCE_TRIES: Final = 8
"""What is transient by its own word is tried for a day, and so often at least: a service is fixed in a day, and a run
that is started once a day is not one try."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_FACTOR: Final = 4.0
BACKOFF_MAX_S: Final = 3600.0
"""Backoff before attempt n+1: full jitter over 1 s × 4ⁿ, at most an hour (an operator's attention span)."""

BATCH_ROWS: Final = 500
"""Rows a chunk: what search engines' own bulk helpers send by default."""

BATCH_BYTES: Final = 5 * MIB
"""Bytes a chunk: far below the 100 MB that search engines refuse, large enough to hide a round trip."""

HELD_CHILDREN: Final = 10_000
"""Documents of one call of a step that are held before they go on: more are taken as they come, and taken back if the
call fails after all. (``GROUP_BYTES`` of content count as much.)"""

WAITING_MEMBERS: Final = 50_000
"""Members of one family that may wait for a node each for itself: 1 KB each. Of more, the family waits as a whole."""

BLAMED_BYTES: Final = MIB
"""A document of fewer bytes is not what there was no memory for: the limit is too small for anything."""

DEATHS: Final = 3
"""How often a task's worker may die in isolation mode too (killed from outside, with its child) before the run ends."""

CONTEST_ROWS: Final = 4_000_000
"""Pending rows of a destination that are compared at once to find those of one document: 40 bytes each, a few times."""

ALIKE_CHUNKS: Final = 5
ALIKE_ROWS: Final = 1000
"""A destination that refuses every row of so many chunks in a row, and of so many rows, with the same words is itself
in trouble: a mistaken index, a full disk. Fewer may well be the documents'."""

RESULT_EVERY_S: Final = 1.0
"""A durable result is written after this time at the latest: what a kill may send again where that is allowed."""

PACE_S: Final = 60.0
"""Time a destination gets in a wave. The rest stays pending, and the next wave goes on."""

SEND_TIMEOUT_S: Final = 60.0
"""A call of a destination that takes longer is given up, unless its ``send_timeout=`` says otherwise."""

SEND_TIMEOUT_MAX_S: Final = 600.0
"""The longest ``send_timeout=``: a wave ends when the slowest of its destinations has, so this bounds what one that
hangs costs all others (ten times the pace)."""

UNLISTED_AGAIN_S: Final = 60.0
"""Documents that are to be tried again and that no source lists are looked for so often: each time is a scan, and a
file or a job that comes back is seldom waited for by the second."""

WAIT_S: Final = 60.0
"""`run` waits by itself for rows that come due within this time."""

STEP_TIMEOUT_S: Final = 120.0
"""For a call of a ready-made step whose time does not follow from what it reads: parsers, patterns, servers."""

ARROW_ROWS: Final = 1024
"""Documents in a record batch of a step with ``arrow=True``, unless its ``batch=`` says otherwise."""

CONCURRENCY_MOST: Final = 1000
"""Calls of a step that one task may have under way: each takes a thread."""

IN_FLIGHT: Final = 4096
IN_FLIGHT_BYTES: Final = TASK_BYTES
"""Documents of a task, and their bytes, that are on their way at once for steps that take batches or wait."""

HUNG_CALLS: Final = 100
"""Calls that never end which a worker leaves behind before its process is ended: each keeps its thread."""

FETCH_TIMEOUT_S: Final = 30.0
"""Time a fetch of a URL gets: a server that needs longer is better asked again later."""

FETCH_REDIRECTS: Final = 5
"""Redirects a fetch follows: what HTTP once named as the most that is sensible (RFC 2068, 10.3)."""

AGAIN_LEAST_S: Final = 1.0
"""A document that asks to be read again comes no sooner: a scan that finds it due each time would never end."""

AGAIN_MOST_S: Final = 100 * 366 * 86_400.0
"""A document that asks to be read again later than this was written by mistake."""

# --- telling people -------------------------------------------------------------------------------
NOTIFY_TIMEOUT_S: Final = 30.0
NOTIFY_TIMEOUT_MAX_S: Final = 300.0
"""Time a digest gets, and may be given: the run waits for it."""

NOTIFY_EVERY_S: Final = 60.0
"""An endless run without periods tells no more often: a folder of bad files is one mail, not a hundred."""

NOTIFY_GRACE_S: Final = 5.0
"""A sender that does not end by itself after its time gets so much longer, and then is left alone."""

NOTIFY_EXAMPLES: Final = 10
"""Documents a digest names: a mail that is read; ``deliveries`` has them all."""

NOTIFY_REASON_CHARACTERS: Final = 500
"""At most so much of a reason is shown."""

NOTIFY_TARGETS: Final = 50
"""Targets of which a state remembers what they were told; the oldest are forgotten."""

# --- reading documents ----------------------------------------------------------------------------
EXTRACT_TEXT_BYTES: Final = 64 * MIB
"""Text that is taken from a document: a hundred thick books, and less than a worker's memory."""

EXTRACT_UNPACKED_BYTES: Final = GIB
"""What a zipped document may hold, pictures included, which are not unpacked: more is a bomb."""

EXTRACT_PART_BYTES: Final = 64 * MIB
"""XML of one part of a zipped document: as a tree it takes some ten times as much memory."""

EXTRACT_CELLS: Final = 20_000_000
"""Cells of a sheet's grid: 32 bytes each in the reader, used or not."""

EXTRACT_PAGES: Final = 50_000
"""Pages of a PDF: the longest that people make are a tenth of it, and a page tree may run in circles."""

EXTRACT_DEPTH: Final = 3
"""How deep mails are looked for in mails."""

EXTRACT_SAMPLE_BYTES: Final = 64 * KIB
"""What is looked at to guess the encoding of a text, and its first part to guess the language."""

EXTRACT_LANGUAGE_LETTERS: Final = 40
"""Of fewer letters nobody can tell the language."""

UNPACK_MEMBERS: Final = 10_000
"""Members of an archive: the children of one document are in memory at once."""

UNPACK_BYTES: Final = 256 * MIB
"""What an archive may unpack to, as much as a file may have (MAX_FILE_BYTES)."""

UNPACK_FILES: Final = 100_000
"""Members of a container that is unpacked to files: not these, but what is known of each is in memory, a kilobyte."""

UNPACK_FILES_BYTES: Final = 64 * GIB
"""What such a container may unpack to: as much as one file that is fetched."""

UNPACK_RATIO: Final = 200
"""Unpacked bytes a packed byte: text has 10, logs 50; a bomb 1000."""

UNPACK_FREE_BYTES: Final = MIB
"""Up to here the ratio says nothing: a megabyte of zeros harms nobody."""

SPLIT_SIZE: Final = {"characters": 1000, "tokens": 256, "paragraphs": 1, "sentences": 1, "headings": 1}
"""How much one part of a text has: what embedding models take in, else the smallest unit."""

# --- state ----------------------------------------------------------------------------------------
FORMAT: Final = 2
"""Format of the state directory. A newer one is refused."""

PART_BYTES: Final = 64 * MIB
"""Content after which a state file closes: it is rewritten whole, and one lane sends it."""

GROUP_BYTES: Final = 16 * MIB
"""Content of a row group: what whoever reads a state file holds at once. Only a larger row makes a larger one."""

MAX_CONTENT_BYTES: Final = 2000 * MIB
"""Fields, or raw bytes, of one delivery: a page of a data file is compressed whole, and lz4 takes 2016 MiB at most."""

MESSAGE_CHARACTERS: Final = 4000
"""Of what other people's code says when something fails, and of what is said of a document: a million documents may
fail with a page of a web server each, and all of it is kept in the ledger. What is left out is in the middle."""

TRACE_CHARACTERS: Final = 4000
"""Of a traceback: the last ones, where the error is."""

NESTED: Final = 200
"""Levels of lists and dicts that the fields of a document may have, themselves the first: copying them takes two frames
a level, and Python gives up at 1000, of which those who call need some. Other programs' parsers give up earlier."""

COMPACT_FILES: Final = 32
"""Tiny files a table may gather before they are merged into one."""

OUTDATED_SHARE: Final = 0.5
"""Rows of ``documents`` that newer ones may have superseded, as a share of all, before they are dropped: each row is
copied about once for each one that is added."""

OUTDATED_BYTES: Final = GIB
"""Content of files that are freed of outdated rows after one wave: some ten seconds. The rest is done after the
next."""

CHECKPOINT_COMMITS: Final = 32
"""Commits a table's log may gather before it is checkpointed and trimmed (a load costs about 0.2 ms a commit)."""

QUERY_MEMORY: Final = "128MB"
"""What state queries may hold in memory before they spill to disk."""

QUERY_THREADS: Final = 2
"""DuckDB holds some 60 MB a thread that it cannot spill: on a machine of 64 cores ``QUERY_MEMORY`` would not do."""

COUNTED_EVENTS: Final = 1_000_000
"""Of more events a run keeps what ``status`` says: so many are counted in two seconds when somebody asks."""

COUNTING_SHARE: Final = 20
"""An endless run spends one part in so many of its time on that at most."""

QUERY_ROWS: Final = 50_000
"""Rows of the ledger that a query reads at a time where they would not all fit into ``QUERY_MEMORY``."""

READERS_GRACE_S: Final = 300.0
"""Files that a driver has replaced stay so long while somebody reads the state: questions take seconds, and readers
that follow each other without a gap must not keep what they do not need."""

TEMPORARY_S: Final = 3600.0
"""A half-written file of a command or the journal that is older than this is nobody's any more: writing takes
moments."""

SEQUENCE_MAX: Final = 1 << 52
"""What a destination says it holds is believed up to here (in the year 2106 we come to it): JSON keeps 2⁵³."""

SEQUENCE_PER_SECOND: Final = 1 << 20
"""A fresh state's first sequence is its creation time in seconds times this: it overwrites what a lost state wrote."""

# --- queues ---------------------------------------------------------------------------------------
QUEUE_MESSAGE_BYTES: Final = 256 * MIB
"""Largest message, as large as a document of ``Files``: it lives whole in memory, a few times over."""

QUEUE_NESTED: Final = 100
"""Levels of a message: Python reads back some hundreds, fewer where it is called from deep down. Fewer than fields may
have: an error message has them some levels down."""

QUEUE_FILES: Final = 32
"""Neighbouring files of one level that become one: each message is copied some four times in ten million."""

QUEUE_COMMITS: Final = 64
"""Commits a queue's log may gather before it is folded: that takes 10 ms, to read one 0.05 ms."""

QUEUE_GROUP_ROWS: Final = 8192
"""Messages a row group: what a look at one of them reads at most."""

QUEUE_AHEAD_ROWS: Final = 1024
QUEUE_AHEAD_BYTES: Final = 4 * MIB
"""Messages, and their bytes, that a tailer reads ahead."""

QUEUE_BACK_ROWS: Final = 64
"""The same of one that reads backward: of these all are read, however large."""

QUEUE_TURN_S: Final = 5.0
"""An append waits so long for its turn, and then goes on without: whoever has it may have been stopped."""

QUEUE_READER_S: Final = 30.0
"""Whoever moves a reader of a queue waits so long for another process that is at it, and then says who that is: reading
many messages takes seconds."""

QUEUE_POLL_S: Final = 0.01
QUEUE_POLL_MAX_S: Final = 0.05
"""How often a tailer that waits looks whether something came: a look takes 0.1 ms."""

QUEUE_POLL_STORE_S: Final = 1.0
"""The same in an object store, where a look is a few requests."""

READER_CHARACTERS: Final = 110
"""Of the name by which a queue knows a plan: what tells plan and source, before what tells the state."""

QUEUE_STRAY_S: Final = 86_400.0
"""A data file that nobody names may be one that somebody is about to append: nobody takes a day for that."""

# --- state by key ---------------------------------------------------------------------------------
KEY_BYTES: Final = 256 * KIB
"""Longest key: keys are compared and kept in memory by the thousand."""

KEY_BUCKETS: Final = 32
KEY_BUCKETS_MOST: Final = 4096
"""Ranges of keys that tasks work on; more tasks than this take longer to hand out than to run."""

KEY_BUFFER_BYTES: Final = MIB
"""Of documents that one call of an ``update`` gets."""

KEY_LANES: Final = 4
"""Ranges of keys whose exports go on by themselves: one that has to wait holds those of its range."""

KEY_RUN_BYTES: Final = 2 * MIB
KEY_RUN_ROWS: Final = 16_384
"""Of each of the sorted files that a task merges, what it has in memory."""

KEY_MERGE_BYTES: Final = 64 * MIB
"""Of all sorted files that a task merges together, what it has in memory, a few times over: a backlog has hundreds."""

KEY_TASK_BYTES: Final = 64 * MIB
"""Of documents that are worth a task of their own."""


# Durations and rates as people write them: ``90s``, ``15m``, ``2h``, ``1d``; ``100/s``, ``6000/m``.

UNITS_S: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """``60``, ``60s``, ``1.5m``, ``2h``, ``1d``, ``500ms`` as seconds.

    Raises:
        ValueError: not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r}: give seconds, or a number with ms, s, m, h or d: 60, 60s, 2m, 1d")
    return float(found[1]) * UNITS_S[found[2]]


def per_second(rate: object) -> float:
    """``100``, ``100/s``, ``6000/m``, ``6000/min``, ``50/h`` as a number a second, above 0.

    Raises:
        ValueError: not a rate.
    """
    count, slash, unit = str(rate).replace(" ", "").lower().partition("/")
    unit = {"sec": "s", "min": "m", "hour": "h", "day": "d"}.get(unit, unit)
    found = re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", count)
    known = unit in ("s", "m", "h", "d") if slash else not isinstance(rate, bool)
    if found is None or not known or not float(count):
        raise ValueError(f"{rate!r}: give a number a second, or text as in '100/s', '600/m', '50/h'")
    return float(count) / UNITS_S[unit]
