/** Ramps, and the indices of values in them. */

import { DIVERGING, RAMPS } from "./constants.js";

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Relative luminance of sRGB (WCAG). */
function luminance(rgb) {
  const [r, g, b] = rgb.map((one) => (one / 255 <= 0.03928 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * 256 colours between the anchors.
 * @returns {{css: string[], pixels: Uint32Array, dark: boolean[]}} dark: white text is read better on it than black
 */
function ramp(anchors) {
  const stops = anchors.map(channels);
  const css = [];
  const dark = [];
  const pixels = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const rgb = stops[low].map((from, c) => Math.round(from + (stops[low + 1][c] - from) * (place - low)));
    css.push(`rgb(${rgb.join(" ")})`);
    pixels[i] = 0xff000000 | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
    dark.push(luminance(rgb) < 0.18);
  }
  return { css, pixels, dark };
}

/** What canvases are drawn with: the ramps, and the colours that viewer.css gives its variables. */
export function palette(root, theme) {
  const style = getComputedStyle(root);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    theme,
    sequential: ramp(RAMPS[theme]),
    diverging: ramp(DIVERGING[theme]),
    absent: ramp([named("absent"), named("absent")]).pixels[0],
    ...Object.fromEntries(["paper", "ink", "muted", "line", "accent"].map((name) => [name, named(name)])),
    font: `11px ${style.fontFamily}`,
  };
}

/** The ramp's index of a value: square root, so that the crowd near 1 opens and sinks still stand out. */
export const shade = (value, top) => (value > 0 ? Math.min(255, Math.round(255 * Math.sqrt(value / top))) : 0);

/** The same for differences, 0 in the middle. */
export function lean(value, top) {
  const far = Math.min(127, Math.round(127 * Math.sqrt(Math.abs(value) / top)));
  return value < 0 ? 127 - far : 128 + far;
}
