"""``ferryman warm-up``: let Spark start in half the time, before the first run."""

from __future__ import annotations

import typer

from ferryman.cli.options import Verbose
from ferryman.cli.terminal import note, say


def warm_up(verbose: Verbose = False) -> None:
    """Prepare this machine, so that Spark starts in half the time.

    Writes an archive of Spark's classes, 170 MB, into your cache folder (~/.cache/ferryman), in some 20 s. A first run
    does it too, in the background after its end; a container's image needs this command. Does nothing if the archive is
    there. Ends with 1 if it cannot be made: Spark then starts without it.
    """
    from ferryman.engine.runner.class_sharing import ClassArchive

    archive = ClassArchive.of_machine()
    if archive is None:
        note("There is no Java, or no cache folder of your own for an archive of Spark's classes. Spark starts so.")
        raise typer.Exit(1)
    if archive.find() is None:
        note("starting Spark once, and writing its classes to an archive; this takes some 20 s")
    made = archive.make()
    if made is None:
        note(f"There is no archive of Spark's classes in {archive.folder}: it cannot be made. Spark starts without.")
        raise typer.Exit(1)
    say(made)
