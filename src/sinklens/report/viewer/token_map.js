/** Token by step. */

import { MOST_TRACKS } from "./constants.js";
import { drawTrack, fit, haloed, label, mapImage, ticks } from "./drawing.js";
import { stateAt } from "./sample.js";
import { clamp, element } from "./small.js";

/** Token by step. One canvas for what depends on the selection, one above it for where we are. */
export class TokenMap {
  /** @param beside whether another map stands next to it: then both are equally high */
  constructor(sample, beside, act) {
    this.sample = sample;
    this.beside = beside;
    this.act = act;
    this.base = element("canvas", { "aria-hidden": "true" });
    this.over = element("canvas", {
      tabindex: 0,
      role: "application",
      "data-part": "map",
      "aria-label": "Map of attention received, token by step; arrow keys move step and token",
    });
    this.node = element("div", { class: "map" }, this.base, this.over);
    this.listen();
  }

  listen() {
    const jump = (event) => {
      const [k, t] = this.cellAt(event);
      this.act.jump(t, k);
    };
    this.over.addEventListener("pointerdown", (event) => {
      this.over.setPointerCapture(event.pointerId);
      jump(event);
    });
    this.over.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) jump(event);
      const [k, t] = this.cellAt(event);
      this.act.point(t, k, event);
    });
    this.over.addEventListener("pointerleave", () => this.act.point(null));
    this.over.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      this.act.move(...move);
    });
  }

  /** Where the plot lies inside the canvas. */
  layOut(width) {
    const { T } = this.sample;
    const rows = this.beside ? 240 : clamp(T * 8, 150, width < 480 ? 240 : 330);
    this.plot = { left: 38, top: 8, width: Math.max(40, width - 38 - 10), height: rows };
    this.size = [width, rows + 8 + 34];
  }

  cellAt(event) {
    const { left, top, width, height } = this.plot;
    const box = this.over.getBoundingClientRect();
    const k = Math.floor(((event.clientX - box.left - left) / width) * this.sample.K);
    const t = Math.floor(((event.clientY - box.top - top) / height) * this.sample.T);
    return [clamp(k, 0, this.sample.K - 1), clamp(t, 0, this.sample.T - 1)];
  }

  /** The middle of a cell on the canvas. */
  place(k, t) {
    const { left, top, width, height } = this.plot;
    return [left + ((k + 0.5) / this.sample.K) * width, top + ((t + 0.5) / this.sample.T) * height];
  }

  draw(scene) {
    const { sample } = this;
    this.layOut(this.node.clientWidth);
    const { left, top, width, height } = this.plot;
    const pen = fit(this.base, ...this.size);
    const columns = Math.min(sample.K, Math.round(width));
    const image = mapImage(sample, scene.values, {
      columns,
      toShade: scene.toShade,
      pixels: scene.shades.pixels,
      absent: scene.colours.absent,
    });
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, left, top, width, height);
    this.drawAxes(pen, scene.colours);
    this.drawCommits(pen, scene.colours);
    if (scene.tracks) {
      pen.save();
      pen.beginPath();
      pen.rect(left - 5, top - 5, width + 10, height + 10);
      pen.clip();
      for (const track of scene.shownTracks.slice(0, MOST_TRACKS).reverse())
        drawTrack(pen, track, (k, t) => this.place(k, t), scene.colours);
      pen.restore();
    }
    this.drawCursor(scene);
  }

  drawAxes(pen, colours) {
    const { sample } = this;
    const { left, top, width, height } = this.plot;
    pen.font = colours.font;
    pen.fillStyle = colours.muted;
    for (const k of ticks(sample.K - 1, width / 70)) label(pen, String(k), this.place(k, 0)[0], top + height + 5);
    for (const t of ticks(sample.T - 1, height / 40))
      label(pen, String(sample.json.step_numbers[t]), left - 6, this.place(0, t)[1], "right", "middle");
    label(pen, "token position", left + width, top + height + 19, "right");
    label(pen, "step", left - 6, top + height + 5, "right");
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  }

  /** Where the prompt ends, and for every token the step at which it appears. */
  drawCommits(pen, colours) {
    const { sample } = this;
    const { left, top, width, height } = this.plot;
    const x = left + (sample.json.prompt_length / sample.K) * width;
    pen.fillStyle = pen.strokeStyle = colours.muted;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.stroke(new Path2D(`M${x} ${top}V${top + height + 4}`));
    pen.setLineDash([]);
    label(pen, "prompt ends", clamp(x, left + 32, left + width - 110), top + height + 19);
    const cellWidth = width / sample.K;
    if (cellWidth < 1.5) return;
    pen.globalAlpha = 0.75;
    for (let k = sample.json.prompt_length; k < sample.K; k++) {
      for (let t = 1; t < sample.T; t++) {
        if (stateAt(sample, t, k) === "new")
          pen.fillRect(left + k * cellWidth, top + (t / sample.T) * height - 0.5, cellWidth, 1);
      }
    }
    pen.globalAlpha = 1;
  }

  /** The current step, the block being filled, and the chosen token. */
  drawCursor({ step, token, colours }) {
    const { left, top, width, height } = this.plot;
    const pen = fit(this.over, ...this.size);
    const row = height / this.sample.T;
    const y = top + step * row;
    const path = new Path2D();
    path.rect(left - 1, y - 0.5, width + 2, Math.max(row, 1) + 1);
    haloed(pen, { paper: colours.paper, line: colours.accent }, 1.5, path);
    pen.fillStyle = colours.accent;
    pen.fill(new Path2D(`M${left - 2} ${y + row / 2}l-5-4v8z`));
    const block = this.sample.json.block?.[step];
    if (block)
      pen.fillRect(
        left + (block[0] / this.sample.K) * width,
        top + height + 1,
        ((block[1] - block[0]) / this.sample.K) * width,
        3,
      );
    if (token === null) return;
    const [x] = this.place(token, 0);
    haloed(pen, { paper: colours.paper, line: colours.ink }, 1, new Path2D(`M${x} ${top}V${top + height}`));
  }
}
