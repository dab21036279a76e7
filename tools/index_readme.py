"""Make the links and pictures of README.md absolute: an index such as PyPI shows no others.

python tools/index_readme.py https://github.com/OWNER/NAME TAG

The release workflow does this before it builds, because only there the address is known.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#)[^)\s]+)\)")


def absolute(text: str, address: str, version: str) -> str:
    """Replace every relative address: pages by those of the repository, pictures by the files themselves."""

    def one(found: re.Match[str]) -> str:
        path = found["target"].partition("#")[0]
        kind = "raw" if found["picture"] else "tree" if (ROOT / path).is_dir() else "blob"
        return (
            f"{found['picture']}[{found['text']}]({address.rstrip('/')}/{kind}/{version}/{found['target']})"
        )

    return LINK.sub(one, text)


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(absolute(page.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
