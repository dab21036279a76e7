"""Make the links and pictures of README.md absolute, and add the project's addresses to pyproject.toml.

python tools/index_readme.py https://github.com/OWNER/NAME TAG

The release workflow does this before it builds, because only there the address is known. PyPI shows no
relative links.
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


def with_urls(text: str, address: str, version: str) -> str:
    """Add what PyPI shows beside the README to the text of pyproject.toml."""
    owner, name = address.rstrip("/").split("/")[-2:]
    urls = {
        "Documentation": f"https://{owner}.github.io/{name}/",  # where docs.yml publishes
        "Source": address,
        "Changelog": f"{address}/blob/{version}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = "".join(f'{what} = "{where}"\n' for what, where in urls.items())
    return text.replace("[project.urls]\n", f"[project.urls]\n{lines}")


if __name__ == "__main__":
    for file, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / file
        path.write_text(change(path.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
