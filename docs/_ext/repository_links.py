"""Links to files of the repository that are not pages: their text, and the path as code.

Links to example programs become downloads.
"""

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:]+)\)")


def _shown(root, page, link):
    text, target = link.groups()
    file = (page.parent / target.partition("#")[0]).resolve()
    docs = root / "docs"
    if not target.partition("#")[0] or not file.is_relative_to(root):
        return link[0]
    if file.is_relative_to(docs) and (file.suffix == ".md" or file.parent.name == "tutorials"):
        return link[0]
    path = file.relative_to(root).as_posix()
    if file.parent == root / "examples":
        return f"{{download}}`{text} <{target}>`"
    return f"`{path}`" if text.strip("`") in (path, file.name) else f"{text} (`{path}`)"


def rewrite(app, docname, source):
    """Replace links that leave the site, which has no files of the repository."""
    page = Path(app.env.doc2path(docname))
    root = Path(app.srcdir).parent
    source[0] = LINK.sub(lambda link: _shown(root, page, link), source[0])


def setup(app):
    """Register the rewriting of sources."""
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True}
