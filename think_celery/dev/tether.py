"""Run a command that ends when its parent does; a script, started by path with `python -I -S`.

Usage: tether.py PARENT_PID DEATH_SIGNAL UID GID COMMAND...

It replaces itself by the command. Doing this here and not in `preexec_fn` keeps the supervisor, which has
threads, free of Python code between fork and exec. UID and GID are `-` to keep the caller's; the identity is
changed before the tether is tied, because the kernel forgets a death signal when the identity changes.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Change identity, tie the tether (Linux), run the command in this process."""
    parent, death_signal, uid, gid, *command = sys.argv[1:]
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the tether was tied
            os.kill(os.getpid(), signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
