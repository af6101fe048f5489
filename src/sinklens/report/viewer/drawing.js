/** What several views draw with. */

import { KINDS } from "./constants.js";

/** A canvas of so many CSS pixels, sharp on any screen, cleared. */
export function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    Object.assign(canvas, { width: w, height: h });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/** Whole numbers for an axis from 0 to `end`, about `count` of them, round ones. */
export function ticks(end, count) {
  const rough = Math.max(end / count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, at) => at * step);
}

export function label(pen, text, x, y, align = "center", baseline = "top") {
  pen.textAlign = align;
  pen.textBaseline = baseline;
  pen.fillText(text, x, y);
}

/** The map as pixels, a row a step. Where tokens outnumber columns, a column shows the most extreme of its tokens. */
export function mapImage(sample, values, { columns, toShade, pixels, absent }) {
  const { T, K } = sample;
  const image = new ImageData(columns, T);
  const out = new Uint32Array(image.data.buffer);
  for (let t = 0; t < T; t++) {
    for (let x = 0; x < columns; x++) {
      const stop = Math.max(Math.floor(((x + 1) * K) / columns), Math.floor((x * K) / columns) + 1);
      let most = NaN;
      for (let k = Math.floor((x * K) / columns); k < stop; k++) {
        const value = values[t * K + k];
        if (value === value && !(Math.abs(value) <= Math.abs(most))) most = value;
      }
      out[t * columns + x] = most === most ? pixels[toShade(most)] : absent;
    }
  }
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: T });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** A line with a halo, so that it can be told from any colour below it. */
export function haloed(pen, colours, width, path) {
  pen.lineJoin = pen.lineCap = "round";
  for (const [colour, wide] of [
    [colours.paper, width + 2],
    [colours.line, width],
  ]) {
    pen.strokeStyle = colour;
    pen.lineWidth = wide;
    pen.stroke(path);
  }
}

export function drawTrack(pen, track, place, { paper, theme }) {
  const { shape, [theme]: colour } = KINDS[track.kind];
  const path = new Path2D();
  track.positions.forEach((position, at) => {
    const [x, y] = place(position, track.birth + at);
    if (at) path.lineTo(x, y);
    else path.moveTo(x, y);
  });
  haloed(pen, { paper, line: colour }, 1.5, path);
  const mark = new Path2D();
  const [x, y] = place(track.positions[0], track.birth);
  mark.addPath(new Path2D(shape), new DOMMatrix([4, 0, 0, 4, x, y]));
  haloed(pen, { paper, line: colour }, 1, mark);
  pen.fillStyle = colour;
  pen.fill(mark);
}
