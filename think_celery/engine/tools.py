"""What a class and its hooks offer to the model, as toolsets of the model library."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FunctionType
from typing import Any

from pydantic_ai import RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import tool_return_ta
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    FunctionToolset,
    ToolsetTool,
    WrapperToolset,
)

from think_celery.agent import Think
from think_celery.core.wire import clean_json


def toolsets(tools: Sequence[Any], further: Sequence[Any] = ()) -> list[AbstractToolset[Think]]:
    """Return toolsets that offer the tools.

    Args:
        tools: What `get_tools` returned.
        further: What `before_turn` adds; of equal names these win.

    Raises:
        TypeError: Something among them is no tool; names where it came from.
        Exception: A function's signature or docstring makes no tool, or two share a name; says which.
    """
    offered = _toolsets(tools, "get_tools()")
    if not further:
        return offered
    added: CombinedToolset[Think] = CombinedToolset(_toolsets(further, "before_turn"))
    return [added, *(_Behind(toolset, added) for toolset in offered)]


def _toolsets(tools: Sequence[Any], source: str) -> list[AbstractToolset[Think]]:
    single: list[Any] = []
    sets: list[AbstractToolset[Think]] = []
    for tool in tools:
        if isinstance(tool, AbstractToolset):
            sets.append(tool)
        elif isinstance(tool, FunctionType) and tool.__closure__ is None:
            single.append(_tool(tool))
        elif isinstance(tool, Tool) or callable(tool):
            single.append(tool)
        else:
            raise TypeError(f"{source} returned a {type(tool).__name__}; return functions, Tools or toolsets")
    return [FunctionToolset(single), *sets] if single else sets


@lru_cache(maxsize=1000)
def _tool(function: FunctionType) -> Tool[Think]:
    """Return the tool of a function of a module; its schema takes a good part of a short turn to derive."""
    return Tool(function)


@dataclass
class _Behind(WrapperToolset[Think]):
    """Leaves out the tools whose names another toolset uses."""

    front: AbstractToolset[Think]

    async def get_tools(self, ctx: RunContext[Think]) -> dict[str, ToolsetTool[Think]]:
        taken = await self.front.get_tools(ctx)
        return {name: tool for name, tool in (await super().get_tools(ctx)).items() if name not in taken}


def sendable(result: Any) -> Any:
    """Return a tool's result if it can be written as JSON, cleaned if only its texts are at fault.

    Raises:
        ToolFailed: It is something else, which would fail the next request to the model.
    """
    content = result.return_value if isinstance(result, ToolReturn) else result
    try:
        tool_return_ta.dump_json(content)
    except UnicodeError:
        pass
    except (ValueError, RecursionError) as error:
        if "surrogates" not in str(error):
            kind = type(content).__name__
            raise ToolFailed(
                f"The tool returned a {kind} that cannot be written as JSON ({error})"
            ) from error
    else:
        return result
    cleaned = clean_json(tool_return_ta.dump_python(content, mode="json"))
    return replace(result, return_value=cleaned) if isinstance(result, ToolReturn) else cleaned
