"""A reader opens every page of the rendered book in Chromium, without a network, on a screen and on a phone.

`make browser` renders the book into _build/test and runs this; BROWSER_PATH names a browser that is not on the PATH.
"""

import contextlib
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
import yaml

from conftest import chapter_functions

sync_api = pytest.importorskip("playwright.sync_api")
sync_api.expect.set_options(timeout=60_000)  # milliseconds, on a machine that may be busy
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import print_book  # noqa: E402

from audit import audit  # noqa: E402
from utils.kernels import affine  # noqa: E402

ROOT = Path(__file__).parent.parent
HTML = ROOT / "_build" / "test" / "_build" / "html"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
MOVED = {Path(old).stem for old in CONFIG["sphinx"]["config"]["redirects"]}
FILES = [*HTML.glob("book/*.html"), *HTML.glob("[gs4]*.html")]
PAGES = sorted(path.relative_to(HTML).as_posix() for path in FILES if path.stem not in MOVED)
FOLDED = [name for name in PAGES if "<details class" in (HTML / name).read_text(encoding="utf-8")]
BROWSER = print_book.browser()
SCREEN = {"width": 1280, "height": 900}
PHONE = {"width": 420, "height": 900}
# What the size of the screen and the mode can change.
CHANGED = [
    "color-contrast",
    "link-in-text-block",
    "region",
    "scrollable-region-focusable",
    "target-size",
]

NOT_OPENED = "The pages were not opened: there is no Chromium; BROWSER_PATH can name one."
pytestmark = [pytest.mark.browser, pytest.mark.skipif(not BROWSER, reason=NOT_OPENED)]
rendered = pytest.mark.skipif(
    not PAGES, reason="The pages were not opened: `make browser` renders them first."
)

READY = """async () => {
  await window.MathJax?.startup?.promise;
  const marks = [...document.querySelectorAll('script[type$="widget-view+json"]')];
  const shown = () => marks.every((mark) => mark.nextElementSibling?.childElementCount);
  for (let n = 0; n < 1200 && !shown(); n++) await new Promise((done) => setTimeout(done, 50));
  await Promise.allSettled([...document.images].map((image) => image.decode()));
}"""
LOOK = r"""() => {
  const found = [];
  for (const image of document.images) {
    const source = image.src.slice(-80);
    if (!image.naturalWidth) found.push(`image not loaded: ${source}`);
    if (!image.alt.trim() || /\.(png|svg|jpg)$/.test(image.alt)) found.push(`image without a text: ${source}`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const hidden = texts.currentNode.parentElement.closest("pre, code, script, style, noscript, mjx-container");
    const raw = texts.currentNode.data.match(/.{0,20}(\\[([]|\$\$|\{(numref|doc|ref|eq|cite|cite:\w)\}).{0,20}/);
    if (raw && !hidden) found.push(`raw: ${raw[0]}`);
  }
  for (const error of document.querySelectorAll('mjx-merror, [data-mml-node="merror"], mjx-container [fill="red"]'))
    found.push(`equation: ${error.dataset.mjxError ?? error.textContent}`);
  for (const mark of document.querySelectorAll('script[type$="widget-view+json"]'))
    if (!mark.nextElementSibling?.querySelector(".jupyter-widgets")) found.push(`widget: ${mark.textContent.trim()}`);
  return found;
}"""
SOURCES = "images => images.map((image) => image.src)"
REACHED = """() => [...document.querySelectorAll("pre, .pst-scrollable-table-container")].every(
  (part) => part.scrollWidth <= part.clientWidth || part.tabIndex >= 0)"""  # the theme sees to it after a while
