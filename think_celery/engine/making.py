"""Make the agent object of one turn or hook."""

from think_celery.agent import Think, registry
from think_celery.core.address import Address
from think_celery.engine.blocking import contained
from think_celery.engine.runtime import Runtime


def agent_of(runtime: Runtime, address: Address) -> Think:
    """Return a new object of an agent's class, which speaks to itself through this process' connections.

    Raises:
        UnknownAgentType: No module that defines the class has been imported.
        Exception: What its `__init__` raised.
    """
    with contained():
        agent = registry.get(address.type_name)(address)
    agent.__dict__["_runtime"] = runtime
    return agent
