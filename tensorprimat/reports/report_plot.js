"use strict";
// The interactive plots of the HTML reports: time, clock, temperature, power and loss over steps, as SVG that the style
// sheet colours.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 64, right: 14, top: 12, bottom: 40 };
const SIDES = 7; // colours in the style sheet
const DASHES = ["", "7 3", "2 3", "8 3 2 3", "12 4", "4 2"];
const OUTLIER = 4; // times the largest typical value: step times above it are marked at the edge
const LOG_SCALE_FROM = 8; // ratio of typical values above which the axis is logarithmic
const MOST_IN_READOUT = 12;
let forms; // digits and units of numbers, from the page: core/quantities decides them

function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function prepared(curve, sides) {
  const length = curve.seconds.length;
  const step = curve.step ?? Array.from({ length }, (_, row) => row + 1);
  const measured = new Array(length).fill(true);
  for (const row of curve.unmeasured) measured[row] = false;
  const name = curve.run === null ? sides[curve.side] : `${sides[curve.side]}, run ${curve.run}`;
  return { ...curve, step, measured, name, visible: true, colour: `var(--side-${curve.side % SIDES})` };
}

function startModel(section, curves, sides) {
  const timed = curves.filter((curve) => curve.seconds.some((value) => value !== null));
  const having = (of) => of === "seconds" ? timed : curves.filter((curve) => curve[of] !== null);
  if (!timed.length) section.querySelector(".without-steps").hidden = false;
  if (!timed.length && !having("loss").length) return;
  section.querySelector(".plots").hidden = false;
  const plots = [];
  for (const place of section.querySelectorAll(".plot")) {
    const own = having(place.dataset.of);
    if (own.length) plots.push(new Plot(place, own));
    else place.hidden = true;
  }
  chooser(section.querySelector("fieldset.runs"), curves, sides, () => plots.forEach((plot) => plot.draw()));
}

function chooser(fieldset, curves, sides, changed) {
  for (const side of new Set(curves.map((curve) => curve.side))) {
    const own = curves.filter((curve) => curve.side === side);
    const line = element("div", { class: "side" });
    const whole = element("input", { type: "checkbox", checked: "" });
    const swatch = element("span", { class: `swatch side-${side % SIDES}`, "aria-hidden": "true" });
    line.append(element("label", {}, whole, " ", swatch, sides[side]));
    const boxes = own.length < 2 ? [] : own.map((curve) => {
      const box = element("input", { type: "checkbox", checked: "" });
      line.append(element("label", {}, box, ` run ${curve.run}`));
      box.addEventListener("change", () => {
        curve.visible = box.checked;
        const shown = own.filter((one) => one.visible).length;
        whole.checked = shown > 0;
        whole.indeterminate = shown > 0 && shown < own.length;
        changed();
      });
      return box;
    });
    whole.addEventListener("change", () => {
      for (const curve of own) curve.visible = whole.checked;
      for (const box of boxes) box.checked = whole.checked;
      changed();
    });
    fieldset.append(line);
  }
}