ALIKE = """() => {
  const looks = ["color", "backgroundColor", "backgroundImage", "opacity", "fontSize", "fontWeight", "position"];
  const keys = new Map([[document, ""]]), seen = new Set();
  for (const part of document.querySelectorAll("*")) {
    const style = getComputedStyle(part), key = [keys.get(part.parentNode), ...looks.map((look) => style[look])].join();
    const shown = part.checkVisibility({visibilityProperty: true});
    keys.set(part, key);
    part.toggleAttribute("data-alike", shown && seen.has(key));
    if (shown) seen.add(key);
  }
}"""  # marks what looks like a part before it, in boxes that look alike: contrast, which takes axe longest, is the same
WIDE = """() => {
  const out = (part) => part.getBoundingClientRect().right > innerWidth + 1;
  const cut = (box) => getComputedStyle(box).overflowX !== "visible" && !out(box);  // or scrolled
  const caught = (part) => part.matches("body") ? false : cut(part) || caught(part.parentElement);
  const parts = [...document.querySelectorAll("article *")].filter((part) => !part.closest("svg"));
  const wide = parts.filter((part) => out(part) && !caught(part.parentElement));
  const found = wide.map((part) => `too wide: ${part.outerHTML.slice(0, 120)}`);
  for (const box of document.querySelectorAll(".cell_output pre, div.math"))
    if (box.scrollWidth > box.clientWidth + 1) found.push(`cut: ${box.textContent.trim().slice(0, 60)}`);
  for (const number of document.querySelectorAll("div.math > .eqno")) {
    const equation = number.parentElement.querySelector("mjx-container").getBoundingClientRect();
    if (number.getBoundingClientRect().top < equation.bottom) found.push(`beside its equation: ${number.innerText}`);
  }
  const page = document.documentElement.scrollWidth - innerWidth;
  return page > 0 ? [`page wider than the screen by ${page}`, ...found] : found;
}"""

CUT = r"""() => {
  const found = [], edges = new Set();
  const look = (what, box, part) => {
    for (; part; part = part.parentElement) {
      const left = part.getBoundingClientRect().left + part.clientLeft, right = left + part.clientWidth;
      const clips = part === document.documentElement || getComputedStyle(part).overflowX !== "visible";
      if (!box.width || (clips && (box.left < left - 0.5 || box.right > right + 0.5)))
        return found.push(`${what}, ${box.left} to ${box.right}, by ${part.outerHTML.slice(0, 60)}`);
    }
  };
  for (const code of document.querySelectorAll(".cell_input .highlight")) {
    const texts = document.createTreeWalker(code.querySelector("pre"), NodeFilter.SHOW_TEXT), range = new Range();
    for (let begins = true; texts.nextNode(); )
      for (const { 0: letter, index } of texts.currentNode.data.matchAll(/\n|\S/g)) {
        range.setStart(texts.currentNode, index);
        range.setEnd(texts.currentNode, index + 1);
        if (begins && letter !== "\n") look(letter, range.getBoundingClientRect(), texts.currentNode.parentElement);
        begins = letter === "\n";
      }
    const button = code.querySelector("button.copybtn");
    look("button", button.getBoundingClientRect(), button.parentElement);
    edges.add(Math.round(code.getBoundingClientRect().left));
  }
  return edges.size > 1 ? [`left edges: ${[...edges]}`, ...found] : found;
}"""  # first letters of lines of code, and copy buttons, that are cut, and by what; and the edges of code, if not one


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that takes files only, with the lists of what it asked for, and of what went wrong."""
    context = browser.new_context(viewport=SCREEN, color_scheme="light", reduced_motion="reduce")
    context.route(re.compile(r"^(?!file:|data:|blob:)"), lambda route: route.abort())
    page = context.new_page()
    page.asked, page.said = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda said: page.said.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: page.said.append(f"script: {error}"))
    yield page
    context.close()


def open_at(page, path):
    page.goto(path.as_uri())
    page.evaluate(READY)


@functools.cache
def anchors(path):
    return set(re.findall(r"""\bid=["']([^"']+)""", path.read_text(encoding="utf-8")))


def dead_links(page):
    """The links of a page to files, or places in them, that are not there."""
    links = page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.href)")
    for link in sorted({link for link in links if link.startswith("file:")}):
        parts = urlsplit(link)
        target = Path(unquote(parts.path))
        place = unquote(parts.fragment)
        if not target.is_file() or place and place not in anchors(target):
            yield f"link to no file, or no place in it: {link}"


# Shadows at the sides of what scrolls, over which axe cannot tell the contrast.
PLAIN = ":is(.pst-scrollable-table-container, mjx-container, pre) { background-image: none !important; }"
CONTRAST = 'axe.configure({rules: [{id: "color-contrast", selector: "*:not([data-alike])"}]})'


def violations(page, **only):
    """What axe says against a page as it now looks; `runOnly` names rules."""
    page.add_style_tag(content=PLAIN)
    page.evaluate(ALIKE)
    options = {"preload": False, "resultTypes": ["violations"], **only}
    found = axe.Axe(f"{axe.Axe().axe_script};{CONTRAST}").run(page, options=options).response
    for rule in found["violations"]:
        for node in rule["nodes"]:
            yield f"{rule['id']} ({rule['impact']}): {node['html'][:160]}"


