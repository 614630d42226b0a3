"""Which agent is meant: an agent is one conversation, named by its class and its own name."""

import unicodedata
from dataclasses import dataclass, field
from hashlib import sha256

from think_celery.errors import InvalidInput

NAME_LIMIT = 200
_DIGEST = 40
_TAIL = 120
_TYPE_LIMIT = 100


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One agent.

    >>> str(Address("TaskAgent", "customer-42"))
    'TaskAgent/customer-42'
    >>> Address.parse("TaskAgent/a/b")
    Address(type_name='TaskAgent', name='a/b')
    """

    type_name: str
    name: str
    parent: str | None = field(default=None, compare=False, repr=False)
    """The agent that this one belongs to, as `child` made it; no part of its identity."""

    def __post_init__(self) -> None:
        check_type_name(self.type_name)
        check_text("agent name", self.name, limit=NAME_LIMIT)

    def __str__(self) -> str:
        return f"{self.type_name}/{self.name}"

    def child(self, agent: object, name: str) -> "Address":
        """Return the address of an agent that belongs to this one: its own path, then class and name.

        Args:
            agent: Its class, or the name of that.
            name: Its own name.

        >>> str(Address("ParentAgent", "alice").child("ChildAgent", "child-1"))
        'ChildAgent/ParentAgent/alice/child-1'

        A path that would be longer than a name may be keeps its end, behind a digest of the whole.
        """
        type_name = check_type_name(getattr(agent, "type_name", agent))
        check_text("agent name", name, limit=NAME_LIMIT)
        path = f"{self.type_name}/{_step(self.name)}/{_step(name)}"
        if len(path) > NAME_LIMIT:
            # No class name begins with a `~`, so no other path looks like this.
            path = f"~{sha256(path.encode()).hexdigest()[:_DIGEST]}/{path[-_TAIL:]}"
        return Address(type_name, path, parent=str(self))

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `Type/name`; everything after the first slash is the name.

        Raises:
            InvalidInput: There is no slash, or one side cannot be accepted.
        """
        type_name, slash, name = text.partition("/")
        if not slash:
            raise InvalidInput("agent", f"{text!r} is not of the form Type/name, such as TaskAgent/alice")
        return cls(type_name, name)


def _step(name: str) -> str:
    # Without this, child `c` of `a/b` and child `b/c` of `a` would be one agent.
    return name.replace("%", "%25").replace("/", "%2F")


def check_type_name(type_name: object) -> str:
    """Return a class's type name, or raise InvalidInput: an identifier of at most 100 ASCII characters."""
    if not isinstance(type_name, str) or not type_name.isidentifier() or not type_name.isascii():
        raise InvalidInput("agent type", f"{type_name!r} is not an ASCII identifier such as TaskAgent")
    if len(type_name) > _TYPE_LIMIT:
        raise InvalidInput(
            "agent type", f"is {len(type_name)} characters long, at most {_TYPE_LIMIT} are accepted"
        )
    return type_name


def check_text(field: str, value: object, *, limit: int, blank: str = "must not be blank") -> str:
    """Return a name or an id given by a caller.

    Args:
        limit: Most characters.
        blank: Words for a blank one.

    Raises:
        InvalidInput: No text, blank, too long, or with control characters.
    """
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be text, not {type(value).__name__}")
    if not value.strip():
        raise InvalidInput(field, blank)
    if len(value) > limit:
        raise InvalidInput(field, f"is {len(value)} characters long, at most {limit} are accepted")
    if bad := next((c for c in value if unicodedata.category(c) in {"Cc", "Cs"}), None):
        raise InvalidInput(field, f"contains the control character U+{ord(bad):04X}; remove it")
    return str.__str__(value)
