"""The supervisor with small children: crash, back-off, stop in order, reload, its own death."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console

from think_celery.dev.console import StackConsole
from think_celery.dev.program import MARK, Program, await_end, leftovers
from think_celery.dev.supervisor import Supervisor

READY = "import signal, sys, time\nprint('ready', flush=True)\n"
POLITE = READY + "signal.pause()"
STUBBORN = (
    "import os, signal\n"
    "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'not yet\\n'))\n"
    + READY
    + "while True: signal.pause()"
)


def child(
    place: Path, name: str, code: str, *, stop: tuple[tuple[signal.Signals, float], ...] | None = None
) -> Program:
    return Program(
        name=name,
        command=(sys.executable, "-c", code),
        folder=place,
        environ={MARK: str(place), "PATH": os.environ["PATH"]},
        stop=stop or ((signal.SIGTERM, 5.0),),
    )


class Scene:
    """A supervisor in this thread, and a script beside it that waits for output and acts."""

    def __init__(self) -> None:
        self.output = io.StringIO()
        self.supervisor = Supervisor(StackConsole(Console(file=self.output, width=200)), lambda: None)
        self.failure: BaseException | None = None

    def play(self, programs: list[Program], script: Callable[[], None]) -> str:
        def act() -> None:
            try:
                script()
            except BaseException as error:
                self.failure = error
            finally:
                self.supervisor.stop()

        with self.supervisor:
            for stage, program in enumerate(programs):
                self.supervisor.add(program, stage=stage)
            actor = threading.Thread(target=act)
            actor.start()
            self.supervisor.run(is_ready=lambda: True)
        actor.join()
        if self.failure is not None:
            raise self.failure
        return self.output.getvalue()

    def sees(self, text: str, *, times: int = 1) -> None:
        end = monotonic() + 20
        tick = threading.Event()
        while self.output.getvalue().count(text) < times:
            assert monotonic() < end, f"no {text!r} in:\n{self.output.getvalue()}"
            tick.wait(0.01)

    def pid(self, name: str) -> int:
        process = next(child for child in self.supervisor.children if child.name == name).process
        assert process is not None
        return process.pid


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_crashed_child_is_started_again_and_it_is_said(scene: Scene, place: Path) -> None:
    def script() -> None:
        scene.sees("one    │ ready".replace("one    ", "one      "))
        os.kill(scene.pid("one"), signal.SIGKILL)
        scene.sees("one      │ ready", times=2)

    output = scene.play([child(place, "one", POLITE)], script)
    assert "one ended unexpectedly (killed by SIGKILL); again in 0.5 s" in output
    assert not leftovers(place)


def test_a_child_that_always_crashes_is_tried_less_and_less_often(scene: Scene, place: Path) -> None:
    output = scene.play([child(place, "one", "raise SystemExit(3)")], lambda: scene.sees("again in 2 s"))
    waits = [line.rpartition("again in ")[2] for line in output.splitlines() if "again in" in line]
    assert waits == ["0.5 s", "1 s", "2 s"]
    assert "(exit status 3)" in output


def test_stages_stop_from_the_highest_down(scene: Scene, place: Path) -> None:
    code = (
        "import signal, sys\n"
        "def bye(*_): print('bye', flush=True); sys.exit()\n"
        "signal.signal(signal.SIGTERM, bye)\n" + POLITE
    )
    names = ["zero", "one", "two"]
    output = scene.play([child(place, name, code) for name in names], lambda: scene.sees("ready", times=3))
    assert [line.split()[0] for line in output.splitlines() if "bye" in line] == ["two", "one", "zero"]


def test_a_stubborn_child_is_killed_after_its_patience_with_its_own_children(
    scene: Scene, place: Path
) -> None:
    code = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    )
    program = child(place, "one", code + STUBBORN, stop=((signal.SIGTERM, 0.3), (signal.SIGTERM, 0.2)))
    begun = monotonic()
    output = scene.play([program], lambda: scene.sees("ready"))
    assert output.count("not yet") == 2
    assert "killing one" in output
    assert not leftovers(place)
    assert monotonic() - begun < 10


def test_a_second_request_does_not_wait(scene: Scene, place: Path) -> None:
    def script() -> None:
        scene.sees("ready", times=2)
        scene.supervisor.stop()
        scene.sees("not yet")

    program = child(place, "one", STUBBORN, stop=((signal.SIGTERM, 60.0),))
    scene.play([child(place, "zero", POLITE), program], script)
    assert not leftovers(place)


def test_a_change_restarts_the_worker_and_nothing_else(scene: Scene, place: Path) -> None:
    pids: list[int] = []

    def script() -> None:
        scene.sees("ready", times=2)
        pids.extend((scene.pid("worker"), scene.pid("beat")))
        scene.supervisor.reload("agents.py changed")
        scene.sees("worker   │ ready", times=2)
        pids.extend((scene.pid("worker"), scene.pid("beat")))

    output = scene.play([child(place, "worker", POLITE), child(place, "beat", POLITE)], script)
    assert "agents.py changed; restarting the worker" in output
    assert "unexpectedly" not in output
    assert pids[0] != pids[2]
    assert pids[1] == pids[3]


def test_signals_ask_to_stop(place: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        scene = Scene()

        def script(scene: Scene = scene, number: signal.Signals = number) -> None:
            scene.sees("ready")
            os.kill(os.getpid(), number)
            while not scene.supervisor.is_stopping:
                threading.Event().wait(0.01)

        scene.play([child(place, "one", POLITE)], script)
        assert not leftovers(place)


def test_the_terminal_s_interrupt_does_not_reach_the_children(scene: Scene, place: Path) -> None:
    groups: list[int] = []

    def script() -> None:
        scene.sees("ready")
        groups.append(os.getpgid(scene.pid("one")))

    scene.play([child(place, "one", POLITE)], script)
    assert groups[0] != os.getpgid(0)


def test_long_and_odd_output_is_shown(scene: Scene, place: Path) -> None:
    written = rb"b'x' * 200_000 + b'\n[b]not markup[/b] \xff\xfe\x1b[31mred\x1b[0m'".decode()
    code = f"import sys\nsys.stdout.buffer.write({written})\n"
    output = scene.play([child(place, "one", code + "sys.stdout.flush()")], lambda: scene.sees("red"))
    assert "x" * 200_000 in output.replace("\n", "")
    assert "[b]not markup[/b] �" in output
    assert "\x1b" not in output  # not a terminal


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start ends what is left")
def test_children_do_not_outlive_a_killed_supervisor(place: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.dev.test_supervisor import *
scene = Scene()
with scene.supervisor:
    for name in ("one", "two"):
        scene.supervisor.add(child(Path({str(place)!r}), name, STUBBORN), stage=0)
    scene.sees("ready", times=2)
    print("ready", flush=True)
    scene.supervisor.run(is_ready=lambda: True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = leftovers(place)
        assert len(children) == 2
        process.kill()
    assert not await_end(children, seconds=10)
