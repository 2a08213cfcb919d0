"""Links inside the built site: every one leads to a file, and to an anchor of it if it names one.

``python docs/_ext/link_check.py FOLDER`` checks a site that was built before.
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Collect what the tag links to, and its anchor."""
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links |= {given[key] for key in ("href", "src") if given.get(key)}


_read = cache(_Page)


def broken_links(site):
    """Pages and links that lead nowhere."""
    for page in sorted(Path(site).resolve().rglob("*.html")):
        for link in sorted(_read(page).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            is_page = target.suffix == ".html"
            if not target.is_file() or (anchor and is_page and anchor not in _read(target).anchors):
                yield f"{page.relative_to(Path(site).resolve())}: {link}"


def _check(app, exception):
    if exception is None and app.builder.format == "html":
        found = list(broken_links(app.outdir))
        if found:
            raise ValueError("links that lead nowhere:\n" + "\n".join(found))


def setup(app):
    """Check the links when a build ends."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    found = list(broken_links(sys.argv[1]))
    print("\n".join(found) or "every link leads somewhere")
    sys.exit(bool(found))
