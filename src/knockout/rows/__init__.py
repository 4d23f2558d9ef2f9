"""Values that are no tensor: sources of value rows, read where they lie, some at a time, and only those that are needed."""

from knockout.rows.sources import RowSource

__all__ = ["RowSource"]
