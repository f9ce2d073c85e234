"""Payloads that Java serialized (Java 17, `ObjectOutputStream.writeObject`), and what is made of them."""

from __future__ import annotations

import random
import struct

import pytest

from ferryman.errors import UsageError
from ferryman.intake import JobQueue
from ferryman.intake.legacy import (
    CHARACTERS_MAX,
    RECORD_BYTES_MAX,
    import_legacy,
    parse_record,
    read_serialized_properties,
    to_job_nodes,
)

PLAIN = bytes.fromhex(
    "aced0005737200146a6176612e7574696c2e50726f706572746965733912d07a70363e980200014c000864656661756c74737400164c"
    "6a6176612f7574696c2f50726f706572746965733b787200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b80300"
    "0246000a6c6f6164466163746f724900097468726573686f6c6478703f4000000000000877080000000b00000006740005656d707479"
    "7400007400057469746c6574000f636166c3a920eda0bdedb39a20c08074000762617463684944740003622d3174000770726f66696c"
    "657400026d657400097375626d697474657271007e000b7400056a6f6249447400036a2d357870"
)
DEFAULTS = bytes.fromhex(
    "aced0005737200146a6176612e7574696c2e50726f706572746965733912d07a70363e980200014c000864656661756c74737400164c"
    "6a6176612f7574696c2f50726f706572746965733b787200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b80300"
    "0246000a6c6f6164466163746f724900097468726573686f6c6478703f40000000000002770800000003000000017400056a6f624944"
    "7400036a2d36787371007e00003f4000000000000877080000000b00000006740005656d7074797400007400057469746c6574000f63"
    "6166c3a920eda0bdedb39a20c08074000762617463684944740003622d3174000770726f66696c657400026d657400097375626d6974"
    "74657271007e000e71007e00047400036a2d357870"
)
SHARED = bytes.fromhex(
    "aced0005737200146a6176612e7574696c2e50726f706572746965733912d07a70363e980200014c000864656661756c74737400164c"
    "6a6176612f7574696c2f50726f706572746965733b787200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b80300"
    "0246000a6c6f6164466163746f724900097468726573686f6c6478703f400000000000057708000000070000000374000473616d6574"
    "0001637400016271007e00047400016171007e00047870"
)
INTEGER = bytes.fromhex(
    "aced0005737200146a6176612e7574696c2e50726f706572746965733912d07a70363e980200014c000864656661756c74737400164c"
    "6a6176612f7574696c2f50726f706572746965733b787200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b80300"
    "0246000a6c6f6164466163746f724900097468726573686f6c6478703f40000000000002770800000003000000017400016e73720011"
    "6a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c7565787200106a6176612e6c616e672e4e756d62"
    "657286ac951d0b94e08b0200007870000000057870"
)
HASHMAP = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f724900097468"
    "726573686f6c6478703f4000000000000c77080000001000000001740001617400016278"
)

INGEST = bytes.fromhex(
    "aced0005737200146a6176612e7574696c2e50726f706572746965733912d07a70363e980200014c000864656661756c74737400164c6a"
    "6176612f7574696c2f50726f706572746965733b787200136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b803000246"
    "000a6c6f6164466163746f724900097468726573686f6c6478703f4000000000001477080000001b000000127400086f626a6563744944"
    "74000d61726b3a2f31333033302f6d3574000866696c656e616d6574000b6c6574746572732e7a697074000872657461696e6564737200"
    "116a6176612e6c616e672e426f6f6c65616ecd207280d59cfaee0200015a000576616c756578700174000b64696765737456616c756574"
    "002039613033363462396539396262343830646432356531663032383463383535357400056a6f6249447400056a69642d387400076c6f"
    "63616c494474000c6d61702d313b206d61702d327400057469746c657400074c65747465727374000474797065740009636f6e7461696e"
    "6572740007626174636849447400056269642d377400067570646174657371007e00090074000c726573706f6e7365466f726d74000378"
    "6d6c74000770726f66696c6574000f6d6572726974745f636f6e74656e7474000a646967657374547970657400034d4435740007637265"
    "61746f72740007446f652c204a2e7400046e6f74657400016e7400097375626d6974746572740011416e6e612f416e6e61204578616d70"
    "6c6574000d71756575655072696f72697479740002323074000464617465740004313930317870"
)
"""What ingest submitted (its names, and a Boolean for ``update``), with one more Boolean."""

