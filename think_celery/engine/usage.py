"""What a run or a step has used, as it is stored and told."""

from typing import Any

from pydantic_ai.usage import RequestUsage, RunUsage


def counts(used: RunUsage | RequestUsage) -> dict[str, Any]:
    """Return the counts that are not zero: `inputTokens`, `outputTokens` and so on."""
    named = {
        "requests": used.requests,
        "toolCalls": used.tool_calls if isinstance(used, RunUsage) else 0,
        "inputTokens": used.input_tokens,
        "outputTokens": used.output_tokens,
        "totalTokens": used.total_tokens,
        "cachedInputTokens": used.cache_read_tokens,
        "reasoningTokens": used.details.get("reasoning_tokens", 0),
    }
    return {name: count for name, count in named.items() if count}
