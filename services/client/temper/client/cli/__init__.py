"""`temper`: the one command line. Parses and prints help first; each command imports what it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from temper.client.cli.exits import INTERRUPTED, REJECTED


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `temper` script: never a traceback for a user's mistake."""
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def invoke(argv: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    from cyclopts import CycloptsError

    from temper.client.cli.app import build
    from temper.client.cli.exits import exit_code, tell, tell_system
    from temper.runtime.errors import TemperError

    try:
        code = build()(argv, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        return REJECTED  # the library has told it
    except TemperError as error:
        tell(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone: that is no error of ours
        return 0
    except OSError as error:  # a file that the user named, a full disk: the machine's own words say which
        return tell_system(error)
    return code if isinstance(code, int) else 0
