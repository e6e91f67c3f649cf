"use strict";
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") || "";
const NS = $("map").namespaceURI;
const N = 18;
const brief = (v) => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4)));

async function ask(path, body, raw) {
  const options = { headers: { "X-Token": token } };
  if (body !== undefined) { options.method = "POST"; options.body = raw ? body : JSON.stringify(body); }
  let answer, values;
  try { answer = await fetch(path, options); values = await answer.json(); }
  catch { throw new Error("The server does not answer; is `lebm explore` still running?"); }
  if (values.error) throw new Error(values.error);
  return values;
}

/* One request of a kind at a time; while it is under way only the latest one waits. */
function latest(work) {
  let busy = false, waiting = null;
  async function go(...args) {
    if (busy) { waiting = args; return; }
    busy = true;
    try { await work(...args); say(""); } catch (e) { say(e.message); }
    busy = false;
    if (waiting) { const next = waiting; waiting = null; go(...next); }
  }
  go.waiting = () => waiting !== null;
  return go;
}
const say = (words) => { $("message").textContent = words; };

const state = { info: null, chain: null, sheet: null, picked: 0, seed: 0, base: null, trail: true };

/* --- chains --- */
/* The slider's value, 0 to 100, as steps: K0 in the middle, or none at the left end where the run has no prior chain. */
const toSteps = (v) => {
  const { k, most } = state.info;
  if (!k) return v ? Math.round(Math.pow(most, v / 100)) : 0;
  return Math.max(1, Math.round(k * Math.pow(most / k, Math.max(0, v - 50) / 50) * Math.min(1, v / 50)));
};
const draw = latest(async () => {
  const request = { k: toSteps(Number($("k").value)), n: N, seed: state.seed, step_size: Number($("s").value) };
  $("tiles").classList.add("busy");
  try {
    await take(await ask("/api/chain", { ...request, frames: 1 })); // the samples at once, ...
    pick(state.picked, true);
  } finally { $("tiles").classList.remove("busy"); }
  if (draw.waiting()) return;
  await take(await ask("/api/chain", { ...request, frames: state.info.frames })); // ... then the path to them
  if (state.place) showMap(state.place);
});

async function take(chain) {
  const sheet = await picture(chain.sheet), atEnd = !state.chain || $("time").value === $("time").max;
  Object.assign(state, { chain, sheet });
  $("time").max = chain.steps.length - 1;
  if (atEnd) $("time").value = chain.steps.length - 1;
  showTime();
}
const picture = (uri) => new Promise((done, fail) => { const i = new Image(); i.onload = () => done(i); i.onerror = fail; i.src = uri; });

function showKnobs() {
  $("k-shown").textContent = toSteps(Number($("k").value)).toLocaleString("en");
  $("s-shown").textContent = Number($("s").value).toFixed(2);
}

function showTime() {
  const { chain, sheet, info } = state, t = Number($("time").value), [, h, w] = info.shape;
  $("time-shown").textContent = `step ${chain.steps[t].toLocaleString("en")}`;
  $("time").setAttribute("aria-valuetext", $("time-shown").textContent);
  [...$("tiles").children].forEach((tile, i) => {
    tile.firstChild.getContext("2d").drawImage(sheet, i * w, t * h, w, h, 0, 0, w, h);
    tile.title = `energy ${brief(chain.energy[t][i])}`;
  });
  showEnergy(t);
}

