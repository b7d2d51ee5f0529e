"""Links of Markdown files that work on GitHub become links of the site."""

import pytest

from docs.site.hooks import rewrite, with_links

CONFIGS = {"clm"}


@pytest.mark.parametrize(
    ("source", "page", "link", "expected"),
    [
        ("docs/running.md", "running.md", "[c](comparing.md#x)", "[c](comparing.md#x)"),
        ("docs/running.md", "running.md", "[clm](../configs/clm.py)", "[clm](objectives/clm.md)"),
        ("docs/running.md", "running.md", "[base](../configs/base.py)", "[base](configs.md)"),
        ("docs/running.md", "running.md", "[the store](../data/store/store.py)", "the store (`data/store/store.py`)"),
        ("docs/running.md", "running.md", "[data/store/store.py](../data/store/store.py)", "`data/store/store.py`"),
        ("docs/data.md", "data.md", "[docs/examples/pairs.jsonl](examples/pairs.jsonl)", "`docs/examples/pairs.jsonl`"),
        ("CONTRIBUTING.md", "contributing.md", "[a](docs/running.md)", "[a](running.md)"),
        ("docs/running.md", "running.md", "[missing](../nowhere.py)", "[missing](../nowhere.py)"),
        ("docs/running.md", "running.md", "[web](https://x.org/a.py)", "[web](https://x.org/a.py)"),
        ("docs/running.md", "running.md", "`[code](../data/store/store.py)`", "`[code](../data/store/store.py)`"),
        ("docs/running.md", "running.md", "    [code](../data/store/store.py)", "    [code](../data/store/store.py)"),
        ("docs/running.md", "running.md", "[[R]](../data/store/store.py)", "[R] (`data/store/store.py`)"),
    ],
)
def test_a_link_leads_to_a_page_or_becomes_code(source, page, link, expected):
    assert rewrite(link, page, source, CONFIGS) == expected


def test_links_after_a_code_block_are_rewritten():
    link = "(../data/store/store.py)"
    text = f"```python\nx = a[0](1)\n```\n[s]{link}\n\n    [t]{link}\n\n[u]{link}"
    rewritten = rewrite(text, "running.md", "docs/running.md", CONFIGS)
    assert rewritten == text.replace("[s](../data/store/store.py)", "s (`data/store/store.py`)").replace(
        "[u](../data/store/store.py)", "u (`data/store/store.py`)"
    )


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("configs.md", "See `docs/gym.md`.", "See [`docs/gym.md`](gym.md)."),
        ("configs.md", "`docs/chains.md`#from-a-teacher.", "[`docs/chains.md`](chains.md#from-a-teacher)."),
        (
            "configs.md",
            "`configs/clm.py`, `configs/base.py`",
            "[`configs/clm.py`](objectives/clm.md), `configs/base.py`",
        ),
        ("objectives/clm.md", "`docs/gym.md`, `configs/clm.py`", "[`docs/gym.md`](../gym.md), `configs/clm.py`"),
        ("configs.md", "`configs/recipes.py`, `run/step.py`", "`configs/recipes.py`, `run/step.py`"),
        ("configs.md", "```text\n`docs/gym.md`\n```", "```text\n`docs/gym.md`\n```"),
    ],
)
def test_files_that_comments_name_are_links_on_generated_pages(page, text, expected):
    linked = with_links(text, page, CONFIGS)
    assert linked == expected == rewrite(linked, page, f"docs/{page}", CONFIGS)
