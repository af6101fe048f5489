/** The view as data, and as the address of the page. */

import { DEFAULTS, LEAST_EPSILON, READINGS, SCOPES, THEMES, UNITS } from "./constants.js";
import { clamp } from "./small.js";

/** The view as the part of an address behind "#": what differs from the defaults, and where every pane stands. */
export function writeHash(state) {
  const parts = [];
  const add = (name, value) =>
    parts.push(`${name}=${encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%20", "")}`);
  state.panes.forEach((pane, index) => {
    const prefix = index ? "b." : "";
    if (pane.sample) add(`${prefix}sample`, pane.sample);
    add(`${prefix}step`, pane.step);
    add(`${prefix}heads`, pane.heads.join(","));
    if (pane.token !== null) add(`${prefix}token`, pane.token);
  });
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (state[name] !== value) add(name, typeof value === "boolean" ? Number(state[name]) : state[name]);
  }
  return `#${parts.join("&")}`;
}

/** The same back, unchecked: `tidy` makes it fit. */
export function readHash(hash) {
  const read = { panes: [{}, {}] };
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const pane = read.panes[name.startsWith("b.") ? 1 : 0];
    const field = name.replace(/^b\./, "");
    if (["sample", "step", "token"].includes(field)) pane[field] = Number(value);
    else if (field === "heads") pane.heads = value.split(",");
    else if (field === "l" || field === "h") pane[field] = value;
    else if (field === "epsilon") read.epsilon = Number(value);
    else if (field === "link" || field === "tracks") read[field] = value !== "0";
    else if (field in DEFAULTS) read[field] = value;
  }
  for (const pane of read.panes) {
    if (pane.l ?? pane.h) pane.heads ??= [`${pane.l ?? "*"}.${pane.h ?? "*"}`];
  }
  return read;
}

/** A trace that kept sinks alone says nothing about weaker ones. */
export const leastEpsilon = (runs) => (runs.some((run) => run.detail === "sinks") ? 1 : LEAST_EPSILON);

const wholeNumber = (value, low, high, otherwise) =>
  Number.isFinite(value) ? clamp(Math.round(value), low, high) : otherwise;

/** A state in which everything exists, from one in which anything may stand. */
export function tidy(state, runs) {
  const among = (name, values) => (values.includes(state[name]) ? state[name] : DEFAULTS[name]);
  return {
    unit: among("unit", UNITS),
    scope: among("scope", SCOPES),
    reading: among("reading", READINGS),
    theme: among("theme", THEMES),
    epsilon: Number.isFinite(state.epsilon) ? clamp(state.epsilon, leastEpsilon(runs), 1e6) : DEFAULTS.epsilon,
    link: Boolean(state.link),
    tracks: Boolean(state.tracks),
    panes: runs.map((run, index) => {
      const pane = state.panes[index];
      const sample = wholeNumber(pane.sample, 0, run.samples.length - 1, 0);
      const { steps, keys, exact, layers, heads } = run.samples[sample];
      const first = exact?.[0] ?? { layer: layers[0], head: heads[0] };
      const named = [pane.heads ?? []]
        .flat()
        .map((one) => String(one).trim())
        .filter((one) => /^(all|\*|[\d*]+\.[\d*]+)$/.test(one));
      return {
        sample,
        step: wholeNumber(pane.step, 0, steps - 1, Math.floor(steps / 2)),
        heads: named.length ? named : [`${first.layer}.${first.head}`],
        token: pane.token === null ? null : wholeNumber(pane.token, 0, keys - 1, null),
      };
    }),
  };
}
