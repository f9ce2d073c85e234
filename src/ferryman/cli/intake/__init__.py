"""``ferryman intake``: submit batches, look at them, and stop or repair what goes wrong."""

from __future__ import annotations

import typer

from ferryman.cli.intake import admin, listing, serve, submit

app = typer.Typer(
    name="intake",
    help="The intake queue of batches and jobs: submit, list, hold, release, repair.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(serve.serve)
app.command()(submit.submit)
app.command()(listing.batches)
app.command()(listing.jobs)
app.command()(listing.count)
app.command()(listing.show)
app.command()(admin.access)
app.command()(admin.hold)
app.command()(admin.release)
app.command()(admin.requeue)
app.command()(admin.report)
app.command()(admin.delete)
app.command()(admin.cleanup)
app.command()(admin.pause)
app.command()(admin.resume)
app.command()(admin.lock)
app.command()(admin.unlock)
app.command()(admin.fail)
app.command()(admin.prioritize)
app.command()(admin.audit)
app.command()(admin.dump)
app.command()(admin.restore)
app.command("import-legacy")(admin.import_legacy)
