"""Exit codes of `temper`, and errors in words.

| code     | meaning                                                                              |
| -------- | ------------------------------------------------------------------------------------ |
| 0        | done; for `run` and `--wait`: the job succeeded                                      |
| 1        | the job failed or was cancelled; an environment was not admitted; a check found fault |
| 2        | your input is wrong: arguments, job file, an unknown name (nothing was changed)      |
| 3        | something needed is not there: platform, service, extra, port                        |
| 4        | it is taken or has changed: data directory in use, another version                   |
| 5        | a limit is full; try later                                                           |
| 6        | `--timeout` passed while waiting                                                     |
| 130, 143 | interrupted by Ctrl-C, by SIGTERM                                                    |
"""

from __future__ import annotations

import sys

from temper.runtime.errors import Conflict, Exhausted, Rejected, Stale, TemperError

OK, FAILED, REJECTED, UNAVAILABLE, CONFLICT, EXHAUSTED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
TERMINATED = 143

EPILOGUE = (
    "Data goes to standard output, talk to standard error.\n\n"
    "Exit codes: 0 done, and the job succeeded; 1 the job failed or a check found fault; 2 wrong input; "
    "3 something needed is not there; 4 taken or changed; 5 a limit is full; 6 --timeout passed; 130 Ctrl-C."
)


def exit_code(error: TemperError) -> int:
    """Code of an error by its class."""
    match error:
        case Rejected():
            return REJECTED
        case Conflict() | Stale():
            return CONFLICT
        case Exhausted():
            return EXHAUSTED
        case _:
            return UNAVAILABLE


def tell(error: TemperError) -> None:
    """The error on standard error, with the way out on a line of its own."""
    from temper.client.jobfile.problems import JobFileRejected

    if isinstance(error, JobFileRejected):
        say(f"error: {error}")
        return
    where = f"{error.field}: " if error.field else ""
    say(f"error: {where}{error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")


def tell_system(error: OSError) -> int:
    """What the operating system refused, in one line; returns the exit code.

    A name that does not fit (missing, no permission, a directory) is wrong input; anything else, such as a full disk,
    is something needed that is not there.
    """
    say(f"error: {': '.join(str(part) for part in (error.filename, error.strerror or error) if part)}")
    wrong = FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError | FileExistsError
    return REJECTED if isinstance(error, wrong) else UNAVAILABLE


def say(text: str) -> None:
    """Talk."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command line tool talks
