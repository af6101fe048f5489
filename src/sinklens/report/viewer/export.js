/** CSV of the selection, picture of the view. */

import { MOST_ROWS } from "./constants.js";
import { label } from "./drawing.js";
import { headName, tokenOf } from "./sample.js";
import { element, plural } from "./small.js";
import { measure } from "./survey.js";

export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** The floats of heads that have them, and what 8 bits tell of the others: every visible key, step by step. */
export function tableOf(sample, heads, steps) {
  const lines = ["step,layer,head,position,token,received,expected,fair_share,precision"];
  for (const head of heads) {
    const exact = sample.exact.get(head);
    const share = exact ? exact.share : measure(sample, head).share;
    const place = headName(sample, head).replace(".", ",");
    for (const t of steps) {
      for (let k = 0; k < sample.K; k++) {
        const cell = t * sample.K + k;
        if (share[cell] !== share[cell]) continue;
        const token = quoted(tokenOf(sample, sample.canvas[cell]).text);
        const sums = exact ? `${exact.received[cell]},${exact.expected[cell]}` : ",";
        const when = sample.json.step_numbers[t];
        lines.push(`${when},${place},${k},${token},${sums},${share[cell]},${exact ? "exact" : "quantised"}`);
      }
    }
  }
  return lines.join("\n") + "\n";
}

export function saveTable(pane) {
  const { sample, heads } = pane;
  const all = Array.from({ length: sample.T }, (_, t) => t);
  const whole = heads.length * sample.T * sample.K <= MOST_ROWS;
  const text = tableOf(sample, heads, whole ? all : [pane.state.step]);
  download(new Blob([text], { type: "text/csv;charset=utf-8" }), `sinklens-${pane.name}.csv`);
  const steps = whole ? "all steps" : "this step alone, as the table would be too long";
  const loss = heads.every((head) => sample.exact.has(head)) ? "" : "; heads without exact values are marked quantised";
  pane.app.say(`Saved ${plural(heads.length, "head")}, ${steps}${loss}`);
}

/** Draws what the page shows: boxes, borders, text and canvases, where they stand. */
function paintElement(pen, node, origin) {
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || node.matches(".tooltip, .unseen, .tools, .actions"))
    return;
  const box = node.getBoundingClientRect();
  const [x, y] = [box.left - origin.left, box.top - origin.top];
  paintBox(pen, style, x, y, box);
  if (node instanceof HTMLCanvasElement && node.width > 1) pen.drawImage(node, x, y, box.width, box.height);
  if (node instanceof SVGElement) return paintIcon(pen, node, style, x, y, box);
  if (node instanceof HTMLInputElement) return paintInput(pen, node, style, x, y, box);
  pen.save();
  if (style.overflowY !== "visible" || style.overflowX !== "visible") {
    pen.beginPath();
    pen.rect(x, y, box.width, box.height);
    pen.clip();
  }
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) paintText(pen, child, style, origin);
    else if (child.nodeType === Node.ELEMENT_NODE) paintElement(pen, child, origin);
  }
  pen.restore();
}

function paintBox(pen, style, x, y, { width, height }) {
  pen.beginPath();
  pen.roundRect(x, y, width, height, parseFloat(style.borderTopLeftRadius) || 0);
  pen.save();
  pen.globalAlpha = Number(style.opacity);
  if (style.boxShadow !== "none") {
    Object.assign(pen, {
      shadowColor: style.backgroundColor,
      shadowBlur: 10,
      strokeStyle: style.getPropertyValue("--ink"),
      lineWidth: 3,
    });
    pen.stroke();
  }
  pen.fillStyle = style.backgroundColor;
  pen.fill();
  pen.restore();
  for (const [side, from, to] of [
    ["Top", [0, 0], [1, 0]],
    ["Bottom", [0, 1], [1, 1]],
    ["Left", [0, 0], [0, 1]],
    ["Right", [1, 0], [1, 1]],
  ]) {
    const wide = parseFloat(style[`border${side}Width`]);
    if (!wide || style[`border${side}Style`] === "none") continue;
    pen.strokeStyle = style[`border${side}Color`];
    pen.lineWidth = wide;
    pen.setLineDash(style[`border${side}Style`] === "dashed" ? [3, 2] : []);
    pen.stroke(
      new Path2D(`M${x + from[0] * width} ${y + from[1] * height}L${x + to[0] * width} ${y + to[1] * height}`),
    );
    pen.setLineDash([]);
  }
}

function paintIcon(pen, node, style, x, y, { width, height }) {
  const [left, top, wide] = node.getAttribute("viewBox").split(" ").map(Number);
  const path = new Path2D();
  const scale = width / wide;
  path.addPath(
    new Path2D(node.firstChild.getAttribute("d")),
    new DOMMatrix([scale, 0, 0, height / wide, x - left * scale, y - top * scale]),
  );
  pen.fillStyle = style.fill;
  pen.fill(path);
}

function paintInput(pen, node, style, x, y, { width, height }) {
  if (node.type === "range") {
    const at = x + 8 + ((node.value - node.min) / (node.max - node.min || 1)) * (width - 16);
    pen.fillStyle = style.getPropertyValue("--line");
    pen.fillRect(x, y + height / 2 - 2, width, 4);
    pen.fillStyle = style.getPropertyValue("--accent");
    pen.fillRect(x, y + height / 2 - 2, at - x, 4);
    pen.beginPath();
    pen.arc(at, y + height / 2, 7, 0, 7);
    pen.fill();
  } else {
    pen.fillStyle = style.color;
    pen.font = fontOf(style);
    label(pen, node.value, x + parseFloat(style.paddingLeft) + 1, y + height / 2, "left", "middle");
  }
}

/** The shorthand itself is empty where one of its parts has no place in it. */
const fontOf = (style) => `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;

/** A text node, line by line as the browser broke it. */
function paintText(pen, node, style, origin) {
  if (!node.data.trim()) return;
  pen.font = fontOf(style);
  pen.fillStyle = style.color;
  const range = document.createRange();
  range.selectNodeContents(node);
  const whole = range.getClientRects().length <= 1;
  for (const { 0: word, index } of whole ? [{ 0: node.data, index: 0 }] : node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getClientRects()[0];
    if (box)
      label(
        pen,
        style.whiteSpaceCollapse === "preserve" ? word : word.replace(/\s+/g, " "),
        box.left - origin.left,
        box.top - origin.top + box.height / 2,
        "left",
        "middle",
      );
  }
}

/** The whole view as a picture, in pixels of the screen. */
export function pictureOf(node, background) {
  const box = node.getBoundingClientRect();
  const ratio = Math.min(2, Math.max(1, window.devicePixelRatio || 1));
  const canvas = element("canvas", { width: Math.ceil(box.width * ratio), height: Math.ceil(box.height * ratio) });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = background;
  pen.fillRect(0, 0, box.width + 1, box.height + 1);
  paintElement(pen, node, box);
  return canvas;
}
