"""The command line: a file for each group of commands, or for two that belong together.

Each command parses its options, imports one function, calls it, and shows what it returns. So
`--help` loads no heavy library.
"""

from featstore.tools.cli.program import cli as cli
from featstore.tools.cli.program import console as console
from featstore.tools.cli.program import main as main
