"""An error in the words that people read."""

from think_celery.core.wire import clean_text
from think_celery.errors import TurnSetupError

_SHOWN = 100


def shown(value: object) -> str:
    """Return a caller's value as it is quoted in an error: ASCII only, and not longer than people read.

    >>> shown("\\u00e9")
    "'\\\\xe9'"
    """
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def describe(error: BaseException) -> str:
    """Return an error's text: its words and those of its cause, or its kind without words.

    >>> describe(KeyError()), describe(TurnSetupError("no key: set it"))
    ('KeyError', 'no key: set it')
    """
    # The words of a set-up error are already those of its cause.
    cause = None if isinstance(error, TurnSetupError) else error.__cause__
    words = [clean_text(str(each)).strip() for each in (error, cause) if each is not None]
    told = ": ".join(word for number, word in enumerate(words) if word and word not in words[:number])
    return told or type(error).__name__
