"""Reports opened from disk in headless Chromium (`make browser`): no console message, no request, both colour
schemes, a narrow screen, and sliders that choose what was computed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import meshwright.reporting

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
BROWSER = "not an origin"  # who asks for what the browser itself wants: updates, the time
DARK = "--blink-settings=preferredColorScheme=0"
CASES = {
    "dense": ("llama-3.1-8b", "16xh100", {"pp": 2}),
    "experts that do not fit": ("mixtral-8x7b", "8xh100", {"zero": 0}),
    "one chip": ("llama-3.2-1b", "1xh100", {}),
}


@pytest.fixture(scope="module", params=CASES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, on, fixed = CASES[request.param]
    path = tmp_path_factory.mktemp("page") / "report.html"
    meshwright.reporting.report(model, on, seq_len="4k", global_batch_size=32, path=path, **fixed)
    return path


def opened(path: Path, *flags: str) -> tuple[str, list[str], list[str]]:
    """(the document after its scripts ran, console messages, addresses that the page asked for)."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert browser, "no Chromium here: make browser installs it for root, or apt-get install chromium"
    log = path.with_suffix(".net.json")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={path.parent / 'profile'}", f"--log-net-log={log}", *flags,
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    told = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    asked = [p["url"] for p in told if "url" in p and p.get("initiator", BROWSER) != BROWSER]
    return done.stdout, console, asked


def probed(path: Path, script: str, *flags: str) -> str:
    """What `script` leaves in the page's title."""
    other = path.with_name("probed.html")
    said = f"<script>document.title=(()=>{{{script}}})()</script></body>"
    other.write_text(path.read_text(encoding="utf-8").replace("</body>", said), encoding="utf-8")
    dom, console, _ = opened(other, *flags)
    assert console == []
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert found
    return found[1]


def test_console_and_requests_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("seen")</script>')
    _, console, asked = opened(path)
    assert any("seen" in line for line in console)
    assert "http://127.0.0.1:9/x.png" in asked


def test_a_page_opens_quietly(page: Path) -> None:
    dom, console, asked = opened(page)
    assert console == []
    assert asked == []
    assert "</footer>" in dom


def test_both_colour_schemes(page: Path) -> None:
    script = "return getComputedStyle(document.body).backgroundColor"
    assert probed(page, script, "--blink-settings=preferredColorScheme=1") == "rgb(255, 255, 255)"
    assert probed(page, script, DARK) == "rgb(17, 21, 26)"


def test_a_narrow_screen_scrolls_no_page_sideways(page: Path) -> None:
    script = "return document.documentElement.scrollWidth-innerWidth"
    assert int(probed(page, script, "--window-size=500,900")) <= 0


def test_sliders_choose_rows(page: Path) -> None:
    script = """
        const told=[];
        document.querySelectorAll("[data-slider]").forEach(s=>{
          const i=s.querySelector("input"),rows=s.querySelectorAll("tbody tr");
          i.value=rows.length-1;i.dispatchEvent(new Event("input"));
          told.push([s.querySelector("output").textContent===rows[rows.length-1].dataset.said,
            s.querySelectorAll("tr.on").length,i.getAttribute("aria-valuetext")!=="",
            getComputedStyle(s.querySelector(".slider")).display]);
        });
        return JSON.stringify(told)"""
    told = json.loads(probed(page, script))
    assert told
    assert all(one == [True, 1, True, "grid"] for one in told)


def test_everything_is_reached_by_keyboard(page: Path) -> None:
    script = """
        const wide=[...document.querySelectorAll(".scroll")];
        return [wide.length>0, wide.every(e=>e.tabIndex===0&&e.getAttribute("aria-label")),
          [...document.querySelectorAll("input")].every(e=>e.labels.length===1)].join()"""
    assert probed(page, script) == "true,true,true"
