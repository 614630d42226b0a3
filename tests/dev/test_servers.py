"""The embedded servers for real: first start, after a kill, odd places, taken ports, damaged files."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from think_celery.dev import program
from think_celery.dev.home import Home, holder
from think_celery.dev.servers import Addresses, embedded_servers
from think_celery.dev.valkey import Valkey, free_port
from think_celery.errors import InvalidSettings, WrongContext

pytestmark = pytest.mark.stack


def put(servers: Addresses, value: str) -> None:
    with psycopg.connect(servers.database_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value text)")
        connection.execute("INSERT INTO kept VALUES (%s)", [value])
    with redis.Redis.from_url(servers.redis_url) as client:
        client.rpush("kept", value)


def kept(servers: Addresses) -> tuple[list[str], list[bytes]]:
    with psycopg.connect(servers.database_url) as connection:
        rows = [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]
    with redis.Redis.from_url(servers.redis_url) as client:
        return rows, client.lrange("kept", 0, -1)


HOLD = """
import sys
from pathlib import Path
from think_celery.dev.servers import embedded_servers
with embedded_servers(Path(sys.argv[1])) as servers:
    print(servers.database_url, servers.redis_url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", Addresses]]:
    """The servers of a folder, run by another process that can be killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        database_url, redis_url = process.stdout.readline().split()
        try:
            yield process, Addresses(database_url, redis_url, redis_url)
        finally:
            process.kill()


def test_servers_keep_their_data_and_settings(place: Path) -> None:
    with embedded_servers(place / "home") as first:
        put(first, "one")
        with redis.Redis.from_url(first.redis_url) as client:
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
            assert client.config_get("append*")["appendonly"] == "yes"
            assert client.config_get("append*")["appendfsync"] == "everysec"
        with psycopg.connect(first.database_url) as connection:
            version = connection.info.server_version
            encoding, fsync = connection.execute(
                "SELECT current_setting('server_encoding'), current_setting('fsync')"
            ).fetchone()
    assert version // 10_000 == 18
    assert (encoding, fsync) == ("UTF8", "on")
    assert not program.leftovers(place / "home")
    with embedded_servers(place / "home") as second:
        assert second == first  # a program that remembers the address goes on
        assert kept(second) == (["one"], [b"one"])


def test_nothing_listens_beyond_loopback_and_passwords_are_asked(place: Path) -> None:
    with embedded_servers(place / "home") as servers:
        processes = program.leftovers(place / "home")
        names = {process.name() for process in processes}
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert names == {"postgres", "valkey-server"}
        assert listening == {"127.0.0.1"}
        host, _, port = servers.redis_url.rpartition("@")[2].removesuffix("/0").partition(":")
        once = Retry(NoBackoff(), 0)
        with redis.Redis(host=host, port=int(port), retry=once) as client:
            with pytest.raises(redis.AuthenticationError):
                client.ping()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(servers.database_url.replace("think:", "think:wrong"))


def test_the_data_folder_is_for_its_owner(place: Path) -> None:
    home = place / "home"
    with embedded_servers(home):
        for path in (home, *home.rglob("*")):
            assert path.lstat().st_mode & (stat.S_IROTH | stat.S_IWOTH) == 0 or path.name == ".gitignore", (
                path
            )
        for file in home.glob("*.password"):
            assert all(
                file.read_text() not in " ".join(process.cmdline()) for process in program.leftovers(home)
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_root_opens_no_folder_for_reading(place: Path) -> None:
    place.chmod(0o700)
    with embedded_servers(place / "deep" / "home"):
        postgres = next(p for p in program.leftovers(place / "deep" / "home") if p.name() == "postgres")
        assert postgres.uids().real != 0
    assert stat.S_IMODE(place.stat().st_mode) & 0o077 in {0o010, 0o001}  # the mask of an access list, or +x


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_root_serves_data_as_its_owner(place: Path) -> None:
    home = place / "home"
    with embedded_servers(home) as servers:
        put(servers, "one")
    for path in (home / "postgres", *(home / "postgres").rglob("*"), home / "run"):
        os.chown(path, 54321, 54321)  # as the system user of another container
    with embedded_servers(home) as servers:
        assert kept(servers) == (["one"], [b"one"])
        postgres = next(p for p in program.leftovers(home) if p.name() == "postgres")
        assert postgres.uids().real == 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_the_folder_of_another_user_is_refused(place: Path) -> None:
    (place / "home").mkdir()
    os.chown(place / "home", 54321, 54321)
    with pytest.raises(InvalidSettings, match="user 54321"), embedded_servers(place / "home"):
        pass


@pytest.mark.parametrize("name", ["x" * 120, "a,b 'c' \"d\" $e", "päth ünd 漢字"])
def test_any_path_will_do(place: Path, name: str) -> None:
    home = place / name / "home"
    with embedded_servers(home) as servers:
        put(servers, "one")
        assert kept(servers) == (["one"], [b"one"])
        outside = servers.database_url.rpartition("host=")[2].startswith("%2Ftmp%2Fthink-celery-")
        socket_folder = servers.database_url.rpartition("host=")[2].replace("%2F", "/")
    assert not outside or not Path(socket_folder).exists()


def test_a_second_starter_is_refused(place: Path) -> None:
    with embedded_servers(place / "home"):
        assert holder(Home(place / "home")) == os.getpid()
        with pytest.raises(WrongContext), embedded_servers(place / "home"):
            pass
    assert holder(Home(place / "home")) is None


def test_after_a_kill_nothing_runs_and_everything_is_kept(place: Path) -> None:
    home = place / "home"
    with held_elsewhere(home) as (process, servers):
        put(servers, "one")
        processes = program.leftovers(home)
        assert len(processes) == 2
        process.kill()
        process.wait()
        alive = program.await_end(processes, seconds=10)
        assert not alive or sys.platform != "linux"  # elsewhere the next start ends them
    with embedded_servers(home) as again:
        assert kept(again) == (["one"], [b"one"])


def test_after_killing_the_servers_too_everything_is_kept(place: Path) -> None:
    home = place / "home"
    with held_elsewhere(home) as (process, servers):
        put(servers, "one")
        with redis.Redis.from_url(servers.redis_url) as client:
            client.waitaof(1, 0, 5000)
        processes = program.leftovers(home)
        process.kill()  # first, so that the kernel and not this process buries the servers
        process.wait()
        for victim in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        program.await_end(processes, seconds=10)
    assert (home / "postgres" / "postmaster.pid").exists()
    with embedded_servers(home) as again:
        assert kept(again) == (["one"], [b"one"])


def test_a_pid_file_that_names_a_living_stranger_is_no_obstacle(place: Path) -> None:
    home = place / "home"
    with embedded_servers(home):
        text = (home / "postgres" / "postmaster.pid").read_text()
    stranger = subprocess.Popen(["sleep", "60"], user="embedded_postgres" if os.geteuid() == 0 else None)
    try:
        lines = [str(stranger.pid), *text.splitlines()[1:]]
        (home / "postgres" / "postmaster.pid").write_text("\n".join(lines))
        with embedded_servers(home) as servers:
            put(servers, "one")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_servers_that_outlived_their_supervisor_are_ended_first(place: Path) -> None:
    home = place / "home"
    said: list[str] = []
    with held_elsewhere(home) as (process, servers):
        put(servers, "one")
        for victim in program.leftovers(home):
            victim.suspend()  # a stopped process takes the death signal only when it is continued
        process.kill()
        process.wait()
        frozen = program.leftovers(home)
        assert len(frozen) == 2
        for victim in frozen:
            victim.send_signal(signal.SIGCONT)
        with embedded_servers(home, say=said.append) as again:
            assert kept(again) == (["one"], [b"one"])


def test_an_interrupted_first_start_is_begun_again(place: Path) -> None:
    home = place / "home"
    (home / "postgres.new").mkdir(parents=True)
    (home / "postgres.new" / "PG_VERSION").write_text("18\n")
    with embedded_servers(home) as servers:
        put(servers, "one")


def test_data_of_another_major_version_is_refused_with_a_remedy(place: Path) -> None:
    home = place / "home"
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(InvalidSettings, match="PostgreSQL 17"), embedded_servers(home):
        pass


def test_a_taken_port_is_given_up(place: Path) -> None:
    home = place / "home"
    with embedded_servers(home) as first:
        port = int(first.redis_url.rpartition(":")[2].removesuffix("/0"))
    with socket.create_server(("127.0.0.1", port)):
        with embedded_servers(home) as second:
            assert second.redis_url != first.redis_url
            put(second, "one")


def test_a_port_taken_between_choice_and_start_is_given_up(place: Path) -> None:
    class Unlucky(Valkey):
        def _choose_port(self) -> int:
            return taken if not (self._home.valkey / "unlucky").exists() else free_port(0)

        def recover(self) -> bool:
            (self._home.valkey / "unlucky").touch()
            return super().recover()

    from think_celery.dev.servers import bring_up

    home = Home(place / "home")
    home.create()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        server = Unlucky(home, print)
        running, process = bring_up(server)
        assert f":{taken}/" not in server.url
        assert program.stop(process, running)


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_append_only_file_is_no_obstacle(place: Path, damage: str) -> None:
    home = place / "home"
    said: list[str] = []
    with embedded_servers(home) as servers:
        put(servers, "one")
        put(servers, "two")
    file = next((home / "valkey" / "appendonlydir").glob("*.incr.aof"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-7] if damage == "cut" else b"*3\r\n$garbage" + whole)
    with embedded_servers(home, say=said.append) as again:
        rows, items = kept(again)
        assert rows == ["one", "two"]
        assert items == ([b"one"] if damage == "cut" else [])
    assert bool(said) == (damage == "garbage")