class Plot {
  constructor(place, curves) {
    this.curves = curves;
    this.of = place.dataset.of;
    this.unit = place.dataset.unit;
    this.whole = [Math.min(...curves.map((c) => c.step[0])), Math.max(...curves.map((c) => c.step.at(-1)))];
    if (this.whole[0] === this.whole[1]) this.whole = [this.whole[0] - 1, this.whole[1] + 1];
    this.range = this.whole;
    this.cursor = null;
    this.fromZero = false;
    this.build(place);
    this.draw();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  build(place) {
    const title = place.dataset.title;
    const button = (text, label, act) => {
      const made = element("button", { type: "button", "aria-label": `${label}: ${title}` }, text);
      made.addEventListener("click", act);
      return made;
    };
    const zero = element("input", { type: "checkbox" });
    zero.addEventListener("change", () => { this.fromZero = zero.checked; this.draw(); });
    const note = this.curves.some((curve) => curve.shown < curve.rows)
      ? "Simplified for display: of each interval only the lowest and the highest point are drawn. " : "";
    const help = element("p", { class: "note", id: `help-${title.replaceAll(" ", "-")}-${Math.random().toString(36).slice(2)}` },
      `${note}Drag to zoom; with the keyboard: arrows move along the steps, + and − zoom, 0 shows everything.`);
    this.svg = element("svg:svg", { "aria-hidden": "true" });
    this.readout = element("div", { class: "readout", hidden: "" });
    this.live = element("p", { class: "visually-hidden", "aria-live": "polite" });
    this.canvas = element("div", {
      class: "canvas", tabindex: "0", role: "application", "aria-label": `${title}, interactive plot`,
      "aria-describedby": help.id,
    }, this.svg, this.readout);
    place.append(
      element("div", { class: "bar-of-tools" }, element("strong", {}, title),
        button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)),
        button("Whole run", "Show everything", () => this.show(this.whole)),
        element("label", {}, zero, " from zero")),
      this.canvas, this.live, help);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = this.stepAt(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const step = this.stepAt(event);
      if (start !== null) this.select(start, step);
      this.point(step, false);
    });
    canvas.addEventListener("pointerup", (event) => {
      const end = this.stepAt(event), width = Math.abs(this.x(end) - this.x(start ?? end));
      const from = start;
      start = null;
      this.selection?.remove();
      if (from !== null && width > 6) this.show([Math.min(from, end), Math.max(from, end)]);
    });
    canvas.addEventListener("pointercancel", () => { start = null; this.selection?.remove(); });
    canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) this.point(null, false); });
    canvas.addEventListener("blur", () => this.point(null, false));
    canvas.addEventListener("dblclick", () => this.show(this.whole));
    canvas.addEventListener("keydown", (event) => {
      const act = {
        ArrowLeft: () => this.move(-1), ArrowRight: () => this.move(1), Home: () => this.move(-Infinity),
        End: () => this.move(Infinity), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        "−": () => this.zoom(2), 0: () => this.show(this.whole), Escape: () => this.show(this.whole),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }

  // Scales

  get inner() {
    const width = this.canvas.clientWidth, height = this.svg.clientHeight || 320;
    return { left: MARGIN.left, right: Math.max(MARGIN.left + 50, width - MARGIN.right), top: MARGIN.top, bottom: height - MARGIN.bottom };
  }

  x(step) {
    const { left, right } = this.inner;
    return left + ((step - this.range[0]) / (this.range[1] - this.range[0])) * (right - left);
  }

  y(value) {
    const { top, bottom } = this.inner, scale = this.logarithmic ? Math.log : (v) => v;
    const [low, high] = this.limits.map(scale);
    return bottom - ((scale(value) - low) / (high - low)) * (bottom - top);
  }

  stepAt(event) {
    const { left, right } = this.inner, at = event.clientX - this.canvas.getBoundingClientRect().left;
    const share = Math.max(0, Math.min(1, (at - left) / (right - left)));
    return this.range[0] + share * (this.range[1] - this.range[0]);
  }

  // The scale is that of the measured steps in view: a first step of minutes would flatten everything else.
  scale(shown) {
    const inView = (curve, all) => curve[this.of].filter((value, row) => value !== null && value > -Infinity
      && (all || curve.measured[row] || this.of === "loss") && curve.step[row] >= this.range[0] && curve.step[row] <= this.range[1]);
    let values = shown.map((curve) => inView(curve, false)).filter((list) => list.length);
    if (!values.length) values = shown.map((curve) => inView(curve, true)).filter((list) => list.length);
    this.logarithmic = false;
    if (!values.length) { this.limits = [0, 1]; return; }
    const typical = values.map((list) => [...list].sort((a, b) => a - b)[list.length >> 1]);
    let low = Infinity, high = -Infinity;
    for (const list of values) for (const value of list) { low = Math.min(low, value); high = Math.max(high, value); }
    if (this.of === "seconds") {
      high = Math.min(high, OUTLIER * Math.max(...typical));
      if (!this.fromZero && Math.max(...typical) > LOG_SCALE_FROM * Math.min(...typical)) {
        this.logarithmic = true;
        this.limits = [low / 1.3, high * 1.6];
        return;
      }
    }
    const slack = Math.max(0.1 * (high - low), 0.01 * Math.abs(high)) || 1;
    this.limits = [this.fromZero ? Math.min(0, low) : low >= 0 ? Math.max(0, low - slack) : low - slack, high + slack];
  }

  // Drawing

  draw() {
    const shown = this.curves.filter((curve) => curve.visible);
    this.scale(shown);
    const { left, right, top, bottom } = this.inner, height = bottom + MARGIN.bottom;
    this.svg.setAttribute("viewBox", `0 0 ${right + MARGIN.right} ${height}`);
    const clip = `clip-${this.canvas.getAttribute("aria-describedby")}`;
    const parts = [element("svg:clipPath", { id: clip }, element("svg:rect", { x: left, y: top, width: right - left, height: bottom - top }))];
    parts.push(...this.axes());
    const inside = element("svg:g", { "clip-path": `url(#${clip})` });
    if (this.of === "seconds") inside.append(...this.warmups(shown));
    for (const curve of shown) inside.append(...this.paths(curve));
    parts.push(inside);
    this.marks = element("svg:g", {});
    parts.push(this.marks);
    this.svg.replaceChildren(...parts);
    this.point(this.cursor, false);
  }

  axes() {
    const { left, right, top, bottom } = this.inner, parts = [];
    for (const value of this.logarithmic ? logTicks(...this.limits) : ticks(...this.limits, 5)) {
      const y = this.y(value);
      parts.push(element("svg:line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
        element("svg:text", { x: left - 8, y: y + 4, "text-anchor": "end" }, number(value, "tick")));
    }
    for (const step of ticks(...this.range, Math.max(2, (right - left) / 90)).filter(Number.isInteger))
      parts.push(element("svg:text", { x: this.x(step), y: bottom + 18, "text-anchor": "middle" }, number(step, "count")));
    const shade = this.of === "seconds" ? " (shaded: warm-up, not measured)" : "";
    parts.push(element("svg:line", { class: "frame", x1: left, x2: right, y1: bottom, y2: bottom }),
      element("svg:text", { x: (left + right) / 2, y: bottom + 35, "text-anchor": "middle" }, `optimizer step of the run${right - left > 360 ? shade : ""}`),
      element("svg:text", { x: 13, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(top + bottom) / 2})` },
        this.unit + (this.logarithmic ? " (logarithmic)" : "")));
    return parts;
  }

  warmups(shown) {
    const ends = new Map();
    for (const curve of shown) ends.set(curve.side, Math.max(curve.warmup, ends.get(curve.side) ?? 0));
    const alike = new Set(ends.values()).size < 2, { top, bottom } = this.inner;
    return [...ends].slice(0, alike ? 1 : undefined).map(([side, end]) => {
      const from = this.x(Math.max(this.range[0], this.whole[0] - 0.5)), to = this.x(end + 0.5);
      return element("svg:rect", {
        class: "warmup", x: from, y: top, width: Math.max(0, to - from), height: bottom - top,
        ...(alike ? {} : { style: `fill: var(--side-${side % SIDES})` }),
      });
    });
  }

  paths(curve) {
    const parts = [], style = `stroke: ${curve.colour}`, dash = DASHES[curve.side % DASHES.length];
    for (const measured of [false, true]) {
      const d = this.line(curve, measured);
      if (d) parts.push(element("svg:path", { d, style, class: measured ? "" : "faint", "stroke-dasharray": measured ? dash : "" }));
    }
    const top = this.inner.top;
    const above = curve.step.filter((step, row) => curve[this.of][row] > this.limits[1] && step >= this.range[0] && step <= this.range[1]);
    const spots = new Set(above.map((step) => Math.round(this.x(step) / 6) * 6));
    for (const x of spots) parts.push(element("svg:path", { d: `M${x - 4} ${top + 8}l4-7 4 7z`, style: `fill: ${curve.colour}` }));
    return parts;
  }

  // One path. If there are more points than pixels, each pixel column has its lowest and highest. A lone point is a dot.
  line(curve, measured) {
    const values = curve[this.of], all = this.of === "loss" || !curve.measured.includes(true);
    const [from, to] = this.bounds(curve), dense = to - from > 2 * (this.inner.right - this.inner.left);
    let d = "", pen = false, column = null;
    const put = (row) => {
      const x = this.x(curve.step[row]).toFixed(1), y = Math.max(-9999, Math.min(9999, this.y(values[row]))).toFixed(1);
      d += `${pen ? "L" : "M"}${x} ${y}`;
      if (!pen) d += "h.01";
      pen = true;
    };
    const flush = () => {
      if (column) for (const row of [...new Set([column.low, column.high])].sort((a, b) => a - b)) put(row);
      column = null;
    };
    for (let row = from; row < to; row++) {
      if (values[row] === null || (all ? !measured : curve.measured[row] !== measured)) { flush(); pen = false; continue; }
      if (!dense) { put(row); continue; }
      const at = Math.round(this.x(curve.step[row]));
      if (column?.at !== at) { flush(); column = { at, low: row, high: row }; }
      if (values[row] < values[column.low]) column.low = row;
      if (values[row] > values[column.high]) column.high = row;
    }
    flush();
    return d;
  }

  bounds(curve) {
    return [Math.max(0, nearest(curve.step, this.range[0]) - 1), Math.min(curve.step.length, nearest(curve.step, this.range[1]) + 2)];
  }

  select(from, to) {
    this.selection?.remove();
    const { top, bottom } = this.inner, [a, b] = [this.x(from), this.x(to)].sort((p, q) => p - q);
    this.selection = element("svg:rect", { class: "selection", x: a, y: top, width: b - a, height: bottom - top });
    this.svg.append(this.selection);
  }

  // Moving

  show(range) {
    const [first, last] = this.whole, least = Math.min(2, last - first);
    let [from, to] = range;
    if (to - from < least) { const middle = (from + to) / 2; [from, to] = [middle - least / 2, middle + least / 2]; }
    if (from < first) [from, to] = [first, Math.min(last, to + first - from)];
    if (to > last) [from, to] = [Math.max(first, from - (to - last)), last];
    this.range = [from, to];
    this.draw();
  }

  zoom(factor) {
    const middle = this.cursor ?? (this.range[0] + this.range[1]) / 2, half = (factor * (this.range[1] - this.range[0])) / 2;
    this.show([middle - half, middle + half]);
  }

  move(by) {
    const steps = [...new Set(this.curves.filter((curve) => curve.visible).flatMap((curve) => curve.step))].sort((a, b) => a - b);
    if (!steps.length) return;
    const now = this.cursor === null ? (by > 0 ? -1 : steps.length) : nearest(steps, this.cursor);
    const next = steps[Math.max(0, Math.min(steps.length - 1, by === Infinity ? steps.length - 1 : by === -Infinity ? 0 : now + by))];
    if (next < this.range[0] || next > this.range[1]) {
      const half = (this.range[1] - this.range[0]) / 2;
      this.show([next - half, next + half]);
    }
    this.point(next, true);
  }

  point(step, aloud) {
    this.cursor = step;
    this.marks.replaceChildren();
    this.readout.hidden = true;
    if (step === null) return;
    const found = [];
    for (const curve of this.curves) {
      if (!curve.visible) continue;
      const row = nearest(curve.step, step), value = curve[this.of][row];
      const gap = Math.abs((curve.step[row + 1] ?? curve.step[row]) - (curve.step[row - 1] ?? curve.step[row])) / 2;
      const reach = Math.max(14, this.x(step + gap) - this.x(step)); // half way to the next row, or a finger's width
      if (value !== null && Math.abs(this.x(curve.step[row]) - this.x(step)) < reach) found.push({ curve, row, value });
    }
    if (!found.length) return;
    const { left, right, top, bottom } = this.inner;
    const at = found.reduce((best, one) => (Math.abs(one.curve.step[one.row] - step) < Math.abs(best - step) ? one.curve.step[one.row] : best), Infinity);
    this.marks.append(element("svg:line", { class: "cursor", x1: this.x(at), x2: this.x(at), y1: top, y2: bottom }));
    const lines = [];
    for (const { curve, row, value } of found) {
      if (value <= this.limits[1] && value >= this.limits[0])
        this.marks.append(element("svg:circle", { cx: this.x(curve.step[row]), cy: this.y(value), r: 4, style: `fill: ${curve.colour}` }));
      lines.push({ colour: curve.side % SIDES, text: described(curve, row, value, this.of) });
    }
    this.readout.replaceChildren(element("div", {}, element("strong", {}, `Step ${number(at, "count")}`)),
      ...lines.slice(0, MOST_IN_READOUT).map(({ colour, text }) =>
        element("div", {}, element("span", { class: `swatch side-${colour}` }), text)),
      ...(lines.length > MOST_IN_READOUT ? [element("div", {}, `… and ${lines.length - MOST_IN_READOUT} more`)] : []));
    this.readout.hidden = false;
    const onTheLeft = this.x(at) > (left + right) / 2;
    this.readout.style.left = onTheLeft ? `${left + 8}px` : "auto";
    this.readout.style.right = onTheLeft ? "auto" : `${MARGIN.right + 8}px`;
    if (aloud) this.live.textContent = `Step ${number(at, "count")}: ${lines.slice(0, MOST_IN_READOUT).map((line) => line.text).join("; ")}`;
  }
}

function described(curve, row, value, of) {
  const unit = forms.units[of], figure = number(value, "point") + (unit ? ` ${unit}` : "");
  const notes = [];
  if (of === "seconds" && !curve.measured[row]) notes.push("not measured");
  if (curve.index) notes.push(`iteration ${number(curve.index[row], "count")}`);
  if (curve.line && curve.line[row] >= 0) notes.push(`${curve.file ?? "log"} line ${number(curve.line[row], "count")}`);
  return `${curve.name}: ${figure}${notes.length ? ` (${notes.join(", ")})` : ""}`;
}

// Return the index of the element nearest to `value` in an array in rising order.
function nearest(rising, value) {
  let low = 0, high = rising.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= value) low = middle; else high = middle;
  }
  return Math.abs(rising[high] - value) < Math.abs(rising[low] - value) ? high : low;
}

function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let times = Math.ceil(low / step - 1e-9); times * step <= high + step * 1e-9; times++)
    found.push(Number((times * step).toPrecision(forms.digits.tick)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const factor of [1, 2, 5]) if (factor * 10 ** power >= low && factor * 10 ** power <= high) found.push(factor * 10 ** power);
  return found;
}

// The same text as in_plot of core/quantities gives.
function number(value, kind) {
  return value.toLocaleString("en", { maximumSignificantDigits: forms.digits[kind] });
}
