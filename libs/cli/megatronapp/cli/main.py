"""`megatronapp`: one command for everything a person does with the platform."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; run: pip install 'megatronapp[cli]'")

from megatronapp.cli import analyze, attach, doctor, quarantine, run, scope, serve, token, trace, train, up
from megatronapp.cli.demo import command as demo
from megatronapp.cli.option_groups import command
from megatronapp.cli.pipeline import plan, simulate
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.logging import configure

app = typer.Typer(
    name="megatronapp",
    help="See, explain and fix slow or hanging Megatron-core training runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"megatronapp {version('megatronapp')}")
        raise typer.Exit


@app.callback()
def _options(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "warning",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    if log_level not in {"debug", "info", "warning", "error"}:
        raise typer.BadParameter("take debug, info, warning or error", param_hint="--log-level")
    configure(log_level)


app.command("demo")(demo.demo)
app.command("up")(up.up)
app.command("token")(token.token)
app.command("run")(run.run)
app.command("train", **train.PASS_THROUGH)(train.train)
app.command("config")(train.config)
app.command("attach", **train.PASS_THROUGH)(attach.attach)
app.command("generate", **train.PASS_THROUGH)(train.generate)
app.command("serve", **serve.PASS_THROUGH)(serve.serve)
app.command("checkpoint", **train.PASS_THROUGH)(train.checkpoint)
app.command("convert", **train.PASS_THROUGH)(train.convert)
app.add_typer(train.data_app, name="data")
app.add_typer(trace.trace_app, name="trace")
app.add_typer(scope.scope_app, name="scope")
app.command("analyze", **train.PASS_THROUGH)(analyze.analyze)
app.command("simulate")(command(simulate.SimulateOptions, simulate.simulate))
app.command("plan")(command(plan.PlanOptions, plan.plan))
app.command("interfere", **train.PASS_THROUGH)(train.interfere)
app.command("quarantine", **train.PASS_THROUGH)(quarantine.quarantine)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Entry point: an expected error is one line on stderr and its exit code, never a traceback."""
    try:
        app()
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
