"""The explorer's page in a browser.

Screenshots go into the folder that KNOCKOUT_SCREENSHOTS names, to be looked at; else into a temporary one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from knockout import explorer

pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

MINUS = "\N{MINUS SIGN}"
# The first preset, which the page opens with.
SCORES = torch.tensor([0.3, 1.6, -0.4, 0.9, 2.2, -1.1, 0.1, 1.3, -0.7, 0.6, 1.8, -0.2], dtype=torch.float64)
PRESETS = ["twelve scores", "ties", "outlier", "near-constant", "uniform, as in the paper", "a trained scorer"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.page(), encoding="utf-8")
    return path


class Page:
    """What a visitor sees and does."""

    def __init__(self, browser: Chrome, file: Path) -> None:
        self.browser, self.file = browser, file

    def open(self, address: str = "", file: Path | None = None) -> None:
        self.browser.get("about:blank")
        self.browser.get((file or self.file).as_uri() + address)

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements("css selector", selector)

    def run(self, code: str, *arguments: object) -> Any:
        return self.browser.execute_script(code, *arguments)

    def texts(self, selector: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((x) => x.textContent)", selector))

    def click(self, selector: str) -> None:
        found = self.find(selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", found)
        found.click()

    def preset(self, name: str) -> None:
        next(button for button in self.all("#presets button") if button.text == name).click()

    def field(self, selector: str, text: str) -> None:
        found = self.find(selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", found)
        found.send_keys(Keys.CONTROL + "a")
        found.send_keys(text, Keys.ENTER)

    def slide(self, selector: str, value: float) -> None:
        """A slider to a value, as its keys and the mouse do it."""
        code = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))"
        self.run(code, self.find(selector), value)

    def score(self, candidate: int) -> float:
        return float(self.find(f"#score-{candidate}").get_property("value"))  # type: ignore[arg-type]

    def weights(self) -> list[list[str]]:
        rows = len(self.all("#weights tbody tr"))
        return [self.texts(f"#weights tbody tr:nth-child({row + 1}) td:not(.last)") for row in range(rows)]

    def mass(self) -> list[str]:
        return self.texts("#candidates tbody .mass")

    def gradient(self) -> list[str]:
        return self.texts("#candidates tbody .gradient")

    def thumb(self, candidate: int) -> tuple[int, int]:
        """Where the handle of a bar is in the window."""
        code = """
            const bar = document.getElementById(`bar-${arguments[0]}`);
            bar.scrollIntoView({ block: "center" });
            const { left, top, width, height } = bar.getBoundingClientRect();
            const part = (bar.value - bar.min) / (bar.max - bar.min);
            return [Math.round(left + 5 + (width - 10) * part), Math.round(top + height / 2)];
        """
        x, y = self.run(code, candidate)
        return x, y

    def drag(self, x: int, y: int, steps: list[int], let_go: bool = True) -> None:
        """Hold the mouse at a place, unless it is held, and move it so far to the right."""
        actions = ActionChains(self.browser, duration=20)
        pointer = actions.w3c_actions.pointer_action
        if steps:
            pointer.move_to_location(x, y)
            pointer.pointer_down()
        for step in steps:
            pointer.move_to_location(x + step, y)
        if let_go:
            pointer.pointer_up()
        actions.perform()

    def address(self) -> str:
        time.sleep(0.4)  # it follows a moment later
        return str(self.browser.current_url).partition("#")[2]

    def window(self, width: int, height: int = 1000, dark: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def touch(self, kind: str, *points: tuple[int, int]) -> None:
        where = [{"x": x, "y": y} for x, y in points]
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})


@pytest.fixture
def page(browser: Chrome, file: Path) -> Iterator[Page]:
    made = Page(browser, file)
    made.window(1400)
    browser.get_log("browser")  # what came before
    made.open()
    yield made
    assert browser.get_log("browser") == []


def shown(weight: float) -> str:
    """A weight as the tables show it."""
    if weight in (0.0, 1.0):
        return "·" if weight == 0 else "1"
    return "~0" if weight < 0.005 else "~1" if weight >= 0.995 else f"{weight:.2f}".removeprefix("0")


def table(weights: Tensor) -> list[list[str]]:
    return [[shown(weight) for weight in slot] for slot in weights.tolist()]


def test_the_numbers_are_those_of_the_library(page: Page) -> None:
    picked = knockout.select(SCORES, 3)
    assert page.weights() == table(picked.weights())
    assert page.texts("#weights td.last") == [f"{x:.2f}" for x in picked.perplexity().tolist()]
    assert [text or "0" for text in page.mass()] == [shown(x).replace("·", "0") for x in picked.mass().tolist()]
    masks = {
        "knockout": picked,
        "iterative": knockout.methods.iterative(SCORES, 3, peaked=False),
        "lapsum": knockout.methods.lapsum(SCORES, 3),
        "hard": knockout.methods.hard(SCORES, 3),
    }
    names = page.texts("#methods tbody th")
    for name, method in masks.items():
        row = names.index(name) + 1
        assert page.texts(f"#methods tbody tr:nth-child({row}) td:not(.last)") == [shown(x) for x in method.mass()]
    assert page.find("#summary").text == "12 candidates, 2 rounds, 3 slots. Led by 4, 10, 1: the true top k."
    assert len(page.all("#bracket .line")) == 18
    assert page.find("#bracket + .hint span").is_displayed()
    for i, score in enumerate(SCORES.tolist()):
        assert f"{i} {score:g}".replace("-", MINUS) in page.texts("#bracket svg > text")


def test_a_bar_is_dragged_with_the_mouse(page: Page) -> None:
    before = page.mass()
    x, y = page.thumb(5)
    page.drag(x, y, [8 * step for step in range(1, 9)])
    assert page.score(5) > 0
    assert page.mass() != before
    scores = SCORES.clone()
    scores[5] = page.score(5)
    assert page.weights() == table(knockout.select(scores, 3).weights())
    assert f",{page.score(5):g}," in page.address()


def test_a_bar_is_dragged_to_its_end_and_its_axis_grows(page: Page) -> None:
    def most() -> float:
        return float(str(page.find("#bar-4").get_attribute("max")))

    before, (x, y) = most(), page.thumb(4)
    page.drag(x, y, [30, 200, 400], let_go=False)
    assert page.score(4) == most() == before
    page.drag(x, y, [])
    assert most() > before == page.score(4)


def test_a_bar_is_dragged_with_a_finger_and_a_swipe_scrolls(page: Page) -> None:
    page.window(390, 800)
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        page.open()
        assert not page.find("#bracket + .hint span").is_displayed()
        x, y = page.thumb(4)
        page.touch("touchStart", (x, y))
        for step in range(1, 9):
            page.touch("touchMove", (x - 5 * step, y))
        page.touch("touchEnd")
        assert page.score(4) < 1.5
        scores = SCORES.clone()
        scores[4] = page.score(4)
        assert page.weights() == table(knockout.select(scores, 3).weights())

        x, y = page.thumb(7)
        top = page.run("return scrollY")
        page.touch("touchStart", (x, y))
        for step in range(1, 13):
            page.touch("touchMove", (x, y - 15 * step))
            time.sleep(0.02)
        page.touch("touchEnd")
        time.sleep(0.3)
        assert page.run("return scrollY") > top + 50
        assert page.score(7) == 1.3
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_keys_change_a_bar_and_the_focus_is_seen(page: Page) -> None:
    page.run("document.getElementById('active-3').focus()")
    keys = ActionChains(page.browser)
    keys.send_keys(Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP).perform()
    assert page.run("return document.activeElement.id") == "bar-3"
    assert 1.0 < page.score(3) < 1.2
    assert "px" in page.run("return getComputedStyle(document.activeElement).outline")
    assert "solid" in page.run("return getComputedStyle(document.activeElement).outline")
    ActionChains(page.browser).send_keys(Keys.HOME).perform()
    assert page.score(3) < -2
    assert page.run("return document.activeElement.id") == "bar-3"
    ActionChains(page.browser).send_keys(Keys.TAB, "0.75", Keys.ENTER).perform()
    assert page.score(3) == 0.75


def test_the_tab_key_goes_through_the_page_in_order(page: Page) -> None:
    page.preset("ties")
    page.run("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.open()
    seen = []
    for _ in range(80):
        ActionChains(page.browser).send_keys(Keys.TAB).perform()
        seen.append(page.run("const x = document.activeElement; return x.id || x.textContent || x.tagName"))
    wanted = [
        "Skip to the bracket",
        "twelve scores",
        "n",
        "k",
        "boost",
        "c",
        "unit",
        "alpha-1.5",
        "order-score",
        "hard",
    ]
    wanted += [
        "active-0",
        "bar-0",
        "score-0",
        "active-1",
        "bar-11",
        "score-11",
        "0",
        "copy-link",
        "copy-python",
        "python",
    ]
    places = [seen.index(each) for each in wanted]
    assert places == sorted(places)


def test_the_link_that_skips_the_controls(page: Page) -> None:
    ActionChains(page.browser).send_keys(Keys.TAB).perform()
    assert page.find(".skip").rect["x"] >= 0
    ActionChains(page.browser).send_keys(Keys.ENTER).perform()
    assert page.run("return document.activeElement.id") == "results"


def test_k_and_n(page: Page) -> None:
    page.slide("#k", 5)
    assert page.weights() == table(knockout.select(SCORES, 5).weights())
    page.find("#k").send_keys(Keys.ARROW_LEFT)
    assert page.find("#k-shown").text == "4 of 12"
    assert page.weights() == table(knockout.select(SCORES, 4).weights())
    page.slide("#n", 3)
    assert page.find("#k-shown").text == "3 of 3"
    assert page.weights() == table(knockout.select(SCORES[:3], 3).weights())
    page.slide("#n", 32)
    assert len(page.mass()) == 32
    page.slide("#n", 1)
    assert page.weights() == [["1"]]


def test_boosts_and_their_numbers(page: Page) -> None:
    boosts = knockout.boost
    for kind, boost in (
        ("relative", boosts.Relative(4)),
        ("fixed", boosts.Fixed(4)),
        ("base", boosts.Base(20)),
        ("power", boosts.Power(20)),
        ("adaptive", boosts.Adaptive(2, 1.5)),
    ):
        Select(page.find("#boost")).select_by_value(kind)
        assert page.weights() == table(knockout.select(SCORES, 3, boost).weights()), kind
        assert page.find("#b").is_displayed() == (kind in ("base", "power"))
        assert page.find("#unit").is_displayed() == (kind in ("relative", "adaptive"))
    page.field("#c-number", "7")
    page.field("#unit-number", "0.4")
    page.click("label[for='alpha-1']")
    assert page.weights() == table(knockout.select(SCORES, 3, boosts.Adaptive(7, 0.4, 1)).weights())
    page.field("#unit-number", "nothing")
    assert page.find("#unit-number").get_property("value") == "0.4"
    page.slide("#c", 1)
    assert page.weights() == table(knockout.select(SCORES, 3, boosts.Adaptive(10, 0.4, 1)).weights())


def test_order_hard_and_mask(page: Page) -> None:
    page.click("label[for='order-position']")
    assert page.weights() == table(knockout.select(SCORES, 3, order="position").weights())
    page.click("#hard")
    assert page.weights() == table(knockout.select(SCORES, 3, order="position", hard=True).weights())
    assert page.gradient()[7] != "0"
    page.click("#hard")
    page.click("label[for='active-4']")
    mask = torch.arange(12) != 4
    assert page.weights() == table(knockout.select(SCORES, 3, mask=mask, order="position").weights())
    assert "off=4" in page.address()
    for i in range(12):
        if i != 4:
            page.click(f"#active-{i}")
    assert page.find("#bracket").text == "No candidate takes part."
    assert page.texts("#weights td.last") == ["empty"] * 3


def test_a_slot_and_a_cell_show_their_gradients(page: Page) -> None:
    scores = SCORES.clone().requires_grad_()
    picked = knockout.select(scores, 3)

    def check(of: Tensor) -> None:
        (slopes,) = torch.autograd.grad(of, scores, retain_graph=True)
        for text, slope in zip(page.gradient(), slopes.tolist(), strict=True):
            number = float(text.replace(MINUS, "-").replace("~0", "0"))
            assert number == pytest.approx(slope, abs=0.006 if abs(slope) >= 1 else 0.0006)
            assert (text[0] in "+" + MINUS) == (abs(slope) >= 0.0005)

    check(picked.scores[0])
    page.click("#weights [data-slot='2'][data-candidate='-1']")
    assert "the blended score of slot 2" in page.find("#gradient-note").text
    check(picked.scores[2])
    page.click("#weights [data-slot='1'][data-candidate='3']")
    assert "the weight of 3 in slot 1" in page.find("#gradient-note").text
    check(picked.weights()[1, 3])
    ActionChains(page.browser).send_keys(Keys.ARROW_DOWN, *[Keys.ARROW_RIGHT] * 4).perform()
    assert "the weight of 7 in slot 2" in page.find("#gradient-note").text
    check(picked.weights()[2, 7])
    selected = page.all("#weights [aria-selected='true']")
    assert [cell.get_attribute("tabindex") for cell in selected] == ["0"]
    page.click("#bracket .slot:last-child text")
    check(picked.scores[2])


def test_an_address_is_opened_again(page: Page) -> None:
    page.preset("a trained scorer")
    page.slide("#k", 4)
    page.click("#weights [data-slot='1'][data-candidate='2']")
    address, weights, gradient = page.address(), page.weights(), page.gradient()
    page.browser.refresh()
    assert (page.weights(), page.gradient()) == (weights, gradient)
    page.open()
    assert page.weights() != weights
    page.run("location.hash = arguments[0]", address)
    time.sleep(0.2)
    assert (page.weights(), page.gradient()) == (weights, gradient)


def test_what_is_wrong_in_an_address_is_said(page: Page) -> None:
    page.open("#scores=1,2,3&k=9&boost=fixed")
    assert page.find("#problems").text == "Not understood in the address, and left out: k=9"
    assert Select(page.find("#boost")).first_selected_option.text == "Fixed"
    page.open("#scores=<b>")
    assert page.find("#problems").is_displayed()
    assert len(page.mass()) == 12


def test_random_scores_and_typed_ones(page: Page) -> None:
    page.preset("random scores")
    assert len({page.score(i) for i in range(12)}) > 5
    page.field("#score-2", "1000")
    assert page.find("#summary").text.split("Led by ")[1].startswith("2,")
    page.field("#score-2", "-inf")
    assert page.mass()[2] == "0"
    page.field("#score-2", "x")
    assert page.find("#score-2").get_property("value") == "-inf"


def test_a_page_of_a_selection_with_names(page: Page, tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "</script>", "a, b & c", "né"]
    picked = knockout.select(torch.tensor([0.5, 0.1, 2.0, 1.0]), 2, 1.0, order="position")
    path = knockout.plot.explore(picked, tmp_path / "page.html", names=names)
    page.open(file=path)
    assert page.texts("#candidates tbody th") == names
    assert page.weights() == table(picked.weights())
    assert page.all("img") == []
    address = page.address()
    page.open("#" + address, path)
    assert page.texts("#candidates tbody th") == names


def test_in_a_frame_of_another_page(page: Page, tmp_path: Path) -> None:
    outer = tmp_path / "outer.html"
    source = explorer.page().replace("&", "&amp;").replace('"', "&quot;")
    outer.write_text(
        f'<iframe src="{page.file.as_uri()}" width=800 height=500></iframe>'
        f'<iframe srcdoc="{source}" width=800 height=500></iframe>',
        encoding="utf-8",
    )
    page.open(file=outer)
    for frame in page.all("iframe"):
        page.browser.switch_to.frame(frame)
        page.slide("#k", 2)
        time.sleep(0.3)
        assert page.weights() == table(knockout.select(SCORES, 2).weights())
        page.browser.switch_to.default_content()


def test_copying(page: Page) -> None:
    page.click("#copy-python")
    time.sleep(0.2)
    assert page.find("#copied").text
    assert "knockout.boost.Adaptive(2, unit=1.5, alpha=1.5)" in page.find("#python").text


def test_every_control_has_a_name(page: Page) -> None:
    code = """
        return [...document.querySelectorAll("input, select, button, [tabindex], [role]")]
            .filter((x) => !(x.ariaLabel || x.labels?.length || x.hasAttribute("aria-labelledby") || x.textContent))
            .filter((x) => !x.matches("[role='alert'], [role='status']"))
            .map((x) => x.outerHTML);
    """
    assert page.run(code) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000, 1400])
def test_no_width_scrolls_sideways(page: Page, width: int, dark: bool, tmp_path: Path) -> None:
    folder = Path(os.environ.get("KNOCKOUT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for name in PRESETS:
        page.window(width, 1000, dark)
        page.open()
        page.preset(name)
        page.run("document.activeElement.blur()")
        time.sleep(0.1)
        assert page.run("return document.documentElement.scrollWidth") <= width
        inside = "return [...document.querySelectorAll('section')].filter((x) => x.scrollWidth > x.clientWidth).length"
        assert page.run(inside) == 0
        assert page.find("#bar-0").rect["width"] > 90
        if width == 1400:  # there is room for all weights
            assert page.run(
                "return [...document.querySelectorAll('.scroller')].every((x) => x.scrollWidth <= x.clientWidth)"
            )
        page.window(width, page.run("return document.documentElement.scrollHeight"), dark)
        time.sleep(0.1)
        picture = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{width}-{'dark' if dark else 'light'}.png"
        assert page.browser.save_screenshot(str(picture))
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


def contrast(one: str, other: str) -> float:
    """By the definition of the WCAG, of two colours as browsers tell them."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(part * factor for part, factor in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    brighter, darker = sorted((light(one), light(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_stand_out_from_what_they_are_on(page: Page, dark: bool) -> None:
    page.window(1400, 1000, dark)
    page.open()
    code = """
        const probe = document.body.appendChild(document.createElement("i"));
        return Object.fromEntries(["paper", "card", "ink", "quiet", "fill"].map((name) => {
            probe.style.color = `var(--${name})`;
            return [name, getComputedStyle(probe).color];
        }));
    """
    colours: dict[str, str] = page.run(code)
    for text, ground in (("ink", "paper"), ("ink", "card"), ("ink", "fill"), ("quiet", "paper"), ("quiet", "card")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
