"""Write the reference pages that come from the code, or check that they are up to date.

    python docs/generate.py [--check]

With --check nothing is written; a page that differs is named and the exit code is 1.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.config.describe import configuration_markdown
from gateway.observability.catalog import metrics_markdown

PAGES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("configuration.md", configuration_markdown),
    ("metrics.md", metrics_markdown),
)


def stale_pages(docs: Path) -> dict[Path, str]:
    """Return the text that each page of `docs` should have and does not."""
    wanted = {docs / name: describe().rstrip() + "\n" for name, describe in PAGES}
    return {
        page: text
        for page, text in wanted.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text
    }


def main() -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    check: bool = parser.parse_args().check
    stale = stale_pages(Path(__file__).parent)
    for page, text in stale.items():
        if check:
            print(f"docs/{page.name} differs from the code: run `make docs`", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(f"wrote docs/{page.name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