function showEnergy(t) {
  const { profile: p, steps, energy } = state.chain, one = energy.map((row) => row[state.picked]);
  const low = Math.min(...p.low, ...one), high = Math.max(...p.high, ...one), last = steps[steps.length - 1];
  const x = (k) => 52 + k / (last || 1) * 398, y = (e) => 160 - (e - low) / (high - low || 1) * 146;
  const path = (xs, ys) => xs.map((k, i) => `${i ? "L" : "M"}${x(k).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join("");
  const parts = [];
  for (const e of [low, (low + high) / 2, high]) parts.push(["path", { class: "grid", d: `M52 ${y(e)}H450` }], ["text", { x: 46, y: y(e) + 4, "text-anchor": "end" }, brief(Number(e.toPrecision(3)))]);
  for (const k of new Set([0, Math.round(last / 2), last])) parts.push(["text", { x: x(k), y: 180, "text-anchor": k === last ? "end" : "middle" }, k.toLocaleString("en")]);
  parts.push(["path", { class: "band c0", d: path([...p.step, ...[...p.step].reverse()], [...p.low, ...[...p.high].reverse()]) + "Z" }]);
  parts.push(["path", { class: "line c0", d: path(p.step, p.middle) }], ["path", { class: "line c1", d: path(steps, one) }]);
  if (state.info.k && state.info.k < last) parts.push(["path", { class: "mark", d: `M${x(state.info.k)} 14V160` }], ["text", { x: x(state.info.k) + 4, y: 24 }, `K₀ = ${state.info.k}`]);
  parts.push(["path", { class: "cursor", d: `M${x(steps[t])} 14V160` }]);
  fill($("energy"), parts);
}

function fill(svg, parts) {
  svg.replaceChildren(...parts.map(([name, attributes, words]) => {
    const e = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    if (words !== undefined) e.textContent = words;
    return e;
  }));
}

function pick(i, quietly) {
  state.picked = i;
  [...$("tiles").children].forEach((tile, j) => tile.setAttribute("aria-pressed", String(i === j)));
  if (quietly && state.base === "image") return showEnergy(Number($("time").value));
  state.base = "chain"; state.z = state.chain.z[i]; state.trail = true;
  for (const id of ["given-box", "mse-box", "score-box", "strange"]) $(id).hidden = true;
  $("what").textContent = `g(z), sample ${i + 1}`;
  centre();
  showEnergy(Number($("time").value));
}

/* --- one image, its directions, its place --- */
const move = latest(async () => {
  const by = sliders().map((s) => Number(s.value));
  show(await ask("/api/move", { z: state.z, by }));
});
const sliders = () => [...$("sliders").querySelectorAll("input")];

function centre() {
  for (const s of sliders()) { s.value = 0; s.nextElementSibling.textContent = "0.0"; }
  move();
}

function show(answer) {
  $("picture").src = answer.image;
  $("f").textContent = brief(answer.energy);
  $("size").textContent = brief(answer.size);
  showMap(answer.place);
}

function showMap(place) {
  state.place = place;
  const trail = state.chain && state.trail ? state.chain.trail.map((frame) => frame[state.picked]) : [];
  const dots = state.info.map, everything = [...dots, ...trail, place];
  const range = (j) => { const v = everything.map((p) => p[j]); return [Math.min(...v), Math.max(...v)]; };
  const [[x0, x1], [y0, y1]] = [range(0), range(1)];
  const scale = Math.min(376 / (x1 - x0 || 1), 276 / (y1 - y0 || 1));
  const x = (p) => 200 + (p[0] - (x0 + x1) / 2) * scale, y = (p) => 150 - (p[1] - (y0 + y1) / 2) * scale;
  fill($("map"), [
    ["path", { class: "dots c3", d: dots.map((p) => `M${x(p).toFixed(1)} ${y(p).toFixed(1)}h.1`).join("") }],
    ["path", { class: "trail", d: trail.map((p, i) => `${i ? "L" : "M"}${x(p).toFixed(1)} ${y(p).toFixed(1)}`).join("") }],
    ["circle", { class: "here", cx: x(place), cy: y(place), r: 7 }],
  ]);
}

const upload = latest(async (file) => {
  if (!file) return;
  if (file.size > 10 * 1024 * 1024) throw new Error(`${file.name} has ${(file.size / 1048576).toFixed(1)} MiB; give a picture of at most 10 MiB.`);
  say("Inferring z …");
  const answer = await ask("/api/image", file, true);
  Object.assign(state, { base: "image", z: answer.z, trail: false });
  for (const s of sliders()) { s.value = 0; s.nextElementSibling.textContent = "0.0"; }
  $("given").src = answer.given;
  $("what").textContent = "its reconstruction g(z)";
  $("mse").textContent = brief(answer.mse);
  $("score").textContent = brief(answer.score);
  const share = Math.round(100 * answer.stranger_than);
  $("strange").textContent = `Stranger to the model than ${share} % of ${answer.against}.`;
  $("strange").classList.toggle("good", share < 95);
  for (const id of ["given-box", "mse-box", "score-box", "strange"]) $(id).hidden = false;
  show(answer);
});

/* --- start --- */
function wire() {
  const { info } = state, [, h, w] = info.shape;
  for (let i = 0; i < N; i++) {
    const tile = document.createElement("button"), canvas = document.createElement("canvas");
    Object.assign(canvas, { width: w, height: h });
    tile.type = "button"; tile.append(canvas); tile.setAttribute("aria-label", `Sample ${i + 1}`); tile.setAttribute("aria-pressed", "false");
    tile.addEventListener("click", () => pick(i));
    $("tiles").append(tile);
  }
  for (let i = 0; i < info.directions; i++) {
    const label = document.createElement("label");
    const range = Object.assign(document.createElement("input"), { type: "range", min: -4, max: 4, step: 0.1, value: 0 });
    const out = Object.assign(document.createElement("output"), { textContent: "0.0" });
    range.addEventListener("input", () => { out.textContent = Number(range.value).toFixed(1); move(); });
    label.append(String(i + 1), range, out);
    $("sliders").append(label);
  }
  for (const id of ["k", "s"]) $(id).addEventListener("input", () => { showKnobs(); draw(); });
  $("again").addEventListener("click", () => { state.seed = (state.seed + 1) % 2147483647; draw(); });
  $("reset").addEventListener("click", () => { asLearned(); draw(); });
  $("time").addEventListener("input", showTime);
  $("centre").addEventListener("click", centre);
  $("play").addEventListener("click", play);
  $("file").addEventListener("change", () => { upload($("file").files[0]); $("file").value = ""; });
  $("drop").addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); $("file").click(); } });
  for (const kind of ["dragover", "dragleave", "drop"]) addEventListener(kind, (e) => {
    e.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") upload(e.dataTransfer.files[0]);
  });
}

let timer = 0;
function play() {
  const stop = () => { clearInterval(timer); timer = 0; $("play").textContent = "Play"; };
  if (timer) return stop();
  if (Number($("time").value) === Number($("time").max)) $("time").value = 0;
  $("play").textContent = "Pause";
  timer = setInterval(() => { $("time").value = Number($("time").value) + 1; showTime(); if ($("time").value === $("time").max) stop(); }, 160);
}

function asLearned() { $("k").value = state.info.k ? 50 : 0; $("s").value = state.info.step_size; showKnobs(); }

ask("/api/info").then((info) => {
  state.info = info;
  document.title = `${info.name} · Explore · lebm`;
  $("title").textContent = info.name;
  $("lead").textContent = `${info.nz} latent dimensions. Prior: ${info.prior}. Posterior: ${info.posterior}.`;
  if (info.report) { $("report").hidden = false; $("report").href = `/run/report.html?token=${encodeURIComponent(token)}`; }
  wire(); asLearned(); draw();
}).catch((e) => { $("lead").textContent = e.message; });
