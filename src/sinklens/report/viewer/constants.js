/** Numbers, names and colours that the other files share. */

export const FORMAT = 1;
export const READINGS = ["all", "difference"]; // all queries; masked minus unmasked ones
export const UNITS = ["fair_share", "excess"];
export const SCOPES = ["step", "mean"];
export const THEMES = ["auto", "light", "dark"];
export const DEFAULTS = {
  unit: "fair_share",
  epsilon: 3,
  scope: "step",
  reading: "all",
  theme: "auto",
  link: true,
  tracks: true,
};
export const LEAST_EPSILON = 0.1;
export const BIN = 0.1; // width of a bar of the histogram: the square root of the excess
export const WHOLE_RIBBON = 600; // tokens; longer texts are laid out in pieces and only those in sight are updated
export const PIECE = 64; // tokens
export const MOST_TRACKS = 80; // drawn over one map
export const MOST_ROWS = 2_000_000; // of a CSV file; beyond, the current step alone
export const STEP_MS = 130; // while playing
export const CALM_STEP_MS = 400; // the same where reduced motion is wanted
export const TABLE_ROWS = 10;

/** Colour on light (Okabe and Ito) and on dark ground, and outline, in a box from -1 to 1, of every kind of track. */
export const KINDS = {
  static: { light: "#0072B2", dark: "#45a9f0", shape: "M-.8-.8H.8V.8H-.8Z" },
  flicker: { light: "#E69F00", dark: "#f5b93f", shape: "M-1-.5-.5-1 0-.5.5-1 1-.5.5 0 1 .5.5 1 0 .5-.5 1-1 .5-.5 0Z" },
  split: { light: "#CC79A7", dark: "#e8a5cb", shape: "M0-1.15 1.15 0 0 1.15-1.15 0Z" },
  "moving right": { light: "#009E73", dark: "#35c89c", shape: "M-.8-1 1.1 0-.8 1Z" },
  "moving left": { light: "#D55E00", dark: "#ff8648", shape: "M.8-1-1.1 0 .8 1Z" },
  jumping: { light: "#56B4E9", dark: "#a4dcff", shape: "M0-1.1 1 .8H-1Z" },
  frontier: { light: "#666666", dark: "#c3c8cf", shape: "M-1 0A1 1 0 1 0 1 0 1 1 0 1 0-1 0Z" },
};

/** From nothing to most: darker in a light page, lighter in a dark one, so that what stands out is what receives. */
export const RAMPS = {
  light: ["#fdfdfb", "#f3f6f2", "#e0eee8", "#bfe0da", "#89cbce", "#4aa9c5", "#2a7db3", "#234f98", "#1c2c76", "#0c1645"],
  dark: ["#15181d", "#1c1f2b", "#262a44", "#31416e", "#34628f", "#3486a3", "#3fa9a9", "#6fcbb1", "#b4e6c6", "#f0fbe9"],
};
export const DIVERGING = {
  light: ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#fdfdfb", "#b2abd2", "#8073ac", "#542788", "#2d004b"],
  dark: ["#ffd9a0", "#f6a53b", "#b4681b", "#5c3a1c", "#15181d", "#2c3566", "#5568b8", "#93a5f5", "#d5dcff"],
};
