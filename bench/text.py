"""Text out of the files of ``tests.steps.corpus.producers``, beside Apache Tika, unstructured and markitdown.

Of each file: the characters that a person sees and that were found, were lost, and others that were invented; seconds;
by how much the process grew. Words count by their letters and digits, wherever they stand, so that marks of Markdown,
bullets and blanks make no difference; what fields have (a mail's subject) is neither wanted nor wrong. The table goes
into docs/reference/text.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from tests.steps.corpus import producers

from bench import environment
from bench.harness import ROOT, Row, Sizes, empty_folder, print_progress

PAGE: Final = ROOT / "docs" / "reference" / "text.md"
BEGIN, END = "<!-- bench: text -->", "<!-- bench end -->"

TIKA: Final = "3.3.1"
_DEPENDENCIES: Final = """\
    <dependency>
      <groupId>org.apache.tika</groupId><artifactId>tika-core</artifactId><version>{tika}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.tika</groupId><artifactId>tika-parsers-standard-package</artifactId><version>{tika}</version>
      <!-- Its licence is not open; it reads rar archives. -->
      <exclusions><exclusion><groupId>com.github.junrar</groupId><artifactId>junrar</artifactId></exclusion></exclusions>
    </dependency>
"""

_LEAST_MB: Final = 0.05


class Read(NamedTuple):
    """What a program made of a file, in characters, seconds and MB."""

    found: int
    lost: int
    invented: int
    seconds: float
    mb: float
    error: str

    @property
    def is_right(self) -> bool:
        return not self.lost and not self.invented

    def cell(self) -> str:
        if self.error:
            return "not read"
        wrong = ", ".join(
            f"{count} {name}" for count, name in ((self.lost, "lost"), (self.invented, "invented")) if count
        )
        memory = f", {self.mb:.1f} MB" if self.mb >= _LEAST_MB else ""
        return f"{self.found} found{', ' + wrong if wrong else ''}; {self.seconds * 1000:.0f} ms{memory}"


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Read all files with each program; yield a row for each other program."""
    samples = producers.samples()
    files = empty_folder(folder / "text")
    for sample in samples:
        (files / sample.name).write_bytes(sample.raw)
    other = environment.python(environment.TEXT_PINS)
    script = str(ROOT / "bench" / "peers" / "read_text.py")
    commands = {
        "Ferryman": [sys.executable, script, "ferryman", str(files)],
        "Tika": [sys.executable, str(ROOT / "bench" / "peers" / "tika_text.py"), str(files), *_tika_jars()],
        "unstructured": [str(other), script, "unstructured", str(files)],
        "markitdown": [str(other), script, "markitdown", str(files)],
    }
    results = {name: dict(_read(command, samples)) for name, command in commands.items()}
    _write_page(samples, results)
    ours = results.pop("Ferryman")
    for name, theirs in results.items():
        worse = [n for n in ours if _wrong(ours[n]) > _wrong(theirs[n])]
        yield Row(
            f"text of {len(samples)} files", _sum_up(ours), f"{name}: {_sum_up(theirs)}", "", "never worse", not worse,
            f"worse: {', '.join(worse)}" if worse else "",
        )  # fmt: skip


def _wrong(read: Read) -> int:
    return read.lost + read.invented


def _sum_up(reads: dict[str, Read]) -> str:
    right, wrong = sum(each.is_right for each in reads.values()), sum(map(_wrong, reads.values()))
    seconds = sum(each.seconds for each in reads.values())
    return f"{right} right, {wrong} characters wrong, {seconds:.2f} s"


def _read(command: Sequence[str], samples: Sequence[producers.Sample]) -> Iterator[tuple[str, Read]]:
    """Yield name -> result of each file; of files that the program did not come to, that it read nothing."""
    print_progress(f"    {' '.join(Path(part).name for part in command[:3])}")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environ, cwd=ROOT, check=False, text=True)
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    by_name = {line["name"]: line for line in lines}
    for sample in samples:
        line = by_name.get(sample.name, {"text": "", "error": "its process ended", "seconds": 0.0, "mb": 0.0})
        yield sample.name, Read(*compare(sample, line["text"]), line["seconds"], line["mb"], line["error"])


def compare(sample: producers.Sample, text: str) -> tuple[int, int, int]:
    """Return the characters found, lost and invented."""
    wanted, seen, allowed = _words(sample.text), _words(text), _words(sample.head)
    found = wanted & seen
    return _characters(found), _characters(wanted - seen), _characters(seen - wanted - allowed)


def _words(text: str) -> Counter[str]:
    """Return letters and digits, by word; of scripts without blanks each letter is a word."""
    return Counter(re.findall(r"[\u3040-\u9fff]|[^\W_\u3040-\u9fff]+", text))


def _characters(words: Counter[str]) -> int:
    return sum(len(word) * count for word, count in words.items())


def _tika_jars() -> list[str]:
    """Return the jars of Tika, from Maven, and py4j's."""
    spark = Path(pyspark.__file__).parent / "jars"
    jars = environment.jars(f"tika-{TIKA}", _DEPENDENCIES.format(tika=TIKA))
    return [*map(str, jars), *map(str, spark.glob("py4j-*.jar"))]


def _write_page(samples: Sequence[producers.Sample], results: dict[str, dict[str, Read]]) -> None:
    """Put the table between its marks in the page."""
    names = list(results)
    lines = [f"| file | written by | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for sample in samples:
        unread = f" (`{', '.join(sample.unread)}`)" if sample.unread else ""
        cells = [results[name][sample.name].cell() + (unread if name == "Ferryman" else "") for name in names]
        lines.append(f"| `{sample.name}` | {sample.producer} | {' | '.join(cells)} |")
    lines.append(f"| {len(samples)} files | | {' | '.join(_sum_up(results[name]) for name in names)} |")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}")
