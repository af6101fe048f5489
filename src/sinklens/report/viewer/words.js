/** What is told about a token or a head under the pointer. */

import { headName, stateAt, tokenOf } from "./sample.js";
import { alone, brief, clamp, element } from "./small.js";
import { sinksAt } from "./survey.js";

export function tellToken(pane, t, k, box) {
  const { sample, survey, app } = pane;
  const cell = t * sample.K + k;
  const state = stateAt(sample, t, k);
  const token = tokenOf(sample, sample.canvas[cell]);
  const lines = [
    ["position", `${k}, ${state === "new" ? "just committed" : state}`],
    ["step", String(sample.json.step_numbers[t])],
  ];
  if (state !== "absent") lines.unshift(["id", `${token.id} (${token.class})`]);
  if (survey.share[cell] === survey.share[cell]) lines.push(...scoreLines(pane, t, k));
  for (const track of survey.tracks) {
    if (track.positions[t - track.birth] !== k) continue;
    const speed = Number.isNaN(track.velocity) ? "" : `, ${brief(track.velocity)} tokens a step`;
    const numbers = sample.json.step_numbers;
    lines.push(["track", `${track.kind}, steps ${numbers[track.birth]} to ${numbers[track.death]}${speed}`]);
    break;
  }
  app.tooltip.show(
    state === "absent" ? "not there yet" : state === "masked" ? "masked" : alone(token.text),
    lines,
    box,
  );
}

function scoreLines(pane, t, k) {
  const { sample, survey, app } = pane;
  const cell = t * sample.K + k;
  let [rank, visible] = [1, 0];
  for (let other = t * sample.K; other < (t + 1) * sample.K; other++) {
    if (survey.share[other] > survey.share[cell]) rank++;
    if (survey.share[other] === survey.share[other]) visible++;
  }
  const lines = [
    ["received", `${brief(survey.share[cell])} fair shares`],
    ["excess", brief(survey.excess[cell])],
    ["rank", `${rank} of ${visible}`],
  ];
  if (survey.difference) lines.push(["masked − unmasked", brief(survey.difference[cell])]);
  const heads = sinksAt(sample, survey, app.state.epsilon, t)[k];
  lines.push([
    "sink",
    survey.heads.length === 1
      ? heads
        ? "yes"
        : survey.eligible[cell]
          ? "no"
          : "no, too few queries see it"
      : `in ${heads} of ${survey.heads.length} heads`,
  ]);
  const head = survey.heads.find((one) => sample.exact.has(one));
  const whose = survey.heads.length > 1 ? `, head ${headName(sample, head ?? 0)}` : "";
  for (const [name, title] of [
    ["key_norm", "key norm"],
    ["value_norm", "value norm"],
  ]) {
    const norms = sample.exact.get(head)?.[name];
    if (norms) lines.push([title, `${brief(norms[cell])}${whose}`]);
  }
  return lines;
}

export function tellHead(pane, head, box) {
  const { sample, app } = pane;
  const { T, K, peaks } = sample;
  const t = pane.state.step;
  const [layer, number] = headName(sample, head).split(".");
  const lines = [
    ["strongest now", brief(peaks.value[head * T + t])],
    ["mean of steps", brief(peaks.mean[head])],
  ];
  const place = peaks.place[head * T + t];
  if (place >= 0)
    lines.splice(1, 0, ["at", `${alone(tokenOf(sample, sample.canvas[t * K + place]).text)}, position ${place}`]);
  if (app.state.reading === "difference") lines.push(["masked − unmasked", brief(pane.gridValues[head])]);
  lines.push(["values", sample.exact.has(head) ? "exact" : "8 bits"]);
  app.tooltip.show(`layer ${layer}, head ${number}`, lines, box);
}

/** A box of no size at the pointer. */
export const pointBox = (event) => ({
  left: event.clientX,
  right: event.clientX,
  top: event.clientY - 8,
  bottom: event.clientY + 12,
});

/** One box near what it is about; it never leaves the window. */
export class Tooltip {
  constructor() {
    this.title = element("strong", {});
    this.list = element("dl", {});
    this.node = element(
      "div",
      { class: "tooltip", role: "tooltip", "data-part": "tooltip", hidden: true },
      this.title,
      this.list,
    );
  }

  show(title, lines, box) {
    this.title.textContent = title;
    this.list.replaceChildren(...lines.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
    this.node.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const below = box.bottom + 8 + height < window.innerHeight;
    this.node.style.left = `${clamp(box.left, 8, Math.max(8, window.innerWidth - width - 8))}px`;
    this.node.style.top = `${Math.max(8, below ? box.bottom + 8 : box.top - height - 8)}px`;
  }

  hide() {
    this.node.hidden = true;
  }
}
