/** What follows from a selection of heads: scores, sinks, peaks, tracks, lifetimes. */

import { BIN } from "./constants.js";
import { readHead } from "./decode.js";
import { headNumber } from "./sample.js";
import { breathe } from "./small.js";

/** Flags [step, key] of one head: shared by all heads, or its own. */
const flagsOf = (flags, sample, head) =>
  flags instanceof Uint8Array ? flags : readHead(flags, sample, head, new Uint8Array(sample.T * sample.K));

/** Share and excess of one head at every cell, in the sample's scratch arrays; NaN: nobody sees the key. */
export function measure(sample, head) {
  const { T, K, table, scratch } = sample;
  const { share, excess } = scratch;
  const exact = sample.exact.get(head)?.share;
  const codes = exact ? null : readHead(sample.share, sample, head, scratch.bytes);
  const visible = flagsOf(sample.visible, sample, head);
  for (let t = 0; t < T; t++) {
    const from = t * K;
    let sum = 0;
    let count = 0;
    for (let cell = from; cell < from + K; cell++) {
      const value = visible[cell] ? (exact ? exact[cell] : table[codes[cell]]) : NaN;
      share[cell] = value;
      if (value === value) {
        sum += value;
        count++;
      }
    }
    const mean = Math.fround(sum / count);
    const stretch = Math.fround(count > 1 ? count / (count - 1) : NaN);
    for (let cell = from; cell < from + K; cell++) excess[cell] = Math.fround(share[cell] - mean) * stretch;
  }
  return scratch;
}

/** Masked minus unmasked queries, in fair shares [step, key]; null where the payload has no groups of this head. */
function difference(sample, head) {
  const exact = sample.exact.get(head)?.groups;
  if (exact?.masked && exact?.unmasked) {
    return exact.masked.share.map((share, cell) => share - exact.unmasked.share[cell]);
  }
  if (!sample.groups.masked || !sample.groups.unmasked) return null;
  const [masked, unmasked] = ["masked", "unmasked"].map((name) =>
    readHead(sample.groups[name], sample, head, new Uint8Array(sample.T * sample.K)),
  );
  const visible = flagsOf(sample.visible, sample, head);
  return Float32Array.from(masked, (code, cell) =>
    visible[cell] ? sample.table[code] - sample.table[unmasked[cell]] : NaN,
  );
}

/** A list of numbers that grows, as a typed array. */
class Column {
  constructor(Type) {
    this.values = new Type(1024);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.values.length) {
      const wider = new this.values.constructor(2 * this.length);
      wider.set(this.values);
      this.values = wider;
    }
    this.values[this.length++] = value;
  }
}

/**
 * Everything that follows from a selection of heads: means over them, the histogram, and the cells that may be sinks.
 * The mean of the heads' excesses is what a token's score means for a selection; with one head it is that head's.
 */
export function surveyHeads(sample, heads, reading, floor) {
  const size = sample.T * sample.K;
  const survey = {
    heads,
    floor,
    share: new Float32Array(size),
    excess: new Float32Array(size),
    difference: null,
    counts: new Float64Array(Math.ceil(Math.sqrt(sample.K * 1.5) / BIN) + 2),
    cell: new Column(Int32Array),
    head: new Column(Int32Array),
    score: new Column(Float32Array),
  };
  const seen = new Uint16Array(size);
  for (const head of heads) addHead(sample, head, survey, seen);
  for (let cell = 0; cell < size; cell++) {
    survey.share[cell] /= seen[cell] || NaN;
    survey.excess[cell] /= seen[cell] || NaN;
  }
  if (reading === "difference") survey.difference = meanDifference(sample, heads);
  survey.top = { fair_share: greatest(survey.share, 9), excess: greatest(survey.excess, 4) };
  survey.top.difference = survey.difference ? greatest(survey.difference.map(Math.abs), 4) : 4;
  survey.eligible = heads.length ? flagsOf(sample.eligible, sample, heads[0]) : new Uint8Array(size);
  survey.tracks = tracksOf(sample, heads);
  return survey;
}

function addHead(sample, head, survey, seen) {
  const { share, excess } = measure(sample, head);
  const eligible = flagsOf(sample.eligible, sample, head);
  const last = survey.counts.length - 1;
  for (let cell = 0; cell < share.length; cell++) {
    const above = excess[cell];
    if (above !== above) continue;
    survey.share[cell] += share[cell];
    survey.excess[cell] += above;
    seen[cell]++;
    if (!eligible[cell]) continue;
    survey.counts[above > 0 ? Math.min(last, Math.floor(Math.sqrt(above) / BIN)) : 0]++;
    if (above <= survey.floor) continue;
    survey.cell.push(cell);
    survey.head.push(head);
    survey.score.push(above);
  }
}

function meanDifference(sample, heads) {
  const parts = heads.map((head) => difference(sample, head)).filter(Boolean);
  if (!parts.length) return null;
  return parts[0].map((_, cell) => parts.reduce((sum, part) => sum + part[cell], 0) / parts.length);
}

export function greatest(values, least) {
  let top = least;
  for (const value of values) if (value > top) top = value;
  return top;
}

