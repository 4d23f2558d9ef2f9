"""Values that are no tensor: sources of value rows, of which only those that carry weight are read, some at a time."""

from knockout.rows.sources import RowSource

__all__ = ["RowSource"]
