"""The report and the explorer in a real browser: sliders move, pictures change, nothing is wrong in the console."""

import base64
import io
import shutil
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import lebm
from lebm.measure import analysis
from lebm.show import report
from lebm.show.explorer import Lab, Server

WAIT = 60
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@contextmanager
def browser(width=1200, dark=False):
    """A page of this width, in light or dark; ends with an error if the console holds one."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no Chromium with its driver is installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.set_page_load_timeout(60)
        yield driver
        assert driver.get_log("browser") == []
    finally:
        driver.quit()


def until(what, seconds=WAIT):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0)), data = new DataTransfer();
data.items.add(new File([bytes], "white.png", { type: "image/png" }));
document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
"""


def white_picture():
    buffer = io.BytesIO()
    Image.new("L", (30, 40), 255).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "digits"
    lebm.train(
        {"preset": "digits", "training.updates": 30, "training.log_every": 5, "method.prior_chain.steps": 10},
        run=folder,
    )
    return folder


@pytest.fixture(scope="module")
def server(run):
    subject = analysis.Subject(run, "cpu")
    with Server(Lab(subject)) as s:
        thread = threading.Thread(target=s.serve_forever, daemon=True)
        thread.start()
        yield s
        s.shutdown()
        thread.join(10)


def test_the_report(run, rough_log_z):
    assert analysis.complete(analysis.Subject(run, "cpu")) == []
    with browser() as page:
        page.get(report.write(run).as_uri())
        one = lambda css: page.find_element("css selector", css)  # noqa: E731
        strip, step = one(".window img"), one(".player output")
        before, place = step.text, strip.value_of_css_property("transform")
        range_ = one(".player input")
        range_.send_keys(*["\ue012"] * 4)  # arrow left
        assert step.text != before and strip.value_of_css_property("transform") != place
        assert one("svg[data-name=chains] .cursor").get_attribute("d")
        chart = one("#curves svg")
        until(
            lambda: chart.send_keys("\ue014") or one(".tip").is_displayed()
        )  # arrow right; scrolling to the chart may hide it once
        assert "update" in one(".tip").text
        chart.send_keys("\ue00c")  # escape
        assert not one(".tip").is_displayed()
        one("[data-play]").click()
        until(lambda: one("[data-play]").text == "Play" and step.text == before)  # plays to the end and stops


@pytest.mark.parametrize("dark", [False, True])
def test_the_report_on_a_phone(run, dark, rough_log_z):
    analysis.complete(analysis.Subject(run, "cpu"))
    with browser(390, dark) as page:
        page.get(report.write(run).as_uri())
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        ground = page.find_element("css selector", "body").value_of_css_property("background-color")
        red = int(ground.split("(")[1].split(",")[0])
        assert red < 60 if dark else red > 200


def test_a_comparison(run, tmp_path):
    path = report.compare([run, run], tmp_path / "both.html")
    with browser() as page:
        page.get(path.as_uri())
        assert "2 runs" in page.find_element("css selector", "h1").text
        assert len(page.find_elements("css selector", "#curves svg")) == 6


def test_the_explorer(server, tmp_path):
    picture = tmp_path / "seven.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)).save(picture)
    with browser() as page:
        page.get(server.address)
        one = lambda name: page.find_element("id", name)  # noqa: E731
        source = lambda name: one(name).get_attribute("src")  # noqa: E731
        pixels = lambda: page.execute_script("return document.querySelector('#tiles canvas').toDataURL()")  # noqa: E731
        until(lambda: source("picture") and one("time").get_attribute("max") == "10")
        assert one("title").text == "digits/paper" and len(page.find_elements("css selector", "#tiles canvas")) == 18

        first = pixels()
        one("time").send_keys(*["\ue012"] * 5)
        assert pixels() != first and one("time-shown").text == "step 5"  # along the chains

        one("again").click()
        until(lambda: one("time").get_attribute("max") == "10" and pixels() != first)  # new noise

        image = source("picture")
        page.find_elements("css selector", "#tiles button")[4].click()
        until(lambda: source("picture") != image)  # another sample

        image = source("picture")
        page.find_element("css selector", "#sliders input").send_keys(*["\ue014"] * 12)
        until(lambda: source("picture") != image)  # a direction in z

        one("k").send_keys(*["\ue014"] * 10)
        until(
            lambda: int(one("k-shown").text.replace(",", "")) > 10 and "step 10" not in one("time-shown").text
        )  # longer chains

        one("file").send_keys(str(picture))
        until(lambda: one("strange").is_displayed() and source("given"))
        assert "% of 64 test images" in one("strange").text and source("given") != source("picture")
        assert one("message").text == ""

        score = one("score").text
        page.execute_script(DROP, base64.b64encode(white_picture()).decode())
        until(lambda: one("score").text != score)  # dropped on the page this time


def test_the_explorer_of_a_run_without_a_prior_chain(tmp_path):
    pytest.importorskip("zuko")
    run = tmp_path / "flow"
    flow = {"kind": "flow", "width": 8, "layers": 2}
    lebm.train(
        {"preset": "digits", "training.updates": 3, "method.prior_start": flow, "method.prior_chain.steps": 0}, run=run
    )
    with Server(Lab(analysis.Subject(run, "cpu"))) as s, browser() as page:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        page.get(s.address)
        one = lambda name: page.find_element("id", name)  # noqa: E731
        until(lambda: one("picture").get_attribute("src"))
        assert one("k-shown").text == "0" and "Prior: by the flow alone." in one("lead").text
        one("k").send_keys(*["\ue014"] * 50)
        until(lambda: one("time").get_attribute("max") == "18" and int(one("k-shown").text) == 71)
        assert one("message").text == ""
        s.shutdown()


def test_the_explorer_says_what_is_wrong_with_a_file(server, tmp_path):
    (tmp_path / "no.png").write_text("not a picture")
    with browser(390, dark=True) as page:
        page.get(server.address)
        until(lambda: page.find_element("id", "picture").get_attribute("src"))
        page.find_element("id", "file").send_keys(str(tmp_path / "no.png"))
        until(lambda: "no PNG, JPEG or WebP picture" in page.find_element("id", "message").text)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        refused = [
            entry for entry in page.get_log("browser") if "400" not in entry["message"]
        ]  # Chromium notes the refusal itself
        assert refused == []
