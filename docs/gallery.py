"""Draw the pictures of the gallery: run the code of the page, save each figure under its name there.

python docs/gallery.py            # all pictures
python docs/gallery.py structure  # some of them; the code before them is run as well
"""

from __future__ import annotations

import re
import sys
import warnings
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot
from PIL import Image

PAGE = Path(__file__).parent / "gallery" / "index.md"
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n!\[[^\]]*\]\((\.\./img/gallery/[\w-]+\.png)\))?", re.DOTALL | re.MULTILINE
)
COLOURS = 256


def main(names: list[str]) -> None:
    mpl.use("Agg")
    warnings.simplefilter("ignore")
    (PAGE.parents[1] / "img" / "gallery").mkdir(exist_ok=True)
    namespace: dict = {}
    for code, picture in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        exec(code, namespace)
        if picture and (not names or Path(picture).stem in names):
            save(PAGE.parent / picture)
        pyplot.close("all")


def save(path: Path) -> None:
    """Write the current figure with few colours: a third of the bytes, and no difference to be seen."""
    drawn = BytesIO()
    pyplot.gcf().savefig(drawn, dpi=110, bbox_inches="tight", facecolor="white")
    picture = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
