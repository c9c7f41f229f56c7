"""A figure that a notebook shows by itself. A module of its own, since it imports matplotlib."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A matplotlib Figure that notebooks show as an image also without `%matplotlib inline`, whose
    own images come first where it was given.
    """

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", bbox_inches="tight")
        return image.getvalue()
