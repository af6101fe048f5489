/** Scores with the line of epsilon, and the survival of tracks. */

import { BIN, LEAST_EPSILON } from "./constants.js";
import { fit, haloed, label, ticks } from "./drawing.js";
import { clamp, element } from "./small.js";

/** How many cells have which excess, and the line that epsilon draws between them. */
export class Histogram {
  constructor(least, act) {
    this.least = least;
    this.act = act;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.handle = element("div", {
      class: "epsilon-line",
      role: "slider",
      tabindex: 0,
      "data-part": "epsilon-line",
      "aria-label": "Threshold epsilon, in fair shares above the others",
      "aria-valuemin": least,
    });
    this.node = element("div", { class: "histogram", "data-part": "histogram" }, this.canvas, this.handle);
    const drag = (event) => act.epsilon(this.valueAt(event));
    this.node.addEventListener("pointerdown", (event) => {
      this.node.setPointerCapture(event.pointerId);
      drag(event);
    });
    this.node.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) drag(event);
    });
    this.handle.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const now = Number(this.handle.getAttribute("aria-valuenow"));
    const to = {
      ArrowLeft: now - 0.1,
      ArrowDown: now - 0.1,
      ArrowRight: now + 0.1,
      ArrowUp: now + 0.1,
      PageUp: now + 1,
      PageDown: now - 1,
      Home: LEAST_EPSILON,
      End: this.end,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.act.epsilon(to);
  }

  valueAt(event) {
    const box = this.node.getBoundingClientRect();
    const at = clamp((event.clientX - box.left - this.left) / this.width, 0, 1);
    return at * at * this.end;
  }

  draw({ survey, epsilon, colours }) {
    const { counts } = survey;
    let bins = counts.length;
    while (bins > 1 && !counts[bins - 1]) bins--;
    this.end = Math.max((bins * BIN) ** 2, 1.5 * epsilon, 4);
    const [width, height] = [this.node.clientWidth, 118];
    [this.left, this.width] = [30, width - 38];
    const pen = fit(this.canvas, width, height);
    const floor = height - 30;
    const most = Math.log10(1 + Math.max(...counts));
    const x = (value) => this.left + this.width * Math.sqrt(value / this.end);
    const y = (count) => floor - (floor - 8) * (most ? Math.log10(1 + count) / most : 0);
    this.axes(pen, { x, y, floor, most, colours });
    for (let bin = 0; bin < bins; bin++) {
      if (!counts[bin]) continue;
      const [from, to] = [x((bin * BIN) ** 2), x(((bin + 1) * BIN) ** 2)];
      pen.fillStyle = (bin + 0.5) * BIN > Math.sqrt(epsilon) ? colours.accent : colours.muted;
      pen.fillRect(from, y(counts[bin]), Math.max(to - from - 0.5, 0.5), floor - y(counts[bin]));
    }
    pen.fillStyle = colours.accent;
    pen.fillRect(x(epsilon) - 1, 6, 2, floor - 6);
    pen.beginPath();
    pen.arc(x(epsilon), 6, 5.5, 0, 7);
    pen.fill();
    this.handle.style.left = `${x(epsilon)}px`;
    this.handle.setAttribute("aria-valuenow", epsilon.toFixed(2));
    this.handle.setAttribute("aria-valuemax", this.end.toFixed(0));
  }

  axes(pen, { x, y, floor, most, colours }) {
    pen.font = colours.font;
    pen.fillStyle = colours.muted;
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.stroke(new Path2D(`M${this.left} ${floor + 0.5}H${this.left + this.width}`));
    for (let power = 0; power <= most; power += Math.max(1, Math.ceil(most / 3))) {
      const at = y(10 ** power - 1);
      pen.stroke(new Path2D(`M${this.left} ${Math.round(at) + 0.5}H${this.left + this.width}`));
      label(pen, power < 4 ? String(10 ** power) : `${10 ** (power - 3)}k`, this.left - 4, at, "right", "middle");
    }
    let free = -Infinity;
    for (const value of [0, 1, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000]) {
      if (value > this.end || x(value) < free) continue;
      label(pen, String(value), x(value), floor + 4);
      free = x(value) + 22;
    }
    label(pen, "excess over the other tokens, fair shares", this.left + this.width, floor + 17, "right");
  }
}

/** The share of sinks that live longer than so many steps. */
export function drawSurvival(canvas, { curve, median }, { width, end, colours }) {
  const height = 96;
  const pen = fit(canvas, width, height);
  const [left, floor, wide] = [36, height - 28, width - 44];
  const x = (age) => left + (age / end) * wide;
  const y = (share) => floor - share * (floor - 6);
  pen.font = colours.font;
  pen.fillStyle = colours.muted;
  pen.strokeStyle = colours.line;
  for (const share of [0, 0.5, 1]) {
    pen.stroke(new Path2D(`M${left} ${Math.round(y(share)) + 0.5}h${wide}`));
    label(pen, `${100 * share}%`, left - 4, y(share), "right", "middle");
  }
  for (const age of ticks(end, wide / 60)) label(pen, String(age), x(age), floor + 4);
  label(pen, "steps survived", left + wide, floor + 16, "right");
  const path = new Path2D();
  curve.forEach(([age, share], at) => {
    if (!at) return path.moveTo(x(age), y(share));
    path.lineTo(x(age), y(curve[at - 1][1]));
    return path.lineTo(x(age), y(share));
  });
  path.lineTo(x(end), y(curve.at(-1)[1]));
  haloed(pen, { paper: colours.paper, line: colours.accent }, 1.75, path);
  if (median === null) return;
  pen.fillStyle = colours.ink;
  pen.beginPath();
  pen.arc(x(median), y(0.5), 3.5, 0, 7);
  pen.fill();
}