OWN = {
    "batchID": "b-1",
    "jobID": "j-5",
    "submitter": "me",
    "profile": "me",
    "title": "caf\u00e9 \U0001f4da \0",
    "empty": "",
}
HEAD = struct.pack(">Bq", 0, 1_700_000_000)
NAME = "mrtQ-021200000001"


def text(value: bytes) -> bytes:
    return b"t" + struct.pack(">H", len(value)) + value


def holding(pairs: int, entries: bytes, tail: bytes = b"xp") -> bytes:
    """A stream whose entries are these bytes."""
    start = PLAIN.index(b"w\x08")
    return PLAIN[:start] + b"w\x08" + struct.pack(">ii", 11, pairs) + entries + tail


@pytest.mark.rule("intake.legacy")
def test_serialized_properties_become_a_job() -> None:
    """Under inventory's shorter name too; without a file, it is a Failed job."""
    queue = JobQueue.open("memory:")
    done = import_legacy(queue, [(NAME, HEAD + PLAIN)])
    ((_, job_id),) = done.jobs
    job = queue.load_job(job_id)
    expected = {"profile_name" if key == "profile" else key: value for key, value in OWN.items() if key != "title"}
    expected["legacy_record"] = NAME
    assert job.metadata == {"erc_what": OWN["title"]}
    assert (job.priority, job.status, job.configuration) == (2, "Failed", expected)
    assert queue.audit() == []


def test_what_java_writes_is_read() -> None:
    """Defaults, shared texts, texts beyond 64 KiB."""
    assert read_serialized_properties(PLAIN) == OWN
    assert read_serialized_properties(DEFAULTS) == {**OWN, "jobID": "j-6"}
    assert read_serialized_properties(SHARED) == {"a": "same", "b": "same", "same": "c"}
    long = b"|" + struct.pack(">Q", 70_000) + b"x" * 70_000
    assert read_serialized_properties(holding(1, text(b"long") + long)) == {"long": "x" * 70_000}
    assert read_serialized_properties(PLAIN + b"\0\0") == OWN


@pytest.mark.rule("intake.legacy")
def test_names_of_ingest_become_ours() -> None:
    """Of the configuration, identifiers and metadata, and of the batch; what has no name of ours keeps its own."""
    queue = JobQueue.open("memory:")
    done = import_legacy(queue, [(NAME, HEAD + INGEST)])
    ((_, job_id),) = done.jobs
    job = queue.load_job(job_id)
    assert job.configuration == {
        "batchID": "bid-7", "jobID": "jid-8", "profile_name": "merritt_content", "payload_type": "container",
        "payload_file_name": "letters.zip", "submitter": "Anna/Anna Example", "response_type": "xml",
        "digest": "md5:9a0364b9e99bb480dd25e1f0284c8555", "primary_id": "ark:/13030/m5", "local_id": "map-1; map-2",
        "queuePriority": "20", "note": "n", "update": "false", "retained": "true", "legacy_record": NAME,
    }  # fmt: skip
    assert job.identifiers == {"primary_id": "ark:/13030/m5", "local_id": ["map-1", "map-2"]}
    assert job.metadata == {"erc_who": "Doe, J.", "erc_what": "Letters", "erc_when": "1901"}
    batch = queue.load_batch(job.batch_id)
    kept = {key: batch.submission[key] for key in ("batchID", "submitter", "profile_name")}
    assert kept == {"batchID": "bid-7", "submitter": "Anna/Anna Example", "profile_name": "merritt_content"}
    assert queue.audit() == []