/** The greatest excess of every head at every step [head, step] and where it stands, as long as `alive` says so. */
export async function surveyPeaks(sample, progress, alive) {
  const { T, L, H, peaks } = sample;
  let began = performance.now();
  let shown = began;
  for (let head = 0; head < L * H; head++) {
    if (sample.exact.has(head)) peakOfFloats(sample, head);
    else peakOfCodes(sample, head);
    const own = peaks.value.subarray(head * T, (head + 1) * T);
    for (const value of own) peaks.mean[head] += value / T;
    peaks.most = greatest(own, peaks.most);
    peaks.done = head + 1;
    if (performance.now() - began < 24) continue;
    if (performance.now() - shown > 200) {
      progress();
      shown = performance.now();
    }
    await breathe();
    if (!alive()) return;
    began = performance.now();
  }
  progress();
}

/** Codes rise with shares and excesses with both, so that the greatest code of a row is enough. */
function peakOfCodes(sample, head) {
  const { T, K, table, peaks, scratch } = sample;
  const codes = readHead(sample.share, sample, head, scratch.bytes);
  const [visible, eligible] = [flagsOf(sample.visible, sample, head), flagsOf(sample.eligible, sample, head)];
  for (let t = 0; t < T; t++) {
    let [sum, count, most, place] = [0, 0, 0, -1];
    for (let cell = t * K; cell < (t + 1) * K; cell++) {
      if (!visible[cell]) continue;
      const code = codes[cell];
      sum += table[code];
      count++;
      if (code > most && eligible[cell]) {
        most = code;
        place = cell - t * K;
      }
    }
    const above = count > 1 ? ((table[most] - sum / count) * count) / (count - 1) : 0;
    if (above <= 0) continue;
    peaks.value[head * T + t] = above;
    peaks.place[head * T + t] = place;
  }
}

function peakOfFloats(sample, head) {
  const { T, K, peaks } = sample;
  const { excess } = measure(sample, head);
  const eligible = flagsOf(sample.eligible, sample, head);
  for (let t = 0; t < T; t++) {
    for (let k = 0; k < K; k++) {
      if (!(eligible[t * K + k] && excess[t * K + k] > peaks.value[head * T + t])) continue;
      peaks.value[head * T + t] = excess[t * K + k];
      peaks.place[head * T + t] = k;
    }
  }
}

/** Which tokens the sinks of the selection are, at this epsilon: most frequent first. */
export function sinkTokens(sample, survey, epsilon) {
  const rows = new Map();
  const limit = Math.fround(epsilon);
  let total = 0;
  for (let at = 0; at < survey.cell.length; at++) {
    const score = survey.score.values[at];
    if (!(score > limit)) continue;
    const id = sample.canvas[survey.cell.values[at]];
    const row = rows.get(id) ?? { id, count: 0, sum: 0, most: 0 };
    rows.set(id, row);
    row.count++;
    row.sum += score;
    row.most = Math.max(row.most, score);
    total++;
  }
  return { total, rows: [...rows.values()].sort((a, b) => b.count - a.count || a.id - b.id) };
}

/** In how many heads of the selection each key is a sink at step t. */
export function sinksAt(sample, survey, epsilon, t) {
  const heads = new Uint16Array(sample.K);
  const limit = Math.fround(epsilon);
  const { cell, score } = survey;
  for (let at = 0; at < cell.length; at++) {
    const key = cell.values[at] - t * sample.K;
    if (key >= 0 && key < sample.K && score.values[at] > limit) heads[key]++;
  }
  return heads;
}

/** The tracks of some heads, strongest first. */
function tracksOf({ tracks, ...sample }, heads) {
  const wanted = new Set(heads);
  const found = [];
  for (let at = 0; at < tracks.count; at++) {
    const head = headNumber(sample, tracks.layer[at], tracks.head[at]);
    if (!wanted.has(head)) continue;
    const [birth, death] = [tracks.birth[at], tracks.death[at]];
    const cells = [tracks.starts[at], tracks.starts[at + 1]];
    const peak = Math.max(...tracks.scores.subarray(...cells));
    found.push({
      head,
      birth,
      death,
      peak,
      kind: tracks.kinds[tracks.kind[at]],
      velocity: tracks.velocity[at],
      positions: tracks.positions.subarray(...cells),
    });
  }
  return found.sort((a, b) => b.peak - a.peak);
}

/**
 * Kaplan-Meier over lives in steps. A life that the last step cuts off never dies; one that was there in the first step
 * has no known age and is left out.
 */
export function survival(sample, tracks) {
  const [first, second] = sample.json.step_numbers;
  const stride = second === undefined ? 1 : second - first; // between stored steps
  const [deaths, ends] = [new Map(), new Map()]; // by age: who died, and who was last seen, dead or not
  const count = (into, age) => into.set(age, (into.get(age) ?? 0) + 1);
  const seen = tracks.filter((one) => one.birth > 0);
  for (const { birth, death } of seen) {
    const age = (death - birth + 1) * stride;
    count(ends, age);
    if (death < sample.T - 1) count(deaths, age);
  }
  const curve = [[0, 1]];
  let [share, risk] = [1, seen.length];
  for (const age of [...ends.keys()].sort((a, b) => a - b)) {
    share *= 1 - (deaths.get(age) ?? 0) / risk;
    risk -= ends.get(age);
    curve.push([age, share]);
  }
  const median = curve.find(([, left]) => left <= 0.5)?.[0] ?? null;
  const alive = tracks.filter((one) => one.death === sample.T - 1).length;
  return { curve, median, lives: seen.length, left: tracks.length - seen.length, alive };
}
