"""mkdocs hooks of the site: the navigation, the generated pages and the links.

mkdocs calls these functions, which mkdocs.yml names. Nothing generated is written into docs/.
"""

import os
import posixpath
import re
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site, and files in whose place a page of docs/ or a generated one is.
COPIED = {"BENCHMARKS.md": "benchmarks.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
ROOT_PAGES = COPIED | {"README.md": "index.md", "configs/base.py": "configs.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_NAMED = re.compile(r"(?<!\[)`((?:docs|configs)/[\w/]+\.(?:md|py))`(#[\w-]+)?")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`|^ {4}[^\n]*$)", re.DOTALL | re.MULTILINE)


def on_startup(command, dirty):
    """Makes the packages of this repository importable, from any folder."""
    del command, dirty
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of libraries: mkdocs would print each of them
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


def on_config(config):
    """Fills in the navigation: generated pages, reports of studies, and no page that does not exist yet."""
    from docs.site import pages

    objectives = [{pages.title(name): f"objectives/{name}.md"} for name in pages.config_names()]
    reports = sorted((ROOT / "docs" / "results").glob("*/report.md"))
    expansions = {
        "objectives/*.md": objectives,
        "results/*/report.md": [{path.parent.name: f"results/{path.parent.name}/report.md"} for path in reports],
    }
    config.nav = _expanded(config.nav, expansions)
    return config


def on_files(files, config):
    """Adds the generated pages, and the pages that are files of the repository's root."""
    from mkdocs.structure.files import File

    from docs.site import pages

    generated = {f"objectives/{name}.md": pages.objective_page(name) for name in pages.config_names()}
    generated["configs.md"] = pages.configs_page()
    generated |= {page: (ROOT / source).read_text(encoding="utf-8") for source, page in COPIED.items()}
    for path, content in generated.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites links to files of the repository."""
    del config, files
    from docs.site import pages

    path = page.file.src_uri
    source = {on_site: source for source, on_site in COPIED.items()}.get(path, f"docs/{path}")
    configs = set(pages.config_names())
    if path == "configs.md" or path.removeprefix("objectives/").removesuffix(".md") in configs:  # generated
        markdown = with_links(markdown, path, configs)
    return rewrite(markdown, path, source, configs)


def on_page_content(html, page, config, files):
    """Puts the examples of train.show into the page of a config."""
    del config, files
    from docs.site import pages

    if pages.EXAMPLES in html:
        name = Path(page.file.src_uri).stem
        with tempfile.TemporaryDirectory() as cache_dir:
            html = html.replace(pages.EXAMPLES, pages.examples(name, cache_dir))
    return html


def _expanded(nav, expansions):
    """Returns `nav` with patterns replaced by their pages."""
    result = []
    for item in nav:
        title, value = next(iter(item.items())) if isinstance(item, dict) else (None, item)
        if isinstance(value, list):
            if children := _expanded(value, expansions):
                result.append({title: children})
        elif value in expansions:
            result += expansions[value]
        else:
            result.append(item)
    return result


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


def with_links(markdown: str, page: str, configs: set[str]) -> str:
    """Returns `markdown`, of a generated page, with the files in its prose made links to their pages.

    Comments and docstrings name files, as in docs/chains.md#from-a-teacher. page, configs: as in `rewrite`.
    """

    def link(match: re.Match) -> str:
        path, anchor = match.groups(default="")
        on_site = _page_of(path, configs)
        if on_site in (None, page):
            return match[0]
        return f"[`{path}`]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(part if k % 2 else _NAMED.sub(link, part) for k, part in enumerate(parts))


def _page_of(path: str, configs: set[str]) -> str | None:
    """Returns the page of the site that shows a file of the repository; None if no page does."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    config = re.fullmatch(r"configs/(\w+)\.py", path)
    if config and config[1] in configs:
        return f"objectives/{config[1]}.md"
    inside = path.removeprefix("docs/")
    return inside if path != inside and not inside.startswith(("site/", "examples/")) else None
