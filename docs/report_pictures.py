"""Make the pictures of docs/reference/report.md: the first screens of the demo's report, wide and narrow.

python docs/report_pictures.py              # runs the demo first
python docs/report_pictures.py report.html  # from a report that is there
"""

import sys
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp

from PIL import Image
from playwright.sync_api import sync_playwright

from log1pnmf.cli import main as run_command

IMAGES = Path(__file__).parent / "img"
HEIGHT = {1280: 1380, 390: 1380}
COLOURS = 128


def main(arguments: list[str]) -> None:
    folder = Path(mkdtemp())
    if not arguments:
        run_command(["demo", "-o", str(folder)])
    report = Path(arguments[0]) if arguments else folder / "run" / "report.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for width, height in HEIGHT.items():
            tab = browser.new_page(viewport={"width": width, "height": height})
            tab.goto(report.resolve().as_uri())
            picture = Image.open(BytesIO(tab.screenshot())).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(
                IMAGES / f"report-{width}.png", optimize=True
            )
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
