"""What may name an agent, for properties."""

from hypothesis import strategies as st

from think_celery.core.address import NAME_LIMIT

NAMES = st.text(
    st.characters(exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=NAME_LIMIT,
).filter(lambda name: bool(name.strip()))
TYPE_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,99}", fullmatch=True)
