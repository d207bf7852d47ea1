"""The HTML report: what it works out by itself, and how it behaves in a browser (headless Chromium; skipped where there is none)."""
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = ROOT / "tests/data/snapshots"
LEAK = SNAPSHOTS / "leak_loss.pickle.xz"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture
def page_of(tonnage, tmp_path):
    def call(*files, command="explain"):
        page = tmp_path / "page.html"
        answer = tonnage(command, *files, "--html", page, "--force", "--output", tmp_path / "text")
        assert answer.code == 0, answer.err
        return page
    return call


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_what_the_page_works_out_is_what_the_report_says(tonnage, tmp_path):
    pages = []
    for name in ("streams_expandable", "leak_loss", "steps_unet_b4", "oom_fragment"):
        pages.append(tmp_path / f"{name}.html")
        assert tonnage("explain", "--brief", SNAPSHOTS / f"{name}.pickle.xz", "--html", pages[-1]).code == 0
    checked = subprocess.run(["node", ROOT / "tests/e2e/page_model.js", ROOT / "src/report/assets/model.js", *pages], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert int(checked.stdout) >= 4


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path) as opened:
        yield opened
        assert opened.errors() == []


def press(browser, text):
    browser.js(f"[...document.querySelectorAll('button')].find(one => one.textContent.trim() === {json.dumps(text)}).click()")
    browser.settle()


@needs_chromium
def test_search_legend_and_table(browser, page_of):
    browser.open(page_of(LEAK))
    browser.js("document.querySelector('.allocations').scrollIntoView()")
    browser.settle()
    note = "document.querySelector('.allocations p').textContent"
    every = browser.js(note)
    total = int(every.split(" of ")[1].split()[0].replace(",", ""))
    assert every.startswith(f"{total:,} of {total:,}") and browser.js("document.querySelectorAll('.grid .line').length") < 60
    press(browser, "parameters")  # hides the category
    assert browser.js("[...document.querySelectorAll('.legend-item')].find(one => one.textContent === 'parameters').getAttribute('aria-pressed')") == "false"
    assert int(browser.js(note).split()[0].replace(",", "")) < total
    assert browser.js("[...document.querySelectorAll('.grid .line:not(.head)')].every(one => !one.textContent.includes('parameters'))")
    press(browser, "parameters")
    browser.js("const field = document.getElementById('search'); field.value = 'train.py:45'; field.dispatchEvent(new Event('input'))")
    browser.settle()
    found = int(browser.js("document.querySelector('.top [role=status]').textContent").split()[0].replace(",", ""))
    assert 0 < found < total and browser.js(note).startswith(f"{found:,} of")
    browser.js("document.querySelectorAll('.grid .head button')[5].click()")  # by the event that made it
    assert browser.js("[...document.querySelectorAll('.grid .line:not(.head)')].slice(0, 2).map(one => one.textContent).length") == 2
    assert browser.js("document.querySelectorAll('.grid .head > div')[5].getAttribute('aria-sort')") == "ascending"


@needs_chromium
def test_a_moment_is_held_by_a_click_and_by_its_address(browser, page_of):
    page = page_of(LEAK)
    browser.open(page)
    left, top, width, height = browser.js("(() => { const box = document.querySelector('.u-over').getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()")
    browser.click(left + width * 0.6, top + height * 0.6)
    browser.settle()
    address = browser.js("location.hash")
    assert address.startswith("#t=")
    # The block under the click: its panel has a stack.
    assert not browser.js("document.querySelector('.block').hidden") and browser.js("document.querySelectorAll('.block .stack li').length") > 0
    event = int(address[3:])
    title = browser.js("document.querySelector('.moment h3').textContent")
    assert title.startswith("Held") and f"{event:,}" in title
    flame = browser.js("document.querySelector('.icicle').getAttribute('aria-label')")
    assert f"event {event:,}" in flame
    browser.open(page, address)
    assert browser.js("document.querySelector('.moment h3').textContent") == title
    assert browser.js("document.querySelector('.icicle').getAttribute('aria-label')") == flame
    # One event further, where the chart has no point: figures come from the blocks.
    browser.js("document.querySelector('.chart').focus()")
    browser.key(".", ".")
    browser.settle()
    assert browser.js("location.hash") == f"#t={event + 1}" and f"{event + 1:,}" in browser.js("document.querySelector('.moment h3').textContent")


@needs_chromium
def test_keyboard_and_labels(browser, page_of):
    browser.open(page_of(LEAK))
    browser.key("Tab")
    assert browser.js("document.activeElement.textContent") == "Go to the timeline"
    browser.key("Enter")
    browser.settle()
    assert browser.js("document.activeElement.getAttribute('aria-roledescription')") == "timeline"
    browser.key("ArrowRight")
    assert browser.js("location.hash").startswith("#t=")
    browser.key("Escape")
    assert browser.js("location.hash") == ""
    unnamed = browser.js("[...document.querySelectorAll('canvas, button, select, input, [role]')].filter(one => !one.closest('.u-wrap') && !['row', 'gridcell', 'columnheader'].includes(one.getAttribute('role')) && one.id !== 'said')"
                         ".filter(one => !(one.getAttribute('aria-label') || one.textContent.trim() || (one.labels && one.labels.length) || one.getAttribute('role') === 'status')).map(one => one.outerHTML.slice(0, 120))")
    assert [one for one in unnamed if "search" not in one] == []


@needs_chromium
def test_a_leak_is_drawn_and_advice_is_copied(browser, page_of):
    browser.open(page_of(LEAK))
    assert "growth" in browser.js("document.querySelector('.legend').textContent")
    assert browser.js("document.querySelectorAll('.finding button[aria-label^=copy]').length") > 0
    headline = browser.js("[...document.querySelectorAll('main > h1, main > p')].map(one => one.textContent).join(' ')")
    for finding in browser.js("[...document.querySelectorAll('.finding > p:first-of-type')].map(one => one.textContent)"):
        assert finding not in headline  # what a finding says is not said twice


@needs_chromium
def test_narrow_screens_do_not_scroll_sideways(browser, page_of):
    browser.resize(390, 800)
    browser.open(page_of(LEAK))
    assert browser.js("document.documentElement.scrollWidth") <= 390
    lines = browser.js("[...document.querySelectorAll('td')].filter(one => one.getClientRects().length && one.textContent.length > 4 && one.clientWidth < 30).map(one => one.textContent)")
    assert lines == []


@needs_chromium
def test_two_runs_side_by_side(browser, page_of):
    browser.open(page_of(SNAPSHOTS / "oom_activations.pickle.xz", SNAPSHOTS / "oom_optimizer.pickle.xz", command="diff"))
    assert browser.js("document.querySelectorAll('.pair .chart canvas').length") == 2
    assert "what changed" in browser.js("document.querySelector('main').textContent")
    # Both charts have the same scale.
    assert len(set(browser.js("[...document.querySelectorAll('.side h2')].map(one => one.textContent.split(',')[0])")) & {"before", "after"}) == 2
