"""The operators in plain PyTorch, on every device."""
