"""The command `trtfleet`: groups the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import json
import sys
from typing import ClassVar

import click

from tuner_job import __version__
from tuner_job.api.base import TrtfleetError
from tuner_job.api.documents import InvalidDocuments
from tuner_job.cli.exits import Exit, exit_code


class _Commands(click.Group):
    """Commands are imported when they are named, so that `--help` is quick."""

    names: ClassVar[dict[str, str]] = {
        "run": "tuner_job.cli.run:run_command",
        "plan": "tuner_job.cli.plan:plan_command",
        "knobs": "tuner_job.cli.plan:knobs_command",
        "report": "tuner_job.cli.report:report_command",
        "verify": "tuner_job.cli.published:verify_command",
        "history": "tuner_job.cli.published:history_command",
        "rollback": "tuner_job.cli.published:rollback_command",
        "pin": "tuner_job.cli.published:pin_command",
        "unpin": "tuner_job.cli.published:unpin_command",
        "promote": "tuner_job.cli.published:promote_command",
        "gc": "tuner_job.cli.published:gc_command",
        "import": "tuner_job.cli.cache:import_command",
        "export": "tuner_job.cli.cache:export_command",
    }

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in self.names:
            return None
        module, _, attribute = self.names[name].partition(":")
        command = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtfleet")
def cli() -> None:
    """Tune inference engines, prove the winner, publish it signed."""


def main() -> None:
    """Never a traceback for what a user or a store did."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("trtfleet: stopped", err=True)
        sys.exit(Exit.STOPPED)
    except TrtfleetError as error:
        if "--json" in sys.argv:
            click.echo(json.dumps({"error": {"reason": error.reason, "message": str(error)}}))
        problems = error.problems if isinstance(error, InvalidDocuments) else (str(error),)
        for problem in problems:
            click.echo(f"trtfleet: {problem}", err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(Exit.FAILED)
    sys.exit(code or Exit.OK)


if __name__ == "__main__":
    main()
