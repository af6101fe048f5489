/** Numbers as text, elements, icons, tokens made visible. */

import { KINDS } from "./constants.js";

/** @returns {number} */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** A number as people read it: three digits, no exponent. */
export function brief(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** 12,345; toLocaleString would load tables for it that take longer than the first picture. */
export const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

/** "1 sink", "2 sinks". */
export const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** An element with attributes, listeners (`onClick`) and children; text is always text. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2).toLowerCase(), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** An icon of 24 x 24 drawn by one path. */
export function icon(path, box = "0 0 24 24") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", box);
  svg.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
}

/** The mark of a kind, as a small picture in its colour. */
export function kindMark(kind, theme) {
  const mark = icon(KINDS[kind].shape, "-1.4 -1.4 2.8 2.8");
  mark.setAttribute("class", "mark");
  mark.setAttribute("fill", KINDS[kind][theme]);
  return mark;
}

const INVISIBLE = /[\p{C}\p{Z}]/u;

/** A character that cannot be seen, or that would turn the text around it, as its code. */
const escaped = (one) => `\\u{${one.codePointAt(0).toString(16)}}`;

/** A token in running text: spaces stay, line ends show, other invisible characters appear as codes. */
export function flowing(text) {
  if (/^ +$/.test(text)) return text.replaceAll(" ", "␣");
  const parts = Array.from(text, (one) =>
    one === " " ? one : one === "\n" ? "⏎" : INVISIBLE.test(one) ? escaped(one) : one,
  );
  return parts.join("") || "∅";
}

/** A token by itself: spaces show too. */
export function alone(text) {
  return flowing(text).replaceAll(" ", "␣").replaceAll("⏎", "\\n");
}

/** The same calls, at most one in `wait` milliseconds, the last one kept. */
export function settled(action, wait) {
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Lets the browser paint and answer before the work goes on. */
export const breathe = () => new Promise((resolve) => setTimeout(resolve, 0));
