"""The language of README, docs, docstrings, help, errors and reports: rules that a script can hold.

``make lint`` runs this file. It imports neither torch nor leanbayes.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "research", "examples", "docs/tutorials")
SOURCES = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "docs" / "tutorials").glob("*.py"))
PAGES = [page for page in PAGES if "_build" not in page.parts]


class Text(NamedTuple):
    """A paragraph, heading, table cell or string, and where it stands."""

    place: str
    line: int
    kind: str
    words: str


BRITISH = (
    r"colour|behaviour|favour|neighbour|honour|labell|modell(?!e\b)|cancell(?!ation)|travell|"
    r"learnt|spelt|licence|centre|metre\b|grey|analyse|catalogu|artefact|towards|whilst|"
    r"(?:normal|optim|standard|factor|initial|minim|maxim|penal|random|binar|parametr|parameter|"
    r"general|regular|summar|organ|real|special|visual|quant|linear|symmetr|marginal|vector|"
    r"serial|material|token|memor|synchron|util|recogn|local|categor|central|character)"
    r"is(?:e|ed|es|ing|ation|ations|er|ers)\b"
)
EVERYWHERE = {
    "words that readers of other libraries do not expect": (
        r"\b(?:foreign|told|anew|by heart|there as here|in sight|what came out|the way of|"
        r"doors?|rooms?|house|of (?:its|their) own|lies? in|tells?\b.{0,40}\bapart)\b"
    ),
    "is not a X, never is no X": (
        r"(?<![Tt]here )(?<!where )\b(?:is|are|was|were|be) no\b"
        r"(?! (?:longer|more|less|better|worse|larger|smaller|faster|slower|wider|further|other)\b)"
    ),
    "per example, never an example, after a count": (
        r"\b(?:\d[\d,.]*|one|two|three|four|five|ten|twenty) (?:\w+ )?"
        r"(?!(?:of|or|in|into|where|than|that|take|stays|for|let|is) )\w+ an? "
        r"(?:example|weight|row|prediction|layer|step|epoch|batch|image|"
        r"sample|pixel|second|draw|line|run|seed|matrix|column|unit|channel|member|call|class|"
        r"target|output|parameter|token|method|network|side|year|day)\b"
        r"|\b(?:nats|bits|bytes|MB|ms|(?:milli)?seconds|µs) an? \w+"
    ),
    "American spelling, as in torch": rf"\b\w*?(?:{BRITISH})\w*",
    "95%, without a space": r"\d\s%(?!\w)",
    "313,600, with commas": r"(?<![\w.,/-])\d{1,3}[  ]\d{3}(?![\w.]|,\d)",
    "<0.001 instead of 0.000": r"± 0\.0+(?!\d)",
}
LONG_NUMBER = r"(?<![\w.,/=:#-])\d{5,}(?![\w-]|\.\d|,\d)"
QUESTION = r"(?:What|Where|Which|How|Why|When|Who|Whose|Whether)\b"
MOST_WORDS = 25
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|eq|vs|cf|Fig|fig|et al|approx|No|Sect|resp|st|s\.e)\.")
NOT_IMPERATIVE = re.compile(
    r"(?:The|A|An|Whether|How|What|All|Every|Each|One|Another|Some|Those|Its|Their|Both|Several|"
    r"Which|Where|Of|In|From|By|As|At|With|Without|Numbers|Returns|Makes|Gives|Draws|Reads|Writes|"
    r"Whose|That|This|``)\b|``|[a-z]"
)


def prose(text):
    """Return Markdown or a docstring without code, links' addresses, formulas and markup."""
    text = re.sub(r"``[^`]*``|`[^`\n]*`", "`code`", text)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "`formula`", text, flags=re.S)
    text = re.sub(r"!?\[([^\]]*)\]\((?:[^()]|\([^()]*\))*\)", r"\1", text)
    text = re.sub(r"<!--.*?-->|</?\w[^>]*>", "", text, flags=re.S)
    return re.sub(r"https?://\S+|\{\w+\}`code`|[*_]{2,}", "", text)


