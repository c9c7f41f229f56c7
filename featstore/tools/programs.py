"""What the command line and the Spark jobs share: their options, each described once; how they run;
and where the jobs are: programs for `spark-submit` or `python -m featstore.tools.job_NAME`.

Spark puts the folder of the program that it runs on Python's path. So no module here may be named
like one of another library, and a job leaves the folder before it imports modules of users.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from featstore.base.errors import FeatstoreError
from featstore.base.processes import MAY_PASS, end_with, exit_code
from featstore.extraction.spark.yarn import end_application

JOBS = {
    "extract": "job_extract.py",
    "join-labels": "job_join_labels.py",
    "profile-slots": "job_profile_slots.py",
    "register-table": "job_register_table.py",
}
Function = TypeVar("Function", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def several(*options: Option) -> Option:
    """Several options as one decorator. The help shows them in this order."""

    def decorate(function: Any) -> Any:
        # Decorators apply from the bottom up, and click shows them from the top down.
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def spec_option(text: str = "The spec, a YAML file.") -> Option:
    """The required option `--spec`."""
    return click.option("--spec", required=True, metavar="URL", help=text)


def input_option(text: str, *older: str) -> Option:
    """The required option `--input`, with its older names."""
    return click.option("--input", *older, "input_url", required=True, metavar="URL", help=text)


def table_option(text: str = "The table to write; created if it does not exist.") -> Option:
    """The required option `--table`."""
    return click.option("--table", "table_url", required=True, metavar="URL", help=text)


def key_values(
    form: str,
) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """The callback of an option whose values have this form, such as `KEY=VALUE`."""

    def pairs_of(_: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        pairs = dict(text.partition("=")[::2] for text in texts)
        if len(pairs) < len(texts) or not all(key and value for key, value in pairs.items()):
            name = form.partition("=")[0].lower()
            raise click.BadParameter(f"expected {form}, each {name} once, found {', '.join(texts)}")
        return pairs

    return pairs_of


def partition_option(text: str = "A partition value for all of the input.") -> Option:
    """The option `--partition`, which may be repeated."""
    return click.option(
        "--partition",
        multiple=True,
        callback=key_values("KEY=VALUE"),
        metavar="KEY=VALUE",
        help=text,
    )


partition_from_path_option = click.option(
    "--partition-from-path",
    multiple=True,
    metavar="KEY",
    help="A key to take from KEY=VALUE directories.",
)
partition_options = several(
    partition_option(),
    partition_from_path_option,
    click.option(
        "--no-partition",
        is_flag=True,
        help="Take all of the input, although it has KEY=VALUE directories, for a table without "
        "partitions.",
    ),
)
retry_option = click.option(
    "--retry-s",
    type=float,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a request to a store is made again after failures that may pass.",
)
# What `featstore.extract` takes besides spec, input and table, here and on Spark.
extract_options = several(
    partition_options,
    click.option(
        "--days",
        metavar="FIRST..LAST",
        help="Fill {dt} (and {hour}) in --input. Partitions that are up to date are skipped.",
    ),
    click.option("--allow-missing", is_flag=True, help="With --days: skip days without raw files."),
    click.option("--dry-run", is_flag=True, help="With --days: only print what would be done."),
    click.option(
        "--group",
        metavar="NAME",
        help="Extract only the slots that the table lacks, into this slot group.",
    ),
    click.option(
        "--key",
        metavar="COLUMN",
        help="With --group: the kept column that identifies each row, if the raw files changed.",
    ),
    click.option(
        "--events",
        multiple=True,
        callback=key_values("NAME=URL"),
        metavar="NAME=URL",
        help="The log of events of a history of the spec: raw rows, as of --input.",
    ),
    click.option(
        "--rejects",
        metavar="FILE",
        help="Write rows with malformed values here, and why: at most 10,000 lines of JSON. "
        "With --days its name has {dt}.",
    ),
    retry_option,
)

# Of a join, here and on Spark.
join_options = several(
    click.option(
        "--impressions",
        required=True,
        metavar="PAIRS",
        help="row_id=COLUMN,... event_time=COLUMN [log_time=COLUMN] and where from",
    ),
    click.option(
        "--label",
        "labels",
        multiple=True,
        required=True,
        metavar="PAIRS",
        help="name= key=COLUMN,... event_time= window=1h [horizon=2h log_time= "
        "event_id=COLUMN,... value= "
        "kind=any|count|sum|first|last attribution=last|first|all with_time=true] and where from; "
        "repeatable",
    ),
    click.option(
        "--lookup",
        "lookups",
        multiple=True,
        metavar="PAIRS",
        help="name= key=COLUMN,... event_time= columns=COLUMN,... [log_time= max_age=30d] "
        "and where from; "
        "repeatable",
    ),
    click.option(
        "--cut-off",
        required=True,
        metavar="TIME",
        help="What was logged at this time or later is not known yet; UTC unless it names a zone.",
    ),
    click.option(
        "--output",
        "output_url",
        required=True,
        metavar="URL",
        help="The directory that the rows become; or delta+URL of a Delta table, whose partitions "
        "are replaced by one commit.",
    ),
    partition_option("A partition value of all rows, KEY=VALUE/ below a directory; repeatable."),
    click.option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN",
        help="Spread the rows over directories, or partitions, by this column; repeatable.",
    ),
    click.option(
        "--negative-rate",
        type=float,
        metavar="RATE",
        help="Keep this share of negatives; adds sample_weight.",
    ),
    click.option(
        "--negative-label",
        metavar="NAME",
        help="What a negative is: this label is 0; without it: every label is.",
    ),
    click.option("--seed", type=int, default=0, help="Of the draw of negatives."),
    click.option(
        "--drop-incomplete", is_flag=True, help="Drop impressions without row id or event time."
    ),
    retry_option,
)


def require_one_of(given: Mapping[str, object]) -> None:
    """UsageError unless exactly one of these options has a value."""
    found = [option for option, value in given.items() if value is not None]
    if not found:
        raise click.UsageError(f"one of the arguments {' '.join(given)} is required")
    if len(found) > 1:
        raise click.UsageError(f"argument {found[1]}: not allowed with argument {found[0]}")


def job_path(name: str) -> Path:
    """The installed file of a job, for `spark-submit`.

    Args:
        name: A key of `JOBS`.
    """
    return Path(__file__).resolve().with_name(JOBS[name])


def start(main: Callable[[], int]) -> NoReturn:
    """Runs the `main` of a job as a program."""
    # A module of a user's operators may be named `jobs`, like one of this folder.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != folder]
    end_with(main)


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the block by an exception, so that it removes what it made: SystemExit
    with 143, or KeyboardInterrupt. Call it from the main thread. A second signal of the same kind
    has its usual effect.

    The end of the block raises it again, because libraries make other errors of what a handler
    raises in them, or drop it.
    """
    came: list[int] = []

    def end(number: int, _: object) -> None:
        signal.signal(number, before[number])
        came.append(number)
        raise _end_of(number)

    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    except BaseException as error:
        if came:
            raise _end_of(came[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_of(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def run_program(name: str, program: Callable[[], object], *, is_job: bool = False) -> int:
    """Runs the command line or a job. Returns the exit code: 2 or 3 after an error about the input,
    which is one line on standard error; 75 after one that may pass; 130 after an interrupt.

    Args:
        name: The program, for messages.
        program: What it does.
        is_job: Whether this process is the driver of Spark's application.
    """
    try:
        program()
    except click.ClickException as error:
        error.show()
        if is_job:
            end_application(error.exit_code, error.format_message())
        return error.exit_code
    # Errors of featstore are about the input. Others are bugs, and keep their traceback.
    except (FeatstoreError, OSError) as error:
        said = "\n".join([f"{name}: error: {error}", *getattr(error, "__notes__", ())])
        click.echo(said, err=True)
        code = exit_code(error)
        if is_job and code != MAY_PASS:
            end_application(code, said)
        return code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; earlier commits stay as they are", err=True)
        return 130
    return 0
