"""Links of Markdown files that work on GitHub, rewritten for the site."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site, and files in whose place a page of docs/ or a generated one is.
COPIED = {"BENCHMARKS.md": "benchmarks.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
ROOT_PAGES = COPIED | {"README.md": "index.md", "configs/base.py": "configs.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`|^ {4}[^\n]*$)", re.DOTALL | re.MULTILINE)


def rewrite(markdown: str, page: str, source: str, configs: set[str]) -> str:
    """Returns `markdown` with links to files outside docs/ made links to pages of the site, or code.

    Args:
      page: the page on the site, relative to docs/, as in "objectives/clm.md".
      source: the file that links are relative to, relative to the repository, as in "docs/running.md".
      configs: the configs that have a page.
    """

    def link(match: re.Match) -> str:
        image, text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        target, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        on_site = _page_of(path, configs)
        if on_site:
            relative = posixpath.relpath(on_site, posixpath.dirname(page) or ".")
            return f"{image}[{text}]({relative}{hash_}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # mkdocs --strict reports it
        plain = text.strip("`")
        return f"`{path}`" if plain in (path, target, posixpath.basename(path)) else f"{text} (`{path}`)"

    parts = _CODE.split(markdown)
    return "".join(part if k % 2 else _LINK.sub(link, part) for k, part in enumerate(parts))


def _page_of(path: str, configs: set[str]) -> str | None:
    """Returns the page of the site that shows a file of the repository; None if no page does."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    config = re.fullmatch(r"configs/(\w+)\.py", path)
    if config and config[1] in configs:
        return f"objectives/{config[1]}.md"
    inside = path.removeprefix("docs/")
    return inside if path != inside and not inside.startswith(("site/", "examples/")) else None
