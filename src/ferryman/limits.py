"""All limits, each with its unit in its name and its reason beside it, and parsing of durations and rates."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# --- scanning -----------------------------------------------------------------------------------
WAVE_BYTES: Final = GIB
"""Listed bytes a wave processes at most: committed and undelivered documents take room on the disk."""

WAVE_SLOT_BYTES: Final = 64 * MIB
"""Listed bytes a wave processes at most per task slot: a wave is transformed while the previous one is delivered, so a
scan should have many waves. Not less, because each wave has its own commits and jobs."""

WAVE_SLOT_MIN_BYTES: Final = 8 * MIB
"""Lower bound of ``WAVE_SLOT_BYTES`` for a small scan, which is split into ``SCAN_WAVES``."""

SCAN_WAVES: Final = 8
"""Waves that a scan should have: the parts that run alone, the first one's steps and the last one's delivery, are small
then."""

SMALL_DOCUMENTS: Final = 20_000
SMALL_BYTES: Final = 64 * MIB
"""Documents, and their bytes, of a wave that is processed without Spark on one machine: helper processes need less time
for them than Spark takes to start."""

MAX_PENDING_BYTES: Final = 4 * WAVE_BYTES
"""Bytes that may be pending in the outbox while a scan continues: a destination that is unavailable for a day must not
have the whole source copied to the disk."""

TASK_BYTES: Final = 32 * MIB
"""Listed bytes of a transform task: what it may hold in memory, and what a killed worker costs."""

EVEN_TASK_BYTES: Final = 4 * MIB
"""Bytes of documents that are worth a task although all cores are busy: cores then finish at about the same time. Not
fewer, because a chunk does not continue from one task's documents to the next one's."""

TASK_DOCUMENTS: Final = 65_536
"""Documents of a transform task, for sources of very small documents."""

REVISIONS_PER_REPLAY: Final = 1 << 40
"""Upper bound of the revisions that a log counts itself; each time that it is read again adds this much."""

ONCE_DOCUMENTS: Final = 1000
"""Documents of a transform task of an at-most-once plan: what it makes of so many lies in its notes until it ends."""

MAX_FILE_BYTES: Final = 256 * MIB
"""Largest file that ``Files`` reads by default: a whole document is in a worker's memory, a few times over."""

MAX_LINE_BYTES: Final = 16 * MIB
"""Longest line or row read by default: a longer one is a file without line ends, or a quote that is never closed."""

PACKED_RATIO: Final = 1000
PACKED_FREE_BYTES: Final = GIB
"""Factor by which a file may grow when unpacked; not checked below this number of unpacked bytes. Text packs 3 to 100
times smaller; files that gzip packs better than this are made to fill a disk."""

PACKED_MEMORY_BYTES: Final = 256 * MIB
"""Memory an unpacker may use: the highest level of each packer needs less (xz -9: 65 MiB, zstd --ultra: 128 MiB)."""

WATCH_EVERY_S: Final = 600.0
"""Time between two full listings of a run that watches: they find what no event said, and what was deleted unseen."""

WATCH_QUIET_S: Final = 0.05
WATCH_BURST_S: Final = 1.0
"""How long a run that watches waits after an event for others to be processed with it: until none comes for the first
time, at most for the second one, or as long as the last wave took. A save of an editor is several events."""

WATCH_GONE_S: Final = 2.0
"""Time after which a file that was removed or moved away is looked for, since many programs save by renaming."""

WATCH_POLL_S: Final = 5.0
WATCH_POLL_SHARE: Final = 10
"""Time between two listings of what has no events, or as many times what a listing takes, if that is longer."""

WATCH_TICK_S: Final = 0.5
WATCH_STORE_S: Final = 10.0
"""Time between two looks at logs and at what comes due, while a run that watches waits; for logs in an object store,
where each look is paid for, the second."""

STREAM_RECORDS: Final = 100
"""Batches of a stream whose records are kept after they were processed: as many as Spark's own checkpoint keeps."""

WATCH_NAMES: Final = 100_000
"""Changed files of a source whose names are remembered; if there are more, all of it is listed."""

COMPARED_ROWS: Final = 1_000_000
"""Rows of hashes, 50 bytes each, that a scan compares at once to find the documents that it has to examine."""

