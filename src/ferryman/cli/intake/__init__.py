"""``ferryman intake``: submit batches, look at them, and stop or repair what goes wrong."""

from __future__ import annotations

import typer

from ferryman.cli.intake import admin, listing, serve, submit
from ferryman.cli.intake import admin as access
from ferryman.cli.intake import admin as at_work
from ferryman.cli.intake import admin as whole

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
app.command()(access.access)
app.command()(admin.hold)
app.command()(admin.release)
app.command()(admin.requeue)
app.command()(admin.report)
app.command()(admin.delete)
app.command()(admin.cleanup)
app.command()(admin.pause)
app.command()(admin.resume)
app.command()(admin.lock)
app.command()(at_work.unlock)
app.command()(at_work.fail)
app.command()(at_work.prioritize)
app.command()(whole.audit)
app.command()(whole.dump)
app.command()(whole.restore)
app.command("import-legacy")(whole.import_legacy)