def page_text(page):
    """Return Markdown; of a tutorial the lines of its text cells, the others left empty."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    lines, in_text = [], False
    for line in text.split("\n"):
        in_text = line == "# %% [markdown]" if line.startswith("# %%") else in_text
        lines.append(line[2:] if in_text and not line.startswith("# %%") else "")
    return "\n".join(lines)


@cache
def pages():
    """Return headings, table rows and paragraphs of all pages."""
    found = []
    for page in PAGES:
        text = page_text(page)
        text = re.sub(
            r"^(```|:::)[^\n]*\n.*?^\1\s*$",
            lambda m: "\n" * m[0].count("\n"),
            text,
            flags=re.S | re.M,
        )
        text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
        place, paragraph, start = page.relative_to(ROOT).as_posix(), [], 1
        for number, line in enumerate([*text.split("\n"), ""], 1):
            kind = "heading" if line.startswith("#") else "row" if line.startswith("|") else ""
            item = re.match(r"\s*(?:[-*]|\d+\.|:)\s", line)
            if (kind or item or not line.strip()) and paragraph:
                found.append(Text(place, start, "paragraph", prose(" ".join(paragraph))))
                paragraph = []
            if kind:
                found.append(Text(place, number, kind, prose(line.lstrip("# "))))
            elif line.strip() and not line.startswith(("    ", "```")):
                start = start if paragraph else number
                paragraph.append(line[item.end() :] if item else line.strip())
    return found


@cache
def strings():
    """Return docstrings, without their examples, and all strings that have a space."""
    found = []
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
            if isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if id(node) in documented:
                    text = re.sub(
                        r"^\s*(?:>>>|\.\.\.).*?(?=\n\s*\n|\Z)", "", text, flags=re.S | re.M
                    )
                elif " " not in text.strip():
                    continue
                kind = "docstring" if id(node) in documented else "string"
                if kind == "docstring" and place.startswith("research"):
                    continue  # read by developers only
                found.append(Text(place, node.lineno, kind, prose(text)))
    return found


def broken(rule, texts, flags=0):
    """Return ``place:line: found`` for every text that breaks a rule."""
    return [
        f"{text.place}:{text.line}: {match[0]!r} in {' '.join(around.split())!r}"
        for text in texts
        for match in re.finditer(rule, text.words, flags)
        for around in [text.words[max(0, match.start() - 40) : match.end() + 40]]
    ]


def show(findings):
    """Fail with all findings, one per line."""
    assert not findings, f"{len(findings)} findings:\n" + "\n".join(findings)


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_words_and_numbers(rule):
    show(broken(EVERYWHERE[rule], [*pages(), *strings()], re.I if "spell" in rule else 0))


def test_numbers_of_five_digits_have_commas_on_pages():
    show(broken(LONG_NUMBER, pages()))


def test_headings_are_no_questions():
    show(broken(rf"^{QUESTION}", [text for text in pages() if text.kind == "heading"]))


def sentences(text):
    """Yield the sentences of a text; list items and entries of arguments are separate."""
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*] )|\n(?=\s+\w+: )", text):
        whole = ABBREVIATIONS.sub(lambda match: match[0].replace(".", ""), part)
        yield from re.split(r"(?<=[.!?:;])[\"”)*]*\s+", whole)


def test_sentences_are_short():
    texts = [text for text in pages() if text.kind == "paragraph"]
    texts += [text for text in strings() if text.kind == "docstring"]
    found = []
    for text in texts:
        for sentence in sentences(text.words):
            count = len(re.findall(r"[\w`’'×±<>=/.,%+−-]*\w[\w`’'-]*", sentence))
            if count > MOST_WORDS:
                found.append(f"{text.place}:{text.line}: {count} words: {sentence}")
    show(found)


def public_functions():
    """Yield public functions and methods, except properties, with their files."""
    for path in SOURCES:
        if "src" not in path.relative_to(ROOT).parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_")]
        for node in (node for owner in owners for node in owner.body):
            decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
            if not isinstance(node, ast.FunctionDef) or "property" in decorators:
                continue
            if node.name[0] != "_" and (docstring := ast.get_docstring(node)):
                yield Text(path.relative_to(ROOT).as_posix(), node.lineno, "", docstring)


def test_docstrings_of_functions_begin_with_an_imperative():
    show(
        [
            f"{text.place}:{text.line}: {text.words.splitlines()[0]}"
            for text in public_functions()
            if NOT_IMPERATIVE.match(text.words)
        ]
    )


def test_entries_of_arguments_begin_with_a_noun_phrase():
    entry = r"^ {4,}\w+(?: \([^)]*\))?: (?:how|what|where|which|who|why|of|as|in|by|gives)\b"
    docstrings = [text for text in strings() if text.kind == "docstring"]
    show(broken(entry, docstrings, re.MULTILINE | re.IGNORECASE))
