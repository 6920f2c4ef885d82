"""The client of a control plane: one method per endpoint, what to retry, how to pack a context."""
