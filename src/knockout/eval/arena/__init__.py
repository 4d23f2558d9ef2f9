"""The arena: every method on shared tasks. The command is ``knockout arena``."""
