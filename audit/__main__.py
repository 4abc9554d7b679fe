"""The command `audit`, or python -m audit: exit status 0 found nothing, 1 leaks, 2 no answer, 70 a fault.

An audit runs in a process of its own, which sends its status to this one. It sends 2 where Python says that the memory
is full. Whatever ends it before it sends one, such as a library or a system without memory, or code of a stranger's, is
a fault, and is never taken for an answer. What a user ends, by Ctrl-C or kill, has the status 130.
"""

import argparse
import contextlib
import importlib
import os
import signal
import sys
import traceback

from utils.errors import InputError

# exit statuses
HELPED = FOUND_NOTHING = 0
LEAKS = 1  # Python's own for a fault, which here is another
NO_ANSWER = 2
FAULT = 70
INTERRUPTED = 130
PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Helped(Exception):
    """The help was printed, as was asked for."""


class Line(argparse.ArgumentParser):
    """A command line that says in one sentence what is wrong with it."""

    def __init__(self, prog, usage, description, epilog):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, usage, description, epilog, formatter_class=raw)

    def error(self, message):
        """Raise InputError with a message of argparse's."""
        usage = str(self.usage) % {"prog": self.prog}
        how = f"give {usage}, with spaces between the values of an option (--help lists them)"
        raise InputError(f"The command is not understood, {message}: {how}.")

    def exit(self, status=0, message=None):
        """Raise Helped, after argparse's help: a SystemExit is a fault, as a stranger's code may raise one."""
        raise Helped


def command():
    """The exit status of an audit, in a process of its own; if that sends none, INTERRUPTED or FAULT."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        status = status_of_child()
        os.write(sender, bytes([status]))
        os._exit(0)  # whatever a stranger's code left running
    os.close(sender)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    said = os.read(receiver, 1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = said[0] if said else INTERRUPTED if -ended in PASSED_ON else FAULT
    with contextlib.suppress(OSError):
        if status == INTERRUPTED:
            print("Interrupted: no report was written.", file=sys.stderr)
        elif not said:
            why = "a library that found no memory, or code that it ran, ended it"
            print(f"There is no answer (status {ended}): {why}.", file=sys.stderr)
    return status


def status_of_child():
    """The status that `audit.command.main` returns, and that of a fault where this cannot be loaded."""
    try:
        # libraries that are being loaded know no interrupt
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        loaded = importlib.import_module("audit.command")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = loaded.main()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, SystemExit):
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return FAULT


if __name__ == "__main__":
    sys.exit(command())
