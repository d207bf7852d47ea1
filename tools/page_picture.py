#!/usr/bin/env python3
"""Makes docs/images/page.png, README's picture of the page: a screenshot in headless Chromium.

usage: page_picture.py PAGE.html [PICTURE.png]

  tonnage run --gpu "RTX 3060" --html page.html -- \\
      python examples/train_resnet50.py --batch-size 64 --steps 3
  tools/page_picture.py page.html
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from browser import Browser  # noqa: E402

WIDTH, HEIGHT = 1280, 700  # CSS pixels


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    page = pathlib.Path(sys.argv[1]).resolve()
    picture = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/images/page.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(folder, WIDTH, HEIGHT) as browser:
        browser.open(page)
        browser.screenshot(picture)
    if convert := shutil.which("convert"):  # ImageMagick: a third of the bytes with 128 colours
        subprocess.run([convert, picture, "+dither", "-colors", "128", "-strip", f"PNG8:{picture}"],
                       check=True)
    print(f"{picture}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