def problems(page, path):
    """All that is wrong with a page, one sentence each: light on a screen, then dark on a phone, in one load."""
    open_at(page, path)
    found = [*page.evaluate(LOOK), *dead_links(page), *violations(page)]
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    with contextlib.suppress(sync_api.TimeoutError):  # axe then says what the keyboard cannot reach
        page.wait_for_function(REACHED)
    found += [f"dark, on a phone: {said}" for said in violations(page, runOnly=CHANGED)]
    page.evaluate(
        "document.querySelectorAll('.toggle-hidden .toggle-button').forEach((button) => button.click())"
    )
    page.wait_for_function("!document.querySelector('.toggle-hidden')")
    said = [line for line in page.said if not line.startswith(("log:", "info:", "debug:"))]
    return [*said, *found, *page.evaluate(WIDE)]


@rendered
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_can_be_read_by_everybody(page, name):
    assert not problems(page, HTML / name)
    files = {Path(unquote(urlsplit(url).path)) for url in page.asked if url.startswith("file:")}
    size = sum(file.stat().st_size for file in files if file.is_file())
    assert size < (1e6 if name == "book/intro.html" else 5e6)  # bytes that the page has asked for


@rendered
@pytest.mark.parametrize("name", FOLDED)
def test_opened_code_is_whole_and_lines_up_with_other_code(page, name):
    page.goto((HTML / name).as_uri())
    page.evaluate(
        "document.querySelectorAll('details.hide > summary').forEach((summary) => summary.click())"
    )
    for width in (1280, 1000, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert not page.evaluate(CUT)


@rendered
def test_a_slider_changes_its_picture(page):
    open_at(page, HTML / "book" / "energy-landscape.html")
    place = page.locator(".widget-subarea", has=page.locator(".noUi-handle")).first
    before = place.locator("img:visible").evaluate_all(SOURCES)
    place.locator(".noUi-handle").first.press("ArrowRight")  # it stands at its left end
    assert before
    sync_api.expect(place.locator("img:visible").first).not_to_have_attribute("src", before[0])


MOVING = ["behind-a-known-start", "bilevel-attack", "generator", "text", "what-a-file-holds"]


@rendered
@pytest.mark.parametrize("name", MOVING)
def test_frames_move_by_keyboard_and_by_mouse_and_a_still_is_printed(page, browser, name):
    path = HTML / "book" / f"{name}.html"
    open_at(page, path)
    page.set_viewport_size({"width": 390, "height": 900})
    box = page.locator(".frames")
    handle, shown, still = box.locator("input"), box.locator("img:visible"), box.locator(".still")
    seen = [(shown.get_attribute("src"), shown.get_attribute("alt"))]
    area = handle.bounding_box()
    for move in (
        lambda: handle.press("Home"),
        lambda: handle.press("ArrowRight"),
        lambda: handle.click(position={"x": area["width"] - 4, "y": area["height"] / 2}),
    ):
        move()
        told = handle.get_attribute("aria-valuetext")
        assert box.locator(".frame:visible p").inner_text().startswith(told)
        seen.append((shown.get_attribute("src"), shown.get_attribute("alt")))
    assert all(one != other for pair in zip(seen, seen[1:]) for one, other in zip(*pair))
    assert box.locator("img").count() > 5 and not page.evaluate(WIDE)
    handle.press("Home")
    page.emulate_media(media="print")
    assert shown.count() == 1 and still.is_visible() and not handle.is_visible()
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        plain = context.new_page()
        plain.goto(path.as_uri())
        assert plain.locator(".frames img:visible").count() == 1
        assert plain.locator(".frames .still").is_visible()
    files = {Path(unquote(urlsplit(url).path)) for url in page.asked if url.startswith("file:")}
    assert sum(one.stat().st_size for one in files if one.name != "mathjax.js") < 1.5e6  # bytes


@rendered
def test_the_chooser_answers_by_keyboard_and_without_a_script_it_is_a_list(page, browser):
    path = HTML / "book" / "conclusion.html"
    open_at(page, path)
    page.set_viewport_size({"width": 390, "height": 900})
    box = page.locator(".chooser")
    network, *_, file = box.get_by_role("combobox").all()
    answer = box.locator("output")
    before, asked = answer.inner_text(), len(page.asked)
    file.press("End")
    sync_api.expect(answer).not_to_have_text(before)
    assert (
        answer.inner_text().startswith("Recorded. ") and box.locator(".case:visible").count() == 1
    )
    network.press("End")
    assert answer.inner_text().startswith("Not recorded. ") and "file" in answer.inner_text()
    assert not [*page.evaluate(WIDE), *violations(page)] and len(page.asked) == asked
    pictures = {urlsplit(url).path for url in box.locator("img").evaluate_all(SOURCES)}
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(path.as_uri())
    assert plain.locator(".case").count() == plain.locator(".case:visible").count() > 30
    weight = sum(Path(unquote(one)).stat().st_size for one in pictures)
    assert weight + len(plain.locator(".chooser").inner_html().encode()) < 150e3
    plain.context.close()


@rendered
def test_the_quiz_counts_what_a_reader_told(page):
    open_at(page, HTML / "book" / "can-anyone-tell.html")
    quiz = page.locator("#told-quiz")
    truth = quiz.get_attribute("data-truth")
    for item in quiz.locator("fieldset").all():
        item.locator("input[value='1']").check()
    quiz.locator(".told-score").click()
    said = quiz.locator(".told-said").inner_text()
    members, others = truth.count("1"), truth.count("0")
    assert f" {members} of {members} " in said and f" 0 of {others} " in said


@rendered
def test_the_search_plays_to_its_end_and_a_tile_shows_its_secret(page):
    open_at(page, HTML / "book" / "unmixing-the-first-layer.html")
    told = json.loads((ROOT / "book" / "unmix.json").read_text(encoding="utf-8"))
    box = page.locator("#unmix")
    play = box.locator(".unmix-play")
    page.emulate_media(reduced_motion="no-preference")
    sync_api.expect(play).to_have_text("Play the attack")
    play.click()
    sync_api.expect(play).to_have_text("Play again")
    sync_api.expect(box.locator(".unmix-above")).to_have_text(str(told["above"][-1]))
    assert box.locator(".unmix-null").inner_text() == str(told["held_out"][-1])
    tile = box.locator(".unmix-tiles button").nth(7)
    shown = "button => button.querySelector('canvas').toDataURL()"
    before = tile.evaluate(shown)
    tile.press("Enter")
    assert tile.evaluate(shown) != before
    assert f"is {told['likeness'][-1][7]:.2f}." in box.locator(".unmix-said").inner_text()


@rendered
def test_the_first_page_plays_the_attack_once_and_then_is_a_slider(page):
    page.emulate_media(reduced_motion="no-preference")
    open_at(page, HTML / "book" / "intro.html")
    box = page.locator("#unmix")
    sync_api.expect(box.locator(".unmix-play")).to_have_text("Pause")
    sync_api.expect(box.locator(".unmix-play")).to_have_text("Play again")
    box.locator("input").press("ArrowLeft")
    steps = json.loads((ROOT / "book" / "unmix.json").read_text(encoding="utf-8"))["steps"]
    assert box.locator(".unmix-at").inner_text() == f"step {steps[-2]} of {steps[-1]}"


@rendered
def test_nothing_moves_by_itself_for_who_asked_for_that(page):
    open_at(page, HTML / "book" / "intro.html")
    box = page.locator("#unmix")
    page.wait_for_timeout(1500)  # milliseconds, more than two steps
    assert box.locator(".unmix-at").inner_text().startswith("step 0 ")
    box.locator(".unmix-play").press("Enter")
    assert not box.locator(".unmix-at").inner_text().startswith("step 0 ")


@rendered
def test_the_first_page_shows_the_attack_without_scripts(browser):
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto((HTML / "book" / "intro.html").as_uri())
        sync_api.expect(page.locator("#unmix .unmix-still img")).to_be_visible()


@rendered
def test_every_card_leads_to_its_sentence_and_says_its_verdict(page):
    open_at(page, HTML / "book" / "intro.html")
    cards = page.locator("ul.claims > li").all()
    told = [(one.locator("a").get_attribute("href"), one.inner_text()) for one in cards]
    assert len(told) == 12
    page.goto((HTML / "book" / "reference.html").as_uri())
    for link, text in told:
        word, sentence = text.split("\n\n")[:2]
        there = page.locator(f"[id='{link.partition('#')[2]}']")
        assert there.locator("p").first.inner_text().startswith(f"{word} {sentence}")


@rendered
@pytest.mark.parametrize("asked, page_found", [("interactive", "reference"), ("unmixing", "unmix")])
def test_a_search_finds_pages_before_functions(page, asked, page_found):
    page.goto(f"{(HTML / 'search.html').as_uri()}?q={asked}")
    sync_api.expect(page.locator("#search-results li").first).to_be_visible()
    links = page.locator("#search-results li a").evaluate_all("all => all.map((a) => a.href)")
    assert page_found in links[0] and not any("code.html#" in link for link in links[:5])


@rendered
def test_the_first_page_leads_to_its_citation(page):
    page.goto((HTML / "book" / "intro.html").as_uri())
    page.locator("a", has_text="BibTeX").click()
    sync_api.expect(page.locator("#cite")).to_contain_text("@misc{")
    sync_api.expect(page.locator("#cite")).to_be_visible()


@rendered
def test_excerpts_of_a_search_are_from_what_a_page_says(page):
    text = (HTML / "book" / "deeper-networks.html").read_text(encoding="utf-8")
    page.goto((HTML / "search.html").as_uri())
    excerpt = page.evaluate("html => Search.htmlToText(html)", text)
    assert not re.search("^ *Contents|minutes to read", excerpt, re.M) and "unstable" in excerpt


@rendered
@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("book/")])
def test_a_preview_begins_with_what_the_page_says(name):
    text = (HTML / name).read_text(encoding="utf-8")
    assert not re.search(r'property="og:description" content="\d* ?minutes to read', text)
    assert '<div class="highlight" id="cite">' in text


