"""Every example in a docstring, in the README and in docs/ is executed by the tests."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

pytest_collect_file = (
    Sybil(parsers=[DocTestParser(optionflags=ELLIPSIS)], patterns=["src/knockout/*.py", "src/knockout/*/*.py"])
    + Sybil(
        parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
        patterns=["README.md", "docs/*.md", "docs/api/*.md"],
    )
).pytest()
