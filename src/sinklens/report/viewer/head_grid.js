/** Layer by head. */

import { fit, haloed, label, ticks } from "./drawing.js";
import { clamp, element } from "./small.js";

/** Layer by head: the strongest sink of every head, at this step or on average. */
export class HeadGrid {
  constructor(sample, act) {
    this.sample = sample;
    this.act = act;
    this.cursor = 0;
    this.canvas = element("canvas", {
      tabindex: 0,
      role: "application",
      "data-part": "grid",
      "data-layers": sample.L,
      "data-heads": sample.H,
      "aria-label": "Grid of layers and heads; arrow keys move, Enter selects, Shift and Enter adds",
    });
    this.node = element("div", { class: "grid" }, this.canvas);
    this.listen();
  }

  listen() {
    this.canvas.addEventListener("click", (event) => {
      const head = this.headAt(event);
      if (head === null) return;
      this.cursor = head;
      this.act.pick(head, event.shiftKey || event.ctrlKey || event.metaKey);
    });
    this.canvas.addEventListener("pointermove", (event) => this.act.point(this.headAt(event), event));
    this.canvas.addEventListener("pointerleave", () => this.act.point(null));
    this.canvas.addEventListener("blur", () => this.act.point(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { L, H } = this.sample;
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -H, ArrowDown: H }[event.key];
    const picks = event.key === "Enter" || event.key === " ";
    if (move === undefined && !picks) return;
    event.preventDefault();
    event.stopPropagation();
    if (picks) this.act.pick(this.cursor, event.shiftKey || event.ctrlKey);
    else {
      this.cursor = clamp(this.cursor + move, 0, L * H - 1);
      this.draw(this.last);
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = this.corner(this.cursor);
      this.act.point(this.cursor, { clientX: box.left + x + this.cell, clientY: box.top + y + this.cell });
    }
  }

  headAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.cell);
    const row = Math.floor((event.clientY - box.top - this.top) / this.cell);
    const { L, H } = this.sample;
    return column < 0 || row < 0 || column >= H || row >= L ? null : row * H + column;
  }

  corner(head) {
    const { H } = this.sample;
    return [this.left + (head % H) * this.cell, this.top + Math.floor(head / H) * this.cell];
  }

  layOut() {
    [this.left, this.top] = [30, 16];
    this.cell = clamp(Math.floor((this.node.clientWidth - this.left - 4) / this.sample.H), 4, 28);
    Object.assign(this.canvas.dataset, { cell: this.cell, left: this.left, top: this.top });
  }

  /** @param scene values: one a head, NaN: not known; toShade, shades, heads (the selection), colours */
  draw(scene) {
    const { L, H, json } = this.sample;
    this.last = scene;
    const pen = fit(this.canvas, this.left + H * this.cell + 4, this.top + L * this.cell + 4);
    const gap = this.cell > 7 ? 1 : 0;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.picture(scene), this.left, this.top, H * this.cell, L * this.cell);
    pen.fillStyle = scene.colours.paper;
    for (let at = 1; at <= H; at++) pen.fillRect(this.left + at * this.cell - gap, this.top, gap, L * this.cell);
    for (let at = 1; at <= L; at++) pen.fillRect(this.left, this.top + at * this.cell - gap, H * this.cell, gap);
    pen.font = scene.colours.font;
    pen.fillStyle = scene.colours.muted;
    for (const at of ticks(H - 1, (H * this.cell) / 26))
      label(pen, String(json.heads[at]), this.left + (at + 0.5) * this.cell, 2);
    for (const at of ticks(L - 1, (L * this.cell) / 20))
      label(pen, String(json.layers[at]), this.left - 6, this.top + (at + 0.5) * this.cell, "right", "middle");
    this.outline(pen, scene, gap);
  }

  /** One pixel a head. */
  picture({ values, toShade, shades, colours }) {
    const { L, H } = this.sample;
    const image = new ImageData(H, L);
    const pixels = new Uint32Array(image.data.buffer);
    for (let head = 0; head < L * H; head++) {
      pixels[head] = values[head] === values[head] ? shades.pixels[toShade(values[head])] : colours.absent;
    }
    this.small ??= element("canvas", { width: H, height: L });
    this.small.getContext("2d").putImageData(image, 0, 0);
    return this.small;
  }

  outline(pen, { heads, colours }, gap) {
    const path = new Path2D();
    const box = (head, grow) => {
      const [x, y] = this.corner(head);
      path.rect(x - grow, y - grow, this.cell - gap + 2 * grow, this.cell - gap + 2 * grow);
    };
    if (heads.length < this.sample.L * this.sample.H) heads.forEach((head) => box(head, 0));
    haloed(pen, { paper: colours.paper, line: colours.accent }, 1.75, path);
    if (document.activeElement !== this.canvas) return;
    const [x, y] = this.corner(this.cursor);
    pen.setLineDash([3, 2]);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1;
    pen.strokeRect(x - 2.5, y - 2.5, this.cell - gap + 5, this.cell - gap + 5);
    pen.setLineDash([]);
  }
}
