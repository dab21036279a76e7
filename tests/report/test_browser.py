"""The page in a real browser, without a network: no error, tables sort, pointing at a sample shows it."""

import shutil
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")


def find_chromium():
    """Return the path of a Chromium of the system, or of the one that Playwright has downloaded."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        with sync_api.sync_playwright() as playwright:
            found = playwright.chromium.executable_path
    return found if Path(found).exists() else None


CHROMIUM = find_chromium()
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
PATIENCE = 900_000  # milliseconds: whether a test passes does not depend on how busy the machine is

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt install chromium, or python -m playwright install chromium"
)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, page):
    """Open the report at a width; any request but for the file, any message and any dialog fails the test."""
    troubles, contexts = [], []

    def open_page(width, path=page, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        tab = context.new_page()
        tab.on("console", lambda message: troubles.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda one: one.url == path.as_uri() or troubles.append(f"request: {one.url}"))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def column(tab, table, index):
    return tab.eval_on_selector_all(
        f"#{table} tbody tr", f"rows => rows.map(row => row.cells[{index}].textContent.trim())"
    )


def values(tab, table, index):
    cells = f"rows => rows.map(row => Number(row.cells[{index}].dataset.value))"
    return tab.eval_on_selector_all(f"#{table} tbody tr", cells)


def press_head(tab, table, index):
    tab.click(f"#{table} thead th:nth-child({index + 1}) button")
    return tab.get_attribute(f"#{table} thead th:nth-child({index + 1})", "aria-sort")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_opens_without_trouble_and_fits_the_window(opened, width, scheme):
    tab = opened(width, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".canvas svg").count() == 2
    assert tab.title().startswith("Test <b>")  # not replaced by a script in a name
    assert tab.inner_text("h1").startswith("Test <b>&amp;</b> </title>")


def test_numbers_sort_by_size_and_texts_by_alphabet_in_both_directions(opened):
    tab = opened(1280)
    tab.click("details:has(#factor-table-0) > summary")
    before = values(tab, "factor-table-0", 1)
    rows = "rows => rows.map(row => row.textContent.replace(/\\s+/g, ' ')).sort()"
    together = tab.eval_on_selector_all("#factor-table-0 tbody tr", rows)
    assert press_head(tab, "factor-table-0", 1) == "descending"
    assert values(tab, "factor-table-0", 1) == sorted(before, reverse=True)
    assert press_head(tab, "factor-table-0", 1) == "ascending"
    assert values(tab, "factor-table-0", 1) == sorted(before)
    assert tab.eval_on_selector_all("#factor-table-0 tbody tr", rows) == together
    tab.click("details:has(#feature-table-0) > summary")
    before = column(tab, "feature-table-0", 2)
    genes = [name for name in before if name.startswith("gene")]
    assert press_head(tab, "feature-table-0", 2) == "ascending"
    after = [name for name in column(tab, "feature-table-0", 2) if name.startswith("gene")]
    assert after == sorted(genes, key=lambda name: int(name[4:]))  # gene9 before gene10
    assert press_head(tab, "feature-table-0", 2) == "descending"
    again = [name for name in column(tab, "feature-table-0", 2) if name.startswith("gene")]
    assert again == after[::-1]
    assert tab.get_attribute("#feature-table-0 thead th:nth-child(1)", "aria-sort") == "none"
    tab.fill("#factors-0 input[type=search]", "GENE7")
    shown = tab.eval_on_selector_all(
        "#feature-table-0 tbody tr:not([hidden])", "rows => rows.map(row => row.cells[2].textContent)"
    )
    assert set(shown) == {"gene7"}


SWEEP = """canvas => {
  const box = canvas.getBoundingClientRect(), seen = [];
  for (let x = 0.5; x < box.width; x += 2) {
    const at = { clientX: box.left + x, clientY: box.top + 60 };
    canvas.dispatchEvent(new PointerEvent("pointermove", at));
    seen.push([at.clientX, Number(canvas.getAttribute("aria-valuenow"))]);
  }
  return seen;
}"""


def test_pointing_at_a_sample_shows_its_values(opened, page, embedded, models, about):
    tab, data = opened(1280), embedded(page)
    index = data["names"].index("s77")
    swept = tab.locator(".canvas").nth(0).evaluate(SWEEP)
    now = [sample for _, sample in swept]
    assert now == sorted(now)  # samples from left to right
    assert set(now) == set(range(90))  # and all of them can be reached
    there = [x for x, sample in swept if sample == index]
    tab.mouse.move(there[len(there) // 2], tab.locator(".canvas").nth(0).bounding_box()["y"] + 60)
    tip = tab.locator(".tip").nth(0)
    assert tip.is_visible()
    assert tip.locator("b").inner_text() == "s77"
    assert about["groupby"][77] in tip.locator(".of").inner_text()
    shown = {row.split()[0]: float(row.split()[1]) for row in tip.locator("tr").all_inner_texts()}
    expected = {f"k{k}": round(v, 3) for k, v in enumerate(models[0].loadings_[77]) if round(v, 3) > 0}
    assert shown == pytest.approx(expected, abs=1.1e-3)
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert tab.locator(".canvas").nth(1).get_attribute("aria-valuenow") == str(index)  # marked in both plots
    tab.mouse.move(5, 5)
    assert not tip.is_visible()


def test_keyboard_walks_along_the_samples(opened, page, embedded):
    tab, data = opened(1280), embedded(page)
    plot = tab.locator(".canvas").nth(1)
    plot.focus()

    def after(key):
        tab.keyboard.press(key)
        return int(plot.get_attribute("aria-valuenow"))

    walked = [after(key) for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "End")]
    assert walked == [0, 1, 2, 1, 89]
    assert after("PageUp") == data["spans"][1][1]
    assert after("PageDown") == data["spans"][2][1]
    assert plot.get_attribute("aria-valuetext").startswith(data["names"][data["spans"][2][1]] + ", ")
    assert tab.locator(".tip").nth(1).is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator(".tip").nth(1).is_visible()


def heights(tab, model=0):
    """Top of each drawn path, in units of the plot: smaller is higher."""
    return tab.eval_on_selector_all(
        f".structure[data-model='{model}'] .canvas path[fill]",
        "paths => paths.map(path => [path.getAttribute('fill'), path.getBBox().height])",
    )


def test_bars_are_the_loadings_stacked_all_or_one_of_them_or_shares(opened, models, embedded, page):
    tab, data = opened(1280), embedded(page)
    drawn = heights(tab)
    tops = models[0].loadings_.cumsum(axis=1).max(axis=0)[::-1]  # the whole stack is drawn first
    measured = [height for _, height in drawn]
    assert [height / measured[0] for height in measured] == pytest.approx(list(tops / tops[0]), abs=0.01)
    tab.locator(".legend").nth(0).locator("button").nth(2).click()
    assert [color for color, _ in heights(tab)] == [data["models"][0]["colors"][2]]
    assert len(heights(tab, model=1)) == 3
    tab.locator(".legend").nth(0).locator("button").nth(2).click()
    assert len(heights(tab)) == 3
    tab.check("input[value=shares]")
    full = tab.eval_on_selector(".canvas svg", "svg => svg.querySelectorAll('.tick')[0].getBBox().y - 8")
    assert heights(tab)[0][1] == pytest.approx(full, abs=1.0)


def test_plot_follows_the_window_and_all_that_can_be_pressed_has_a_name(opened):
    tab = opened(1280)
    wide = tab.get_attribute(".canvas svg", "viewBox")
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.wait_for_function(
        "wide => document.querySelector('.canvas svg').getAttribute('viewBox') !== wide", arg=wide
    )
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    nameless = tab.eval_on_selector_all(
        "button, input, [tabindex], svg[role=img]",
        "all => all.filter(one => !(one.textContent.trim() || one.getAttribute('aria-label')"
        " || (one.labels && one.labels.length))).length",
    )
    assert nameless == tab.locator("th:not([scope])").count() == 0
