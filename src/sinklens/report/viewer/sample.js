/** A sample, decoded, and the names of its heads. */

import { unpack, unpackHeads } from "./decode.js";

/**
 * A sample, decoded. Heads are counted through: layer index x H + head index. Cells: step x K + key.
 * @typedef {object} Sample
 * @property {number} T  stored steps
 * @property {number} K  keys
 * @property {number} L  layers
 * @property {number} H  heads of a layer
 */

/** @returns {Promise<Sample>} */
export async function openSample(json) {
  const flags = (part) => (part.shape.length === 2 ? unpack(part) : unpackHeads(part)); // of all heads, or of each
  const sample = { json, T: json.steps, K: json.keys, L: json.layers.length, H: json.heads.length };
  const parts = await unpackAll({
    canvas: unpack(json.canvas),
    masked: unpack(json.masked),
    final: unpack(json.final),
    share: unpackHeads(json.share),
    eligible: flags(json.eligible),
    visible: flags(json.visible),
    tracks: openTracks(json.tracks),
    groups: unpackEach(json.groups, unpackHeads),
    tops: unpackEach(json.top_excess, unpack),
    exact: openExact(sample, json.exact),
  });
  Object.assign(sample, parts);
  sample.table = new Float32Array(256);
  sample.table.set(json.scale.table);
  sample.token = new Map(
    json.tokens.ids.map((id, at) => [id, { id, text: json.tokens.text[at], class: json.tokens.class[at] }]),
  );
  sample.final ??= lastIds(sample);
  const most = (codes) => sample.table[codes.reduce((a, b) => Math.max(a, b), 0)];
  sample.tops.most = Math.max(4, ...Object.values(sample.tops).map(most));
  const [heads, cells] = [sample.L * sample.H, sample.T * sample.K];
  sample.peaks = {
    value: new Float32Array(heads * sample.T),
    place: new Int32Array(heads * sample.T).fill(-1),
    mean: new Float32Array(heads),
    most: 4,
    done: 0,
  };
  sample.scratch = {
    bytes: new Uint8Array(cells),
    share: new Float32Array(cells),
    excess: new Float32Array(cells),
  };
  return sample;
}

/** An object of promises as one of values: the browser inflates them side by side. */
async function unpackAll(parts) {
  const values = await Promise.all(Object.values(parts));
  return Object.fromEntries(Object.keys(parts).map((name, at) => [name, values[at]]));
}

/** Every part of an object; null: there are none. */
const unpackEach = (parts, open) =>
  unpackAll(Object.fromEntries(Object.entries(parts ?? {}).map(([name, part]) => [name, open(part)])));

/** The columns of the tracks; cells of track i are starts[i] to starts[i + 1] - 1, one a stored step. */
async function openTracks({ epsilon, count, kinds, ...columns }) {
  return { epsilon, count, kinds, ...(await unpackEach(columns, unpack)) };
}

/** What stands at every position in the end, as far as the canvases tell. */
function lastIds({ canvas, masked, T, K }) {
  const last = canvas.slice((T - 1) * K);
  for (let k = 0; k < K; k++) {
    for (let t = T - 1; t >= 0; t--) {
      if (canvas[t * K + k] < 0 || masked[t * K + k]) continue;
      last[k] = canvas[t * K + k];
      break;
    }
  }
  return last;
}

/** Heads with floats, by their number. */
async function openExact(sample, entries) {
  const heads = await Promise.all(
    entries.map(async ({ layer, head, groups, ...parts }) => {
      const [floats, of] = await Promise.all([openReading(parts), unpackEach(groups, openReading)]);
      return [headNumber(sample, layer, head), { ...floats, groups: of }];
    }),
  );
  return new Map(heads);
}

/** Sums, norms and what else there is; shares are float32 quotients, as numpy makes them. */
async function openReading(parts) {
  const floats = await unpackEach(parts, unpack);
  const { received, expected } = floats;
  return { ...floats, share: received.map((sum, at) => (expected[at] > 0 ? sum / expected[at] : NaN)) };
}

export function headNumber(sample, layer, head) {
  const row = sample.json.layers.indexOf(layer);
  const column = sample.json.heads.indexOf(head);
  return row < 0 || column < 0 ? -1 : row * sample.H + column;
}

/** "3.1": layer 3, head 1, by the model's own numbers. */
export const headName = (sample, head) =>
  `${sample.json.layers[Math.floor(head / sample.H)]}.${sample.json.heads[head % sample.H]}`;

/** Head numbers from text such as "3.1, 4.*, all"; what does not exist is left out. */
export function parseHeads(sample, text) {
  const every = Array.from({ length: sample.L * sample.H }, (_, head) => head);
  const names = every.map((head) => headName(sample, head));
  const found = new Set();
  for (const word of text.split(/[\s,;]+/)) {
    if (word === "all" || word === "*") every.forEach((head) => found.add(head));
    const [layer, head] = word.split(".");
    every.forEach((one) => {
      const [row, column] = names[one].split(".");
      if (head !== undefined && (layer === "*" || layer === row) && (head === "*" || head === column)) found.add(one);
    });
  }
  return [...found].sort((a, b) => a - b);
}

/** The shortest text that parseHeads reads back: whole layers, and all heads, have a name of their own. */
export function nameHeads(sample, heads) {
  if (heads.length === sample.L * sample.H && heads.length > 1) return "all";
  const words = [];
  for (let at = 0; at < heads.length;) {
    const row = Math.floor(heads[at] / sample.H);
    const whole = sample.H > 1 && heads[at] % sample.H === 0 && heads[at + sample.H - 1] === heads[at] + sample.H - 1;
    words.push(whole ? `${sample.json.layers[row]}.*` : headName(sample, heads[at]));
    at += whole ? sample.H : 1;
  }
  return words.join(", ");
}

/** "prompt", "committed", "new" (committed since the step before), "masked" or "absent" (not there yet). */
export function stateAt({ canvas, masked, json, K }, t, k) {
  const cell = t * K + k;
  if (canvas[cell] < 0) return "absent";
  if (masked[cell]) return "masked";
  if (k < json.prompt_length) return "prompt";
  return t > 0 && (masked[cell - K] || canvas[cell - K] < 0) ? "new" : "committed";
}

/** Text and class of an id; ids without a text show their number. */
export function tokenOf(sample, id) {
  const known = sample.token.get(id);
  return { id, text: known?.text ?? `#${id}`, class: known?.class ?? "unknown" };
}
