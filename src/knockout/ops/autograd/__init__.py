"""The derivatives of the operators, and how vmap maps them: written once for all backends."""
