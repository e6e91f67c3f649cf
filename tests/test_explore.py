"""The explorer's server: what it answers, and what it refuses without falling over."""

import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import threading
from importlib import resources

import numpy as np
import pytest
import torch
from PIL import Image

import lebm
from lebm.core.errors import UserError
from lebm.measure.analysis import Subject
from lebm.show.explorer import Lab, Server
from lebm.show.explorer.lab import strongest
from lebm.show.explorer.server import MAX_IMAGE, MAX_JSON

FLOW = {"kind": "flow", "width": 8, "layers": 2}
CHAIN = {"k": 6, "n": 3, "seed": 0, "step_size": 0.4, "frames": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    run = tmp_path_factory.mktemp("explore") / "digits"
    lebm.train({"preset": "digits", "training.updates": 3, "method.prior_chain.steps": 5, "data.limit": 200}, run=run)
    (run / "report.html").write_text("<p>a report")
    (run.parent / "secret.html").write_text("outside")
    (run / "link.html").symlink_to(run.parent / "secret.html")
    with Server(Lab(Subject(run, "cpu"))) as s:
        thread = threading.Thread(target=s.serve_forever, daemon=True)
        thread.start()
        yield s
        s.shutdown()
        thread.join(10)


def call(server, method, path, body=None, **headers):
    """Status, headers and body; the token is sent unless `token` says otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    token = headers.pop("token", server.token)
    given = {"X-Token": token} if token is not None else {}
    connection.request(method, path, body, {**given, **{k.replace("_", "-"): v for k, v in headers.items()}})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def ask(server, path, values):
    status, _, content = call(server, "POST", path, json.dumps(values))
    return status, json.loads(content)


def png(size=(12, 12), colour=200):
    buffer = io.BytesIO()
    Image.new("L", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def alive(server):
    status, _, content = call(server, "GET", "/api/info")
    return status == 200 and json.loads(content)["name"] == "digits/paper"


def test_the_page_and_its_guards(server):
    status, headers, content = call(server, "GET", f"/?token={server.token}", token=None)
    assert status == 200 and b"<title>Explore" in content and server.token.encode() not in content
    assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store" and server.server_address[0] == "127.0.0.1"
    assert not any(word in content for word in (b"http://", b"https://", b"@import"))


def test_info_is_what_the_page_needs(server):
    info = json.loads(call(server, "GET", "/api/info")[2])
    assert (info["nz"], info["shape"], info["k"], info["directions"]) == (16, [1, 8, 8], 5, 8)
    assert len(info["map"]) == 400 and all(len(p) == 2 for p in info["map"]) and info["report"] is True


def test_chains_answer_to_k_and_step_size(server):
    status, a = ask(server, "/api/chain", CHAIN)
    assert status == 200 and a["steps"] == [0, 2, 4, 6]
    assert np.shape(a["energy"]) == (4, 3) and np.shape(a["trail"]) == (4, 3, 2) and np.shape(a["z"]) == (3, 16)
    assert a == ask(server, "/api/chain", CHAIN)[1]
    quick = ask(server, "/api/chain", CHAIN | {"frames": 1})[1]
    assert quick["steps"] == [0, 6] and quick["z"] == a["z"]  # fewer frames of the same chains
    for change in ({"k": 7}, {"step_size": 0.1}, {"seed": 1}):
        assert ask(server, "/api/chain", CHAIN | change)[1]["z"] != a["z"]


def test_a_run_without_a_prior_chain_shows_its_own_draws_and_goes_on_from_there(tmp_path):
    pytest.importorskip("zuko")
    run = tmp_path / "flow"
    lebm.train(
        {
            "preset": "digits",
            "training.updates": 3,
            "data.limit": 200,
            "method.prior_start": FLOW,
            "method.prior_chain.steps": 0,
        },
        run=run,
    )
    lab = Lab(Subject(run, "cpu"))
    lab.method.prior_start.q.shift.data.fill_(3)  # far from p_0
    info = lab.info()
    assert (info["k"], info["prior"]) == (0, "by the flow alone")
    still, moved = (lab.chain(CHAIN | {"k": k}) for k in (0, 6))
    assert still["steps"] == [0] and np.shape(still["energy"]) == (1, 3) and np.shape(still["trail"]) == (1, 3, 2)
    assert (
        np.mean(still["z"]) == pytest.approx(3, abs=0.5)
        and moved["trail"][0] == still["trail"][0]
        and moved["z"] != still["z"]
    )


def slider(k, values):
    """What the page makes of these values of its slider, where K0 is k."""
    node = shutil.which("node")
    if not node:
        pytest.skip("node is not installed")
    script = (resources.files("lebm.show.explorer") / "page.js").read_text(encoding="utf-8")
    to_steps = re.search(r"^const toSteps = .*?;\n(?=const )", script, re.M | re.S)[0]
    state = f"const state = {{ info: {{ k: {k}, most: 5000 }} }};"
    ask = f"{state}\n{to_steps}\nconsole.log(JSON.stringify({values}.map(toSteps)));"
    return json.loads(subprocess.run([node, "-e", ask], capture_output=True, text=True, check=True).stdout)


def test_the_slider_of_steps_works_with_and_without_a_prior_chain():
    assert slider(60, [0, 25, 50, 75, 100]) == [1, 30, 60, round((60 * 5000) ** 0.5), 5000]
    without = slider(0, list(range(101)))
    assert without[0] == 0 and without[1] == 1 and without[100] == 5000 and without == sorted(without)


def test_moving_along_a_direction_changes_the_image_and_back(server):
    z = ask(server, "/api/chain", CHAIN)[1]["z"][0]
    still = ask(server, "/api/move", {"z": z, "by": [0] * 8})[1]
    moved = ask(server, "/api/move", {"z": z, "by": [3] + [0] * 7})[1]
    assert (
        still["z"] == pytest.approx(z, abs=1e-3)
        and moved["image"] != still["image"]
        and moved["place"] != still["place"]
    )
    lab = server.lab
    assert lab._directions @ lab._directions.T == pytest.approx(torch.eye(8).numpy(), abs=1e-4)


def test_the_strongest_directions_of_a_linear_generator_are_its_own():
    class Diagonal:
        @staticmethod
        def decode(z):
            return z * torch.tensor([1.0, 5.0, 3.0])

    answer = strongest(Diagonal, torch.zeros(2, 3), count=2)
    assert answer.numpy() == pytest.approx(np.array([[0, 1, 0], [0, 0, 1]]), abs=1e-4)


def test_a_picture_is_reconstructed_and_scored(server):
    status, _, content = call(server, "POST", "/api/image", png())
    answer = json.loads(content)
    assert status == 200 and answer["against"] == "64 test images" and 0 <= answer["stranger_than"] <= 1
    pixels = torch.full((1, 1, 8, 8), 200, dtype=torch.uint8)
    assert answer["score"] == pytest.approx(float(server.lab.method.anomaly_score(pixels)), rel=1e-4)
    assert len(answer["z"]) == 16 and answer["mse"] > 0 and answer["given"].startswith("data:image/png")


@pytest.mark.parametrize("token", [None, "", "wrong", "é" * 10])
def test_without_the_token_nothing_is_answered(server, token):
    for method, path in (("GET", "/"), ("GET", "/api/info"), ("POST", "/api/chain"), ("GET", "/run/report.html")):
        headers = {} if token is None else {"token": token.encode("utf-8").decode("latin-1")}
        status, _, content = call(
            server, method, path, b"{}" if method == "POST" else None, **({"token": None} | headers)
        )
        assert status == 403 and "token" in json.loads(content)["error"]
    assert alive(server)


@pytest.mark.parametrize(
    "header",
    [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}, {"Origin": "null"}],
)
def test_other_names_and_other_pages_are_refused(server, header):
    status, _, content = call(server, "GET", "/api/info", **header)
    assert status == 403 and "error" in json.loads(content)
    assert alive(server)


def test_huge_uploads_are_refused(server):
    status, _, content = call(server, "POST", "/api/image", b"x" * (MAX_IMAGE + 1))
    assert status == 413 and "10 MiB" in json.loads(content)["error"]
    status, _, content = call(server, "POST", "/api/chain", b" " * (MAX_JSON + 1))
    assert status == 413
    assert alive(server)


def test_a_length_that_is_a_lie_or_missing(server):
    for head, status in (
        (b"Content-Length: 999999999999999999\r\n", b"413"),
        (b"Content-Length: -5\r\n", b"411"),
        (b"", b"411"),
    ):
        with socket.create_connection(server.server_address, timeout=20) as s:
            host = f"127.0.0.1:{server.server_address[1]}".encode()
            s.sendall(
                b"POST /api/image HTTP/1.0\r\nHost: "
                + host
                + b"\r\nX-Token: "
                + server.token.encode()
                + b"\r\n"
                + head
                + b"\r\nabc"
            )
            s.shutdown(socket.SHUT_WR)
            assert status in s.recv(4096).split(b"\r\n")[0]
    assert alive(server)


def test_what_is_not_a_picture_is_refused(server):
    wide = io.BytesIO()
    Image.new("1", (9000, 9000)).save(wide, "PNG")  # few bytes, many pixels
    for data, words in (
        (b"not a picture", "no PNG"),
        (b"", "no PNG"),
        (png((50, 50))[:50], "cannot be decoded"),
        (wide.getvalue(), "million"),
    ):
        status, _, content = call(server, "POST", "/api/image", data)
        assert status == 400 and words in json.loads(content)["error"], words
    assert alive(server)


@pytest.mark.parametrize(
    ("path", "values", "words"),
    [
        ("/api/chain", CHAIN | {"k": -1}, "k is '-1'; it must be a whole number from 0 to 5000"),
        ("/api/chain", CHAIN | {"k": 10**9}, "from 0 to 5000"),
        ("/api/chain", CHAIN | {"k": "6"}, "whole number"),
        ("/api/chain", CHAIN | {"k": True}, "whole number"),
        ("/api/chain", CHAIN | {"step_size": 0}, "step_size"),
        ("/api/chain", CHAIN | {"step_size": float("nan")}, "step_size"),
        ("/api/chain", {}, "must be"),
        ("/api/move", {"z": [0.0] * 16}, "by must be a list of 8"),
        ("/api/move", {"z": [0.0] * 3, "by": [0] * 8}, "z must be a list of 16"),
        ("/api/move", {"z": ["x"] * 16, "by": [0] * 8}, "z must be a list"),
        ("/api/move", {"z": [float("inf")] * 16, "by": [0] * 8}, "z must be a list"),
    ],
)
def test_requests_that_make_no_sense(server, path, values, words):
    status, answer = ask(server, path, values)
    assert status == 400 and words in answer["error"]
    assert alive(server)


def test_requests_that_are_no_requests(server):
    assert call(server, "POST", "/api/chain", b"{")[0] == 400
    assert call(server, "POST", "/api/chain", b"[" * 5000)[0] == 400
    assert call(server, "POST", "/api/chain", b"[1]")[0] == 400
    assert call(server, "POST", "/api/nothing", b"{}")[0] == 404
    assert call(server, "GET", "/nothing")[0] == 404
    assert call(server, "DELETE", "/")[0] == 501
    assert alive(server)


def test_files_of_the_run_and_nothing_else(server):
    assert call(server, "GET", "/run/report.html")[2] == b"<p>a report"
    for path in (
        "../secret.html",
        "%2e%2e/secret.html",
        "..%2fsecret.html",
        "/etc/passwd",
        "//etc/passwd",
        "link.html",
        "model.safetensors",
        "",
        "%00",
        "figures",
    ):
        status, _, content = call(server, "GET", f"/run/{path}")
        assert status == 404 and "no such page" in json.loads(content)["error"], path
    assert alive(server)


def test_a_failure_inside_is_a_sentence(server, monkeypatch):
    monkeypatch.setattr(server.lab, "chain", lambda asked: 1 / 0)
    status, answer = ask(server, "/api/chain", CHAIN)
    assert status == 500 and "ZeroDivisionError" in answer["error"]
    monkeypatch.undo()
    assert alive(server)


def test_chains_that_fly_apart_are_refused(server, monkeypatch):
    monkeypatch.setattr(server.lab.method.prior, "score_white", lambda z: z * 1e30)
    status, answer = ask(server, "/api/chain", CHAIN)
    assert status == 400 and "fly apart" in answer["error"]


def test_many_at_once(server):
    answer = []
    threads = [
        threading.Thread(target=lambda: answer.append(ask(server, "/api/chain", CHAIN)[1]["z"])) for _ in range(6)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(answer) == 6 and all(z == answer[0] for z in answer)


def test_a_taken_port_is_the_users_mistake(server):
    with pytest.raises(UserError, match="cannot be taken"):
        Server(server.lab, server.server_address[1])


def test_without_the_data_samples_stand_in(tmp_path):
    run = tmp_path / "user"
    lebm.train({"preset": "digits", "training.updates": 1}, data=np.zeros((20, 1, 8, 8), dtype=np.uint8), run=run)
    lab = Lab(Subject(run, "cpu"))
    assert lab.image(png())["against"] == "64 samples of the model"