def test_our_names_count_where_both_are_given() -> None:
    """And nothing is lost; a value that nobody gave is none."""
    both = {"profile": "old", "profile_name": "new", "digestType": "SHA-256", "digestValue": "AB", "date": "(:unas)"}
    assert to_job_nodes(both) == ({"profile": "old", "profile_name": "new", "digest": "sha256:ab"}, {}, {})
    assert to_job_nodes({"digest": "md5:1", "digestType": "MD5"}).configuration == {
        "digest": "md5:1",
        "digestType": "MD5",
    }
    assert to_job_nodes({"local_id": ["a"], "localID": "b", "primary_id": "p"}).identifiers == {
        "primary_id": "p",
        "local_id": ["a"],
    }


def nested(levels: int) -> bytes:
    """Properties whose defaults have defaults, so deep: each level a reference to the class, and nothing in it."""
    level = b"sq\x00\x7e\x00\x00" + bytes(8) + b"w\x08" + bytes(8) + b"x"
    return holding(0, b"", b"x" + level * levels + b"p")


REFUSED = {
    "another class": (HASHMAP, "java.util.Properties"),
    "a number": (INTEGER, "not text"),
    "cut off": (PLAIN[:-9], "ends too early"),
    "two objects": (PLAIN + PLAIN[4:], "more than one object"),
    "announces billions of entries": (holding(2**31 - 1, b""), "more than fit"),
    "announces fewer than none": (holding(-1, b""), "more than fit"),
    "announces an endless text": (holding(1, b"|" + b"\xff" * 8 + b"abcdefgh"), "ends too early"),
    "refers to what is not there": (holding(1, b"q\x00\x7e\xff\xff" + text(b"a")), "not there"),
    "refers to a class": (holding(1, b"q\x00\x7e\x00\x00" + text(b"a")), "not text"),
    "not UTF-8": (holding(1, text(b"\xff\xff") + text(b"a")), "UTF-8"),
    "defaults without end": (nested(10_000), "levels of defaults"),
    "one text many times": (holding(40, text(b"x" * 60_000) + b"q\x00\x7e\x00\x04" * 79), f"{CHARACTERS_MAX}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused(case: str) -> None:
    """With the reason, and the record's name."""
    data, why = REFUSED[case]
    with pytest.raises(UsageError, match=f"{NAME}: .*{why}"):
        parse_record(NAME, HEAD + data[:RECORD_BYTES_MAX])


def test_a_record_larger_than_a_node_is_refused() -> None:
    """No server kept it."""
    with pytest.raises(UsageError, match="too many"):
        parse_record(NAME, HEAD + b"x" * RECORD_BYTES_MAX)


def mutated(random_: random.Random) -> bytes:
    """One of Java's streams with some bytes changed, cut out or doubled."""
    data = bytearray(random_.choice([PLAIN, DEFAULTS, SHARED, INTEGER, INGEST]))
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(random_.choice((4, 152, 152)), len(data))  # more often behind the names of classes
        match random_.randrange(4):
            case 0:
                data[at] = random_.randrange(256)
            case 1:
                del data[at : at + random_.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + random_.randint(1, 40)]
            case _:
                data[at : at + 4] = random_.choice(
                    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x00\x7e\x00\x00"]
                )
        if len(data) < 160:
            break
    return bytes(data)


def test_mutated_streams_end_in_a_reason() -> None:
    """Text comes out, or a ValueError: nothing else, and little memory."""
    import tracemalloc

    random_ = random.Random(15)
    tracemalloc.start()
    read = 0
    for _ in range(5000):
        try:
            found = read_serialized_properties(mutated(random_))
        except ValueError:
            continue
        read += 1
        assert all(isinstance(each, str) for pair in found.items() for each in pair)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 50 < read < 4500
    assert peak < 1 << 20
