"""A terminal to write to, since progress bars show on no other stream."""

import io


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
