"""What the exit status of every command means."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses; the same for every command."""

    OK = 0
    NEGATIVE = 1
    WRONG_CALL = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


MEANING = {
    ExitCode.OK: "done; a submission that was waited for is completed",
    ExitCode.NEGATIVE: "the answer is no: the submission ended otherwise or had ended before, "
    "the agent is busy, a check failed, nothing is running",
    ExitCode.WRONG_CALL: "the call is wrong: an argument, a setting, a file in the way; nothing was done",
    ExitCode.UNREACHABLE: "no servers are configured or running, or one cannot be reached",
    ExitCode.NOT_FOUND: "there is no submission with that id, or no such agent or task",
    ExitCode.TIMED_OUT: "the time was up; the submission goes on",
    ExitCode.INTERRUPTED: "Ctrl-C; submissions go on",
}


def epilog() -> str:
    """Return the table for `--help`."""
    lines = (f"**{int(code)}** {meaning}" for code, meaning in MEANING.items())
    return "Exit status:\n\n" + "\n\n".join(lines)
