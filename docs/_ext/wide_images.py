"""Wide pictures, which a phone scrolls sideways instead of shrinking their text."""

from pathlib import Path

import imagesize
from docutils import nodes

MOST_PIXELS = 900
"""Pictures up to this width are readable on the width of a phone."""


def mark(app, doctree, docname):
    """Add the class ``wide`` to wide pictures."""
    for image in doctree.findall(nodes.image):
        file = Path(app.srcdir) / image["uri"]
        if file.suffix == ".png" and file.is_file() and imagesize.get(file)[0] > MOST_PIXELS:
            image["classes"].append("wide")


def setup(app):
    """Register the marking of pictures."""
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True}