COUNTED_ROWS: Final = 131_072
"""Rows of each table, 50 bytes each, that are counted at once: with what is computed of them they take six times as
much."""

JOINED_ROWS: Final = 32_768
JOINED_BYTES: Final = 8 * MIB
"""Rows and bytes of listing and ``documents`` that are joined at once: a join takes about four times as much, and has
``QUERY_MEMORY``."""

SORTED_ROWS: Final = 262_144
"""Rows of the listing, 100 bytes each, that are sorted into the source's order at once."""
MAX_DELETED: Final = 0.5
"""Share of a source's documents that may be missing at once before an operator is asked."""

REMEMBERED_FILES: Final = 16
"""New data files of a store of answers from which on they are merged: a task looks into each of them."""

REMEMBERED_FILE_BYTES: Final = 64 * MIB
"""Bytes of a merged data file of answers, about: what a merge holds in memory."""

NAMED_DOCUMENTS: Final = 100_000
"""Documents that a retry requests from its sources by id: the ids travel with each task. If more are pending, a source
lists all; one whose listing may not have them gets their ids, so many at a time."""

COMMAND_DELIVERIES: Final = 50_000
"""Approximate number of deliveries that an operator's command puts into one wave: one of 3 KB each is in the driver's
memory."""

DIFFERENCES: Final = 200_000
"""Differences of a target that ``verify`` lists and repairs at once, some 100 MB in memory; it counts them all."""

FINGERPRINT_TRUST_S: Final = 2.0
"""Age below which a file is read although it looks unchanged: it may change again within one tick of its clock."""

DRIVE_TRUST_S: Final = 60.0
"""Age below which a file of another machine is read, whose clock may be behind ours by nearly as much, and whose times
may be whole seconds."""

SMALL_LISTING_PARTS: Final = 64
"""Folders into which a listing is split at most: enough to keep executors busy, few enough to walk in the driver."""

GUARDED_DOCUMENTS: Final = 100
"""Known documents in a first-level folder from which on ``max_deleted`` applies to it separately: a few may well be
deleted at once."""

DELETION_CHECKS: Final = 10_000
DELETION_CHECKS_PER_FOLDER: Final = 32
"""Documents of a source, and of one of its folders, whose absence the driver checks before they are deleted, one lookup
each: a machine that does not see a folder misses everything in it."""

DELETION_CHECKS_IN_STORE: Final = 200
"""Lower limit of such checks where fsspec is used: each is a request."""

FOLDER_CHECKS: Final = 1000
"""Folders of one piece of a listing that the driver checks again, one lookup each: an unmounted share shows in the
first. There may be many empty folders; documents known in them are checked before they are deleted."""

# --- steps and delivering -------------------------------------------------------------------------
ATTEMPTS: Final = 3
"""Attempts of a delivery before it is DEAD."""

BRAKE: Final = 20
"""Number of documents failing in a row that blames the step or the source itself: fewer may well be odd documents."""

REACHED_FACTS: Final = 2_000
"""Functions and values, reached from a node's function, of which a change is noticed: a plan's own code has fewer."""

REACHED_PLAIN_VALUES: Final = 200_000
"""Elements of a list, dict or set of texts and numbers that count, to read it within milliseconds; of a longer one its
beginning and its length."""

REACHED_VALUES: Final = 5_000
"""Elements of other constants that count: each takes some microseconds."""

REACHED_DEPTH: Final = 40
"""Levels of a constant that count, far from Python's limit on recursion."""

REACHED_BYTES: Final = 4 * MIB
"""Bytes of a piece of a file, or of an array, that a node depends on: a start reads them."""

OUTAGE_DOCUMENTS: Final = 3
"""New documents in a row, also over several waves, that must meet connection errors at a node that has worked in this
run before it counts as unavailable. One or two may have a dead address of their own."""

BRAKE_BATCHES: Final = 3
"""Batches of a queue that must fail before a step is stopped: one or two may contain nothing but bad files."""

