"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const brief = (v) => v === null || v === undefined ? "–" : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4)));

for (const button of all("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", () => navigator.clipboard.writeText(button.previousElementSibling.textContent)
    .then(() => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); }));
}
addEventListener("beforeprint", () => all("details").forEach((d) => { d.open = true; }));

/* Charts: a line that follows the pointer or the arrow keys, with the values under it. */
const NS = document.documentElement.namespaceURI.replace("1999/xhtml", "2000/svg");
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip"; tip.hidden = true;

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const m = (low + high) >> 1; if (xs[m] <= x) low = m; else high = m; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

for (const svg of all("svg[data-chart]")) {
  const { box, range, x: label, series } = JSON.parse(svg.dataset.chart);
  if (!series.length) continue;
  const longest = series.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  const cursor = svg.appendChild(document.createElementNS(NS, "path"));
  cursor.setAttribute("class", "cursor");
  let at = -1;
  svg.showAt = (i, quiet) => {
    at = Math.max(0, Math.min(longest.x.length - 1, i));
    const x = longest.x[at], place = box[0] + (x - range[0]) / (range[1] - range[0]) * (box[2] - box[0]);
    cursor.setAttribute("d", `M${place} ${box[1]}V${box[3]}`);
    if (quiet) return;
    tip.replaceChildren();
    const head = tip.appendChild(document.createElement("b"));
    head.textContent = `${label} ${brief(x)}`;
    for (const s of series) {
      const row = tip.appendChild(document.createElement("span"));
      row.className = `key c${s.colour}`;
      row.textContent = `${s.name ? s.name + " " : ""}${brief(s.y[nearest(s.x, x)])}`;
    }
    tip.hidden = false;
    const r = svg.getBoundingClientRect(), left = r.left + place / svg.viewBox.baseVal.width * r.width;
    tip.style.left = `${Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, left + (left > innerWidth / 2 ? -tip.offsetWidth - 12 : 12)))}px`;
    tip.style.top = `${Math.max(8, r.top + 12)}px`;
  };
  svg.showStep = (x) => svg.showAt(nearest(longest.x, x), true);
  const leave = () => { tip.hidden = true; if (!svg.held) cursor.removeAttribute("d"); };
  svg.addEventListener("pointermove", (e) => {
    const r = svg.getBoundingClientRect(), p = (e.clientX - r.left) / r.width * svg.viewBox.baseVal.width;
    svg.showAt(nearest(longest.x, range[0] + (p - box[0]) / (box[2] - box[0]) * (range[1] - range[0])));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (e) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -1e9, End: 1e9 }[e.key];
    if (by) { e.preventDefault(); svg.showAt((at < 0 ? (by < 0 ? longest.x.length : -1) : at) + by); }
    if (e.key === "Escape") leave();
  });
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

/* Chains: one sheet of frames behind a window of one row. */
for (const player of all("[data-player]")) {
  const { steps, energy } = JSON.parse(player.dataset.player);
  const [range, output, image, play] = ["input", "output", ".window img", "[data-play]"].map((s) => player.querySelector(s));
  const numbers = all(".energies span", player), chart = player.parentElement.querySelector("svg[data-name=chains]");
  if (chart) chart.held = true;
  const show = () => {
    const k = Number(range.value);
    image.style.setProperty("--k", k);
    output.textContent = `step ${steps[k].toLocaleString("en")}`;
    range.setAttribute("aria-valuetext", output.textContent);
    numbers.forEach((n, i) => { n.textContent = brief(energy[k][i]); });
    if (chart) chart.showStep(steps[k]);
  };
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(range.value) === steps.length - 1) range.value = 0;
    play.textContent = "Pause";
    show();
    timer = setInterval(() => { range.value = Number(range.value) + 1; show(); if (Number(range.value) >= steps.length - 1) stop(); }, 350);
  });
  range.addEventListener("input", () => { if (timer) stop(); show(); });
  show();
}
