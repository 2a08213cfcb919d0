"""Reads the pages that reports are."""

import base64
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Reads a page; fails where a tag is not closed in its turn."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.headings, self.notices, self.attributes = [], [], [], [], []
        self.text = ""
        self.feed(Path(path).read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class")))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1][0] == "h3":
            self.headings.append(data)
        if ("p", "notice") in self.open:
            self.notices.append(data)

    def images(self):
        sources = [value for tag, key, value in self.attributes if (tag, key) == ("img", "src")]
        prefix = "data:image/"
        assert all(source.startswith(prefix) for source in sources)
        found = [source.removeprefix(prefix).split(";base64,") for source in sources]
        assert {kind for kind, _ in found} <= {"png", "svg+xml"}
        return [base64.b64decode(data, validate=True) for _, data in found]

    def captions(self):
        """What stands under the figures."""
        return [value for tag, key, value in self.attributes if (tag, key) == ("img", "alt")]