PATIENCE_S: Final = 86_400.0
PATIENCE_TRIES: Final = 8
"""Time and least number of tries for errors that are transient by declaration: a service is fixed within a day, and a
run that is started once a day must not count as one try."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_FACTOR: Final = 4.0
BACKOFF_MAX_S: Final = 3600.0
"""Backoff before attempt n+1: full jitter over 1 s × 4ⁿ, at most an hour (an operator's attention span)."""

RETRY_AFTER_MAX_S: Final = 86400.0
"""Longest wait (seconds) that a source is granted which says when it may be asked again: quotas are often of a day."""

BATCH_ROWS: Final = 500
"""Rows of a chunk: what search engines' own bulk helpers send by default."""

BATCH_BYTES: Final = 5 * MIB
"""Bytes of a chunk: far below the 100 MB that search engines refuse, large enough to hide a round trip."""

HELD_CHILDREN: Final = 10_000
"""Documents of one call of a step that are held before they are processed further; more are processed as they are
returned, and taken back if the call fails after all. (``GROUP_BYTES`` of content count as much.)"""

WAITING_MEMBERS: Final = 50_000
"""Members of one family that may each wait for a node by itself: 1 KB each. With more, the family waits as a whole."""

BLAMED_BYTES: Final = MIB
"""Size below which a document is not blamed for a lack of memory: the limit is too small for anything."""

DEATHS: Final = 3
"""How often a task's worker may die in isolation mode too (killed from outside, with its child) before the run ends."""

COMPARED_PENDING_ROWS: Final = 4_000_000
"""Pending rows of a destination that are compared at once to find those of one document: 8 bytes each, twice, and 50
bytes, a few times over, of each row whose document has several."""

SAME_ERROR_CHUNKS: Final = 5
SAME_ERROR_ROWS: Final = 1000
"""Chunks in a row, and rows, that a destination must refuse entirely with the same words to count as failing itself: a
wrong index, a full disk. Fewer may well be due to the documents."""

RESULT_EVERY_S: Final = 1.0
"""Longest time between durable results: what a kill may send again where that is allowed."""

DOUBTED_SENDS: Final = 32
"""Sends in a row that may fail, in smaller and smaller chunks, until a destination counts as failing itself although
its ``check`` succeeds: a single row among a thousand is alone after eleven, among half a million after twenty."""

HUNG_SHRINK: Final = 8
"""Factor by which chunks become smaller after each one that hung: a hang takes a minute, so halving is too slow."""

PACE_S: Final = 60.0
"""Time a destination gets in a wave. The rest stays pending, and the next wave continues."""

SEND_TIMEOUT_S: Final = 60.0
"""Time after which a call of a destination is given up, unless its ``send_timeout=`` says otherwise."""

SEND_TIMEOUT_MAX_S: Final = 600.0
"""Longest ``send_timeout=``: a wave ends when the slowest of its destinations has, so this bounds the cost to all
others of one that hangs (ten times the pace)."""

UNLISTED_RETRY_S: Final = 60.0
"""Interval at which documents due for a retry that no source lists are searched: each search is a scan, and a file or
job that reappears is seldom urgent."""

WAIT_S: Final = 60.0
"""Time within which rows must become due for `run` to wait for them."""

STEP_TIMEOUT_S: Final = 120.0
"""Timeout of a call of a ready-made step whose time does not follow from what it reads: parsers, patterns, servers."""

ARROW_ROWS: Final = 1024
"""Documents in a record batch of a step with ``arrow=True``, unless its ``batch=`` says otherwise."""

CONCURRENCY_MAX: Final = 1000
"""Concurrent calls of a step in one task: each takes a thread."""

IN_FLIGHT: Final = 4096
IN_FLIGHT_BYTES: Final = TASK_BYTES
"""Documents of a task, and their bytes, in progress at once for steps that take batches or wait."""

HUNG_CALLS: Final = 100
"""Hung calls after which a worker's process is ended: each keeps its thread."""

FETCH_TIMEOUT_S: Final = 30.0
"""Timeout of a fetch of a URL: a server that needs longer is better asked again later."""

FETCH_REDIRECTS: Final = 5
"""Redirects a fetch follows: what HTTP once named as the most that is sensible (RFC 2068, 10.3)."""

REREAD_MIN_S: Final = 1.0
"""Least time before a document that asks to be read again is read: a scan that finds it due each time would never
end."""

REREAD_MAX_S: Final = 100 * 366 * 86_400.0
"""Longest time after which a document may ask to be read again: a longer one was written by mistake."""

# --- notifications --------------------------------------------------------------------------------
NOTIFY_TIMEOUT_S: Final = 30.0
NOTIFY_TIMEOUT_MAX_S: Final = 300.0
"""Default and longest timeout of a digest: the run waits for it."""

NOTIFY_EVERY_S: Final = 60.0
"""Least interval between notifications of an endless run without periods: a folder of bad files is one mail, not a
hundred."""

NOTIFY_GRACE_S: Final = 5.0
"""Extra time for a sender that does not end by itself after its timeout; then it is abandoned."""

NOTIFY_EXAMPLES: Final = 10
"""Documents a digest names, so that the mail is read; ``deliveries`` has them all."""

NOTIFY_REASON_CHARACTERS: Final = 500
"""Characters of a reason that are shown."""

NOTIFY_TARGETS: Final = 50
"""Targets for which a state remembers what was sent; the oldest are forgotten."""

# --- mirrors of the ledger --------------------------------------------------------------------------

MIRROR_EVENTS: Final = 100_000
"""Events that a mirror sends before it records how far it is; a larger wave is sent as a whole."""

MIRROR_ROWS: Final = 2000
"""Rows that a mirror has in memory at a time, beside those of a query."""

MIRROR_END_S: Final = 10.0
"""Longest time that a run which has ended leaves a mirror that gets on; the next run does the rest."""

MIRROR_PACE: Final = 4
"""Multiple of the time of a pass for which a mirror pauses before the next one: it takes little from its run."""

MIRROR_RETRY_S: Final = 1.0
MIRROR_RETRY_MAX_S: Final = 300.0
"""First and longest pause before a mirror that failed is tried again."""

MIRROR_MESSAGES: Final = 20
"""Different messages of a mirror that a run prints."""

# --- reading documents ----------------------------------------------------------------------------
EXTRACT_TEXT_BYTES: Final = 64 * MIB
"""Text extracted from a document: a hundred thick books, and less than a worker's memory."""

EXTRACT_UNPACKED_BYTES: Final = GIB
"""Unpacked size of a zipped document, including pictures, which are not unpacked: more is a bomb."""

EXTRACT_PART_BYTES: Final = 64 * MIB
"""XML of one part of a zipped document: as a tree it takes some ten times as much memory."""

EXTRACT_CELLS: Final = 20_000_000
"""Cells of a sheet's grid: 32 bytes each in the reader, used or not."""

EXTRACT_EMPTY_CELLS: Final = 1_000_000
"""Cells of a sheet's grid that may be empty, some 32 MB; a grid of more has no more cells than its sheet has bytes, or
its cells move together."""

EXTRACT_PAGES: Final = 50_000
"""Pages of a PDF: the longest that people make are a tenth of it, and a page tree may run in circles."""

EXTRACT_DEPTH: Final = 3
"""Depth to which mails attached to mails are read."""

EXTRACT_SAMPLE_BYTES: Final = 64 * KIB
"""Bytes of a text from which its encoding is guessed; its language is guessed from the first part of them."""

EXTRACT_LANGUAGE_LETTERS: Final = 40
"""Letters below which the language cannot be determined."""

UNPACK_MEMBERS: Final = 10_000
"""Members of an archive: the children of one document are in memory at once."""

UNPACK_BYTES: Final = 256 * MIB
"""Unpacked size of an archive, as much as a file may have (MAX_FILE_BYTES)."""

UNPACK_FILES: Final = 100_000
"""Members of a container that is unpacked to files: a kilobyte of each one's metadata is in memory."""

UNPACK_FILES_BYTES: Final = 64 * GIB
"""Unpacked size of such a container: as much as one file that is fetched."""

UNPACK_RATIO: Final = 200
"""Unpacked bytes a packed byte: text has 10, logs 50; a bomb 1000."""

UNPACK_FREE_BYTES: Final = MIB
"""Size up to which the ratio is not checked: a megabyte of zeros harms nobody."""

SPLIT_SIZE: Final = {"characters": 1000, "tokens": 256, "paragraphs": 1, "sentences": 1, "headings": 1}
"""Default size of one part of a text: the input size of embedding models, else the smallest unit."""

EMBED_CHARACTERS: Final = 32_768
"""Longest text that becomes one vector: some 8192 tokens, the most that common embedding models take."""

# --- questions -----------------------------------------------------------------------------------
QUESTION_WORDS: Final = 64
"""Words of a question that are also looked up by words: no other document has all words of a longer text, and
databases refuse queries of thousands."""

# --- answers to assistants -----------------------------------------------------------------------
ASSISTANT_HITS: Final = 100
"""Hits of a search: a model reads all of them, and its window is small."""

ASSISTANT_EVENTS: Final = 1000
"""Events of a document."""

ASSISTANT_SNIPPET: Final = 2000
"""Characters of a hit's text: a chunk is shorter."""

ASSISTANT_TEXT: Final = 20_000
"""Characters of a document that are read at once: some 5000 tokens."""

# --- state ----------------------------------------------------------------------------------------
FORMAT: Final = 2
"""Format of the state directory. A newer one is refused."""

PART_BYTES: Final = 64 * MIB
"""Content after which a state file closes: it is rewritten whole, and one lane sends it."""

GROUP_BYTES: Final = 16 * MIB
"""Content of a row group: what a reader of a state file holds at once. Only a larger row makes a larger one."""

MERGED_EVENTS: Final = 16_384
"""Events, some 300 bytes each, that a merge of small files of the ledger puts in order at once."""

APART_EVENTS: Final = 4_096
"""Events of one status among others from which on they have row groups of their own in a file of the ledger."""

BOOKMARK_BYTES: Final = MIB
"""Largest bookmark of a source's partition, encoded as JSON."""

MAX_DELETED_BEHIND_LOGIN: Final = 0.1
"""``MAX_DELETED`` of sources that need a login: one that has expired shows less, not nothing."""

GIT_TIMEOUT_S: Final = 3600.0
"""Timeout of one git command: the first fetch of a large repository."""

MAIN_TEXT_TIMEOUT_S: Final = 30.0
MAIN_TEXT_MEMORY_BYTES: Final = GIB
"""Time and memory for finding the main text of a page: one of 10 MB takes some seconds and 500 MB."""

IMAP_TIMEOUT_S: Final = 180.0
"""Time that an IMAP server may take to connect, and to send the next bytes: one that reads a large folder for the first
time is silent for minutes."""

SITE_BUDGET: Final = 10_000
"""Pages of a host that one scan asks for: half an hour at 5 a second, which is what a kill may cost."""

SITE_DEPTH: Final = 20
"""Links that lead to a page, one after the other: a calendar without end has no deeper pages than this."""

SITE_PAGES: Final = 100_000
"""Pages of a host: what is remembered of them takes some 10 MB."""

SITE_PATTERN_PAGES: Final = 5000
"""Pages of one pattern that links lead to: more are a calendar, or a search that is linked to."""

SITE_PAGE_BYTES: Final = 64 * MIB
"""Largest page or file of a site."""

MAX_CONTENT_BYTES: Final = 2000 * MIB
"""Fields, or raw bytes, of one delivery: a page of a data file is compressed whole, and lz4 takes 2016 MiB at most."""

MESSAGE_CHARACTERS: Final = 4000
"""Characters kept of an error message, or of what is reported about a document: a million documents may fail with a web
server's page each, and all of it is kept in the ledger. The middle is left out."""

TRACE_CHARACTERS: Final = 4000
"""Last characters kept of a traceback, where the error is."""

NESTED: Final = 200
"""Levels of lists and dicts in a document's fields, themselves the first: copying them takes two frames a level, and
Python gives up at 1000, some of which callers need. Parsers of other programs give up earlier."""

COMPACT_FILES: Final = 32
"""Tiny files a table may gather before they are merged into one."""

OUTDATED_SHARE: Final = 0.5
"""Share of ``documents`` rows superseded by newer ones from which on they are dropped: each row is copied about once
for each one that is added."""

OUTDATED_BYTES: Final = GIB
"""Content of files from which outdated rows are dropped after one wave: about ten seconds. The rest follows after the
next."""

CHECKPOINT_COMMITS: Final = 32
"""Commits a table's log may gather before it is checkpointed and trimmed (a load costs about 0.2 ms a commit)."""

QUERY_MEMORY: Final = "128MB"
"""Memory of state queries before they spill to disk."""

QUERY_THREADS: Final = 2
"""DuckDB holds some 60 MB a thread that it cannot spill: on a machine of 64 cores ``QUERY_MEMORY`` would not do."""

COUNTED_EVENTS: Final = 500_000
"""Number of events from which on a run stores the counts that ``status`` shows. As many are counted in a second,
which a run then takes longer."""

SNAPSHOT_SHARE: Final = 4
"""Divisor of the rows of a snapshot that counts begin with: once there are so many newer events, the next one is
written. A row is written about five times while a state doubles, and counting reads at most a quarter more than it has
to."""

COUNTING_SHARE: Final = 20
"""Divisor of an endless run's time: at most this part of it is spent on counting."""

RUNS_KEPT: Final = 100
"""Runs that a state remembers: three months of one a day, in 20 kB."""

RUN_RECORD_S: Final = 60.0
"""Time between two records of an endless run: each is a synced write."""

METRICS_SHARE: Final = 100
"""Divisor of a run's time: at most this part of it is spent on computing metrics."""

METRICS_EVERY_S: Final = 15.0
"""Time between two computations of metrics, at least: what Prometheus waits by default between two looks."""

MONITORING_QUEUE: Final = 4096
"""Spans or events that wait to be sent; more are dropped, which is said once."""

MONITORING_END_S: Final = 2.0
"""Time that a run's end waits for servers and files of its metrics, spans and lineage events, all together."""

METRICS_COUNT_S: Final = 10.0
"""Time that a run's end waits while its state is counted for the last metrics: 2 s for a million events, more on a busy
machine."""

MONITORING_SEND_S: Final = 10.0
"""Time for one request to a lineage server or collector."""

LINEAGE_EVERY_S: Final = 30.0
"""Time between two RUNNING events of a run."""

LINEAGE_CODE_CHARACTERS: Final = 100_000
"""Characters of the steps' code in a lineage event."""

CHUNK_SPANS: Final = 512
"""Chunks of a lane and pass that have spans: more would not be looked at one by one."""

VERIFY_SAMPLE: Final = 100
"""Documents of a target that an endless run verifies at a time: few enough for one request."""

VERIFY_SAMPLE_S: Final = 3600.0
"""Time between two samples that an endless run verifies, at least."""

VERIFY_SAMPLE_SHARE: Final = 100
"""Divisor of an endless run's time: at most this part of it is spent on verifying samples."""

QUERY_ROWS: Final = 50_000
"""Rows of the ledger that a query reads at a time where all of them would not fit into ``QUERY_MEMORY``."""

SELECTED_FROM: Final = 200_000
"""Events of a ledger from which on a query for some of them looks for these, and reads no others. Less are read whole
in a fifth of a second."""

SELECTED_EVENTS: Final = 200_000
"""Events that such a query may need; more are found sooner by reading everything once."""

READERS_GRACE_S: Final = 300.0
"""Time that replaced files are kept while somebody reads the state: queries take seconds, and a gapless sequence of
readers must not keep files that they do not need."""

TEMPORARY_S: Final = 3600.0
"""Age from which a half-written file of a command or the journal is abandoned: writing takes moments."""

SEQUENCE_MAX: Final = 1 << 52
"""Bound on the sequence that a destination reports (reached in the year 2106): JSON keeps 2⁵³."""

SEQUENCE_PER_SECOND: Final = 1 << 20
"""Sequences per second: a fresh state's first sequence is its creation time in seconds times this, so that it
overwrites what a lost state wrote."""

# --- queues ---------------------------------------------------------------------------------------
QUEUE_MESSAGE_BYTES: Final = 256 * MIB
"""Largest message, as large as a document of ``Files``: all of it is in memory, a few times over."""

QUEUE_NESTED: Final = 100
"""Levels of a message: Python reads back some hundreds, fewer if called from deep down. Fewer than fields may have: an
error message contains them some levels down."""

QUEUE_FILES: Final = 32
"""Neighbouring files of one level that are merged into one: each message is copied about four times in ten million."""

QUEUE_COMMITS: Final = 64
"""Commits in a queue's log before it is folded: folding takes 10 ms, reading one commit 0.05 ms."""

QUEUE_GROUP_ROWS: Final = 8192
"""Messages of a row group: what reading one of them reads at most."""

QUEUE_AHEAD_ROWS: Final = 1024
QUEUE_AHEAD_BYTES: Final = 4 * MIB
"""Messages, and their bytes, that a tailer reads ahead."""

QUEUE_BACK_ROWS: Final = 64
"""Messages that a tailer reads ahead backward: all of these are read, however large."""

QUEUE_TURN_S: Final = 5.0
"""Time an append waits for the lock before it continues without: its holder may have been stopped."""

QUEUE_READER_S: Final = 30.0
"""Time that moving a reader waits for another process that uses it, before the holder is reported: reading many
messages takes seconds."""

QUEUE_POLL_S: Final = 0.01
QUEUE_POLL_MAX_S: Final = 0.05
"""Interval at which a waiting tailer looks for new messages: a look takes 0.1 ms."""

QUEUE_POLL_STORE_S: Final = 1.0
"""Such an interval for an object store, where a look is a few requests."""

READER_CHARACTERS: Final = 110
"""Characters of plan and source in the name by which a queue knows a plan, before the part that identifies the
state."""

QUEUE_STRAY_S: Final = 86_400.0
"""Age from which a data file that no entry names is removed: it may be one that is about to be appended, which takes
nobody a day."""

# --- state by key ---------------------------------------------------------------------------------
KEY_BYTES: Final = 256 * KIB
"""Longest key: keys are compared and kept in memory by the thousand."""

KEY_BUCKETS: Final = 32
KEY_BUCKETS_MAX: Final = 4096
"""Ranges of keys that tasks work on, by default and at most; with more, scheduling tasks takes longer than running
them."""

KEY_BUFFER_BYTES: Final = MIB
"""Bytes of documents that one call of an ``update`` gets."""

KEY_LANES: Final = 4
"""Ranges of keys whose exports are processed independently: an export that has to wait holds up those of its range."""

KEY_MERGE_INPUT_BYTES: Final = 2 * MIB
KEY_MERGE_INPUT_ROWS: Final = 16_384
"""Rows and bytes in memory of each of the sorted files that a task merges."""

KEY_MERGE_BYTES: Final = 64 * MIB
"""Bytes in memory, a few times over, of all sorted files that a task merges together: a backlog has hundreds."""

KEY_TASK_BYTES: Final = 64 * MIB
"""Bytes of documents that are worth a task of their own."""


# --- durations and rates as people write them: ``90s``, ``15m``, ``2h``, ``1d``; ``100/s``, ``6000/m`` ---

UNITS_S: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Parse ``60``, ``60s``, ``1.5m``, ``2h``, ``1d``, ``500ms`` to seconds.

    Raises:
        ValueError: not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r}: give seconds, or a number with ms, s, m, h or d: 60, 60s, 2m, 1d")
    return float(match[1]) * UNITS_S[match[2]]


def per_second(rate: object) -> float:
    """Parse ``100``, ``100/s``, ``6000/m``, ``6000/min``, ``50/h`` to a number per second, above 0.

    Raises:
        ValueError: not a rate.
    """
    count, slash, unit = str(rate).replace(" ", "").lower().partition("/")
    unit = {"sec": "s", "min": "m", "hour": "h", "day": "d"}.get(unit, unit)
    is_number = re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", count) is not None
    is_known_unit = unit in ("s", "m", "h", "d") if slash else not isinstance(rate, bool)
    if not is_number or not is_known_unit or not float(count):
        raise ValueError(f"{rate!r}: give a number a second, or text as in '100/s', '600/m', '50/h'")
    return float(count) / UNITS_S[unit]


def format_count(number: float) -> str:
    """Format a whole number for reading, its digits in groups of three: ``1 200``."""
    return f"{int(number):,}".replace(",", " ")


def plural(number: float, one: str, many: str) -> str:
    """Format a number with its noun: ``1 delivery``, ``1 200 deliveries``."""
    return f"{format_count(number)} {one if number == 1 else many}"