@rendered
def test_a_drawing_becomes_a_training_set_of_the_given_weights(page):
    open_at(page, HTML / "book" / "affine-model.html")
    page.set_viewport_size(PHONE)
    box = page.locator("#plant")
    page.wait_for_function("document.getElementById('plant').planted")
    page.evaluate("document.getElementById('plant').planted = null")
    paper = box.locator(".plant-paper canvas")
    paper.scroll_into_view_if_needed()
    area = paper.bounding_box()
    page.mouse.move(area["x"] + 0.1 * area["width"], area["y"] + 0.9 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.9 * area["width"], area["y"] + 0.6 * area["height"], steps=5)
    page.mouse.up()
    page.wait_for_function("document.getElementById('plant').planted")
    names = "gradient", "distance", "gradient-untouched"
    shown = [float(box.locator(f".plant-{name}").get_attribute("data-value")) for name in names]
    assert 0 < shown[0] < 1e-12 and shown[1] < 1e-18 and shown[2] > 0.1
    # stationary for the kernel of the book, too
    planted = "[...document.getElementById('plant').planted.%s]"
    names = "images", "y", "theta"
    kept = (page.evaluate(planted % name) for name in names)
    x, y, theta = (torch.tensor(values, dtype=torch.float64) for values in kept)
    mu = chapter_functions("affine-model")["WEIGHT_DECAY"]
    assert affine.energy_gradient(x.view(len(y), -1), y, theta, mu).norm() < 1e-12


