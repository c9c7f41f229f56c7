"""What is closed at the end of a `with` block."""

from typing import Self


class Closing:
    """Makes a class with `close()` a context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError
