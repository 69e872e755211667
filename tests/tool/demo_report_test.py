#!/usr/bin/env python3
"""The report that the demo leaves: complete, in one file, and readable in a real browser.

    demo_report_test.py [--browser] build/demo/report.html

With --browser it is opened in Chromium, and the test is skipped (exit code 77) where there is none.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from html.parser import HTMLParser
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SKIPPED = 77
COLOURS = {"compute": (0x3b, 0x82, 0xc4), "transfer": (0xe8, 0x91, 0x2d),
           "generate": (0x58, 0xa5, 0x5c), "failed": (0xd1, 0x24, 0x2f)}


class Page(HTMLParser):
    """What the page has: pictures, bars by class, and everything that it would load."""

    def __init__(self, text):
        super().__init__()
        self.pictures = []
        self.bars = {}
        self.loads = []
        self.body = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "svg":
            self.pictures.append(values.get("aria-label", ""))
        if tag == "rect":
            name = values.get("class", "")
            self.bars[name] = self.bars.get(name, 0) + 1
        if tag == "body":
            self.body = values
        self.loads += [values[key] for key in ("src", "href", "data") if values.get(key)]


def check_file(path):
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    if page.loads or "@import" in text or "url(" in text or "http://" in text or "https://" in text:
        yield f"the page loads something: {page.loads}"
    if "FAILED" in text:
        yield "the page shows a check that failed"
    if len(page.pictures) < 4:
        yield f"all processes, one request, and the requests of two that died: {page.pictures}"
    for name in ("compute", "transfer", "generate", "failed"):
        if page.bars.get(name, 0) == 0:
            yield f"no bar of the class {name}"
    for words in ("prefill-1 killed", "prefill-2 stopped", "decode-2 drained", "failed: PeerLost",
                  "layer 0: all of it at the decoder", "layer 5: all of it at the decoder",
                  "tokens 0 to", "pages not proved quiet yet", " total, 0 lost",
                  "0 freed pages touched"):
        if words not in text:
            yield f"the page does not say: {words}"
    numbers = re.findall(r'\s(?:x|y|width|height|[xy][12])="([^"]*)"', text)
    if not all(re.fullmatch(r"-?\d+(\.\d+)?", number) for number in numbers):
        yield "a coordinate that is not a number"


def pixels(png):
    """The rows of an 8-bit RGB or RGBA image, as Chromium writes it."""
    at, data, header = 8, b"", b""
    while at < len(png):
        size = int.from_bytes(png[at:at + 4], "big")
        kind, body = png[at + 4:at + 8], png[at + 8:at + 8 + size]
        header = body if kind == b"IHDR" else header
        data += body if kind == b"IDAT" else b""
        at += 12 + size
    width, step = int.from_bytes(header[:4], "big"), {2: 3, 6: 4}[header[9]]
    raw, stride, before = zlib.decompress(data), width * step, bytes(width * step)
    for start in range(0, len(raw), stride + 1):
        mode, row = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        for i in range(stride):
            left = row[i - step] if i >= step else 0
            up, corner = before[i], before[i - step] if i >= step else 0
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, up, (left + up) // 2, nearest)[mode]) & 255
        before = bytes(row)
        yield [tuple(row[i:i + 3]) for i in range(0, stride, step)]


def check_in_browser(browser, path):
    with tempfile.TemporaryDirectory() as folder:
        common = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                  "--window-size=1280,1200", f"--user-data-dir={folder}"]
        address = path.resolve().as_uri()
        dom = subprocess.run([*common, "--dump-dom", address], capture_output=True, text=True,
                             timeout=60, check=True).stdout
        body = Page(dom).body
        if int(body.get("data-pictures", 0)) < 4:
            yield f"the browser shows {body.get('data-pictures', 'no')} pictures"
        if body.get("data-wrong", "nothing was measured") != "":
            yield f"in the browser: {body.get('data-wrong', 'nothing was measured')}"
        shot = Path(folder) / "report.png"
        subprocess.run([*common, f"--screenshot={shot}", address], capture_output=True, timeout=60,
                       check=True)
        seen = set()
        for row in pixels(shot.read_bytes()):
            seen.update(row)
        for name, colour in COLOURS.items():
            if colour not in seen:
                yield f"no pixel in the colour of {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("report", type=Path)
    options = parser.parse_args()
    if options.browser:
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            print(f"skipped: no browser: none of {', '.join(BROWSERS)} is installed; "
                  "scripts/install-deps browser installs one")
            return SKIPPED
        findings = list(check_in_browser(browser, options.report))
    else:
        findings = list(check_file(options.report))
    for finding in findings:
        print(finding)
    print(f"report: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
