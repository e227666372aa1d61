"""Parts of networks as pure functions: torsos, heads, recurrence."""
