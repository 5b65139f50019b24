"""Entry point `testbed`. Commands are imported when they are called, so that `--help` is quick."""

from __future__ import annotations

import importlib
import sys
import traceback

import click

from testbed import __version__
from testbed.errors import TestbedError, nearest, printable_lines

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Scenarios": {
        "init": ("testbed.cli.init", "Write a new scenario file."),
        "validate": ("testbed.cli.validate", "Check a scenario file: all errors, each with its line."),
        "scenarios": ("testbed.cli.scenarios", "List and copy packaged scenarios; reference of scenario files."),
        "policies": ("testbed.cli.policies", "List scheduling policies and the grammar of their names."),
    },
    "Live runs": {
        "run": ("testbed.cli.run", "Replay a trace segment on live nodes, and measure it."),
        "resume": ("testbed.cli.resume", "Continue a run whose controller was lost."),
        "control": ("testbed.cli.control", "Pause, continue or stop a run from another terminal."),
        "serve": ("testbed.cli.serve", "Serve a lab: users submit jobs to it."),
        "qsub": ("testbed.cli.queue", "Submit a job to a served lab."),
        "qstat": ("testbed.cli.queue", "Show the jobs of a served lab."),
        "qdel": ("testbed.cli.queue", "End a job of a served lab."),
    },
    "Results": {
        "runs": ("testbed.cli.runs", "List, describe, compare and remove runs."),
        "report": ("testbed.cli.report", "Print the tables of runs, and write a page of figures."),
        "why": ("testbed.cli.why", "Explain what happened to one job of a run."),
        "dashboard": ("testbed.cli.dashboard", "Show a run live in a browser."),
        "query": ("testbed.cli.query", "Query a run's measurements in SQL."),
        "schema": ("testbed.cli.schema", "List every measurement, with units."),
        "ingest": ("testbed.cli.ingest", "Write a run's measurements to InfluxDB."),
        "replay-decisions": ("testbed.cli.replay_decisions", "Repeat recorded decisions, and compare them bit by bit."),
    },
    "Judging a lab": {
        "calibrate": ("testbed.cli.calibrate", "Measure the costs of saves, restores, migrations and caps."),
        "compare": ("testbed.cli.compare", "Compare live runs with their simulation: equal, different, or not shown."),
        "check": ("testbed.cli.check", "Check the hypervisors of a lab, and compare figures with references."),
        "doctor": ("testbed.cli.doctor", "Find problems of this machine or of a lab, and their fixes."),
    },
    "Simulation": {
        "simulate": ("testbed.cli.simulate", "Replay a trace in virtual time under policies, and compare them."),
        "campaign": ("testbed.cli.campaign", "Simulate many traces under many policies, or repeat live runs."),
        "place": ("testbed.cli.place", "Place services once, for the highest minimum yield."),
        "trace": ("testbed.cli.trace", "Inspect, cut, convert and generate traces."),
        "bound": ("testbed.cli.bound", "Compute a lower bound of the maximum stretch of a trace."),
    },
    "Labs and machines": {
        "lab": ("testbed.cli.lab", "Create several independent nodes on this machine."),
        "image": ("testbed.cli.image", "Build or show the guest image of virtual machines."),
        "nodes": ("testbed.cli.nodes", "List the nodes of a lab."),
        "node": ("testbed.cli.node", "Manage the machines of a lab over ssh."),
        "ca": ("testbed.cli.ca", "Create the certificates of a lab of several machines."),
        "services": ("testbed.cli.services", "Run broker, InfluxDB and Grafana as containers."),
        "cleanup": ("testbed.cli.cleanup", "Remove what dead runs and killed agents left."),
    },
}
_COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command = getattr(module, cmd_name.replace("-", "_"))
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}: no command {cmd_name}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            raise click.UsageError(f"no command {args[0]!r}{nearest(args[0], _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        widest = max(map(len, _COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, (_, text) in group.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--debug", is_flag=True, help="Show tracebacks, and log more.")
@click.version_option(__version__, prog_name="testbed")
@click.pass_context
def cli(ctx: click.Context, *, debug: bool) -> None:
    """Replay job traces as real workloads on real nodes under a scheduling policy, and measure what its decisions cost.

    \b
    Start here:
      testbed run quickstart
    """  # noqa: D301  # \b keeps click from wrapping the example
    ctx.obj = {"debug": debug}


def main() -> None:
    """Run; one line for an error, exit code 2 for a user's mistake, 1 for a failed run, 130 for Ctrl-C."""
    debug = "--debug" in sys.argv
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except TestbedError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"testbed: {printable_lines(str(error))}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("testbed: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has closed it
        sys.exit(141)
