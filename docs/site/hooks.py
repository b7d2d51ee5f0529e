"""mkdocs hooks of the site: the navigation, the generated pages and the links.

mkdocs calls these functions, which mkdocs.yml names. Nothing generated is written into docs/.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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

    from docs.site import links, pages

    generated = {f"objectives/{name}.md": pages.objective_page(name) for name in pages.config_names()}
    generated["configs.md"] = pages.configs_page()
    generated |= {page: (ROOT / source).read_text(encoding="utf-8") for source, page in links.COPIED.items()}
    for path, content in generated.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites links to files of the repository."""
    del config, files
    from docs.site import links, pages

    path = page.file.src_uri
    source = {on_site: source for source, on_site in links.COPIED.items()}.get(path, f"docs/{path}")
    return links.rewrite(markdown, path, source, set(pages.config_names()))


def on_page_content(html, page, config, files):
    """Puts the examples of train.show into the page of a config."""
    del config, files
    from docs.site import examples, pages

    if pages.EXAMPLES in html:
        name = Path(page.file.src_uri).stem
        with tempfile.TemporaryDirectory() as cache_dir:
            html = html.replace(pages.EXAMPLES, examples.examples(name, ROOT, cache_dir))
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
