"""A page as headless Chromium shows it: what it measures in both colour schemes and two widths."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (360, 1280)  # CSS pixels: a phone, and a window on a desk
# Text at the least contrast of WCAG 2.2, level AA.
CONTRAST = 4.5
# Around the page: it has no scripts of its own, and a frame can be narrower than a window.
HARNESS = """<!doctype html><meta charset="utf-8"><pre id="seen"></pre>
FRAMES
<script>
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const channels = colour => colour.match(/[\\d.]+/g).map(Number);
const ground = (element, view) => {
  for (let one = element; one; one = one.parentElement) {
    const [r, g, b, alpha = 1] = channels(view.getComputedStyle(one).backgroundColor);
    if (alpha === 1) return [r, g, b];
    if (alpha > 0) throw new Error("a ground that shines through");
  }
  return [255, 255, 255];
};
const contrasts = (view) => [...view.document.body.querySelectorAll("*")]
  .filter(one => [...one.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(one => {
    const text = luminance(channels(view.getComputedStyle(one).color));
    const behind = luminance(ground(one, view));
    const [low, high] = [text, behind].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), one.textContent.trim().slice(0, 40)];
  });
const look = (view) => {
  const page = view.document;
  const link = page.querySelector("#matrix td a");
  if (link) link.click();
  const shown = link && page.getElementById(link.getAttribute("href").slice(1));
  return {
    over: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    ground: ground(page.body, view),
    contrast: contrasts(view).sort((a, b) => a[0] - b[0])[0],
    opened: shown ? shown.checkVisibility({contentVisibilityAuto: true}) : null,
    top: shown ? shown.getBoundingClientRect().top : null,
    scripts: page.scripts.length,
    marked: view.marked ?? null,
    fetched: view.performance.getEntriesByType("resource").map(one => one.name)
      .filter(name => !name.startsWith("data:")),
    images: [...page.images].map(one => one.naturalWidth),
  };
};
addEventListener("load", () => {
  let answer;
  try {
    answer = [...document.querySelectorAll("iframe")].map(one => look(one.contentWindow));
  } catch (error) {
    answer = String(error);
  }
  document.getElementById("seen").textContent = encodeURIComponent(JSON.stringify(answer));
});
</script>
"""


def chromium() -> str:
    """The browser of this machine; without one the test fails and says what to type."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.fail("no Chromium here, and the page is tested in it: apt-get install chromium")


def look(page: Path, scratch: Path, *, dark: bool) -> dict[int, dict[str, Any]]:
    """Width in CSS pixels to what the page is like there, once a cell of its matrix is clicked.

    over: CSS pixels that it is wider than the window. ground: of the body, red, green and blue.
    contrast: the least of any text, and the beginning of that. opened: whether what the cell links
    to shows; top: where, in CSS pixels. scripts: in the page. marked: what a script of it would
    have left in `window.marked`. fetched: addresses of what was loaded. images: their widths.
    Raises AssertionError when Chromium does not answer.
    """
    frames = "".join(
        f'<iframe src="{page.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
        for width in WIDTHS
    )
    harness = scratch / "harness.html"
    harness.write_text(re.sub(r"^FRAMES$", frames, HARNESS, count=1, flags=re.MULTILINE))
    done = subprocess.run(
        [
            *(chromium(), "--headless", "--disable-gpu", f"--user-data-dir={scratch / 'profile'}"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "--allow-file-access-from-files",
            f"--blink-settings=preferredColorScheme={int(not dark)}",
            "--dump-dom",
            harness.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    seen = re.search(r'<pre id="seen">([^<]+)</pre>', done.stdout)
    assert seen, done.stderr
    answer = json.loads(urllib.parse.unquote(seen[1]))
    assert isinstance(answer, list), answer
    return dict(zip(WIDTHS, answer, strict=True))