def test_the_report_of_an_audit_is_whole_and_asks_for_nothing(page, tmp_path):
    draw = torch.Generator().manual_seed(0)
    pictures, others = torch.rand(2, 12, 8, 8, 3, generator=draw, dtype=torch.float64)
    mixture = torch.randn(40, 12, generator=draw, dtype=torch.float64) @ pictures.flatten(1)
    last = torch.randn(2, 40, generator=draw, dtype=torch.float64)
    network = {"a picture of <b>names</b>.weight": mixture, "last.weight": last}
    found = audit(network, pictures, others, layout="HWC", steps=2, progress=False)
    path = found.save(tmp_path / "report")
    assert found.status == 1 and not problems(page, path)
    assert page.locator(".finding").inner_text() == found.sentence
    assert page.locator(".pairs li").count() == 24
    assert [url for url in page.asked if not url.startswith("data:")] == [path.as_uri()]
    heads, rows = page.locator(".sortable th[scope=col]"), page.locator(".sortable tbody tr")
    for order in ("descending", "ascending"):
        heads.filter(has_text="|NCC|").get_by_role("button").press("Enter")
        assert heads.filter(has_text="|NCC|").get_attribute("aria-sort") == order
        shown = [float(row.split("\t")[2]) for row in rows.all_inner_texts()]
        assert shown == sorted(shown, reverse=order == "descending") and len(shown) == 24
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 680, "height": 900})  # pixels of a sheet of A4
    cut = "all => all.filter(one => one.scrollHeight > one.clientHeight || one.scrollWidth > one.clientWidth).length"
    assert page.locator(".scroll").evaluate_all(cut) == 0


def test_a_book_is_printed(tmp_path):
    (tmp_path / "book").mkdir()
    page = "<h1>One</h1><h1 style='break-before: page'>Two</h1>"
    (tmp_path / "book" / "intro.html").write_text(page)
    command = [sys.executable, "tools/print_book.py", tmp_path, tmp_path / "book.pdf"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0 and "The book as a PDF" in ended.stdout, ended.stderr
    assert len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "book.pdf").read_bytes())) == 2
