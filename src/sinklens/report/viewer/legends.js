/** What stands below and beside the views: scale, kinds, tables, lifetimes. */

import { KINDS, TABLE_ROWS } from "./constants.js";
import { fit, label } from "./drawing.js";
import { drawSurvival } from "./histogram.js";
import { tokenOf } from "./sample.js";
import { alone, brief, element, grouped, kindMark, plural } from "./small.js";
import { sinkTokens, survival } from "./survey.js";

/** The colours and what they stand for, with epsilon marked where it can be. */
export function drawScale(pane, { top, toShade, shades, colours, leaning, epsilon }) {
  const width = Math.min(280, pane.node.clientWidth - 24);
  const pen = fit(pane.scale, width, 40);
  const x = (value) => 4 + ((width - 8) * (leaning ? toShade(value) : 255 * Math.sqrt(value / top))) / 255;
  for (let i = 0; i < 256; i++) {
    pen.fillStyle = shades.css[i];
    pen.fillRect(4 + ((width - 8) * i) / 256, 14, (width - 8) / 256 + 0.6, 9);
  }
  pen.strokeStyle = colours.line;
  pen.strokeRect(3.5, 13.5, width - 7, 10);
  pen.font = colours.font;
  pen.fillStyle = colours.muted;
  const unit = pane.app.state.unit;
  const title = leaning
    ? "masked minus unmasked, fair shares"
    : unit === "excess"
      ? "excess, fair shares"
      : "attention received, fair shares (1 = uniform)";
  label(pen, title, 4, 0, "left");
  const marks = leaning
    ? [-top / 2, 0, top / 2]
    : [0, 1, 5, 10, 20, 50, 100, 200, 500, 1000].filter((one) => one < top * 0.98);
  let free = -Infinity;
  for (const mark of marks) {
    if (x(mark) < free) continue;
    label(pen, leaning ? brief(mark) : String(mark), x(mark), 27, x(mark) < 12 ? "left" : "center");
    free = x(mark) + 26;
  }
  if (leaning || unit !== "excess" || epsilon > top) return;
  pen.fillStyle = colours.accent;
  pen.fillRect(x(epsilon) - 1, 11, 2, 15);
}

export function drawKinds(pane, { shownTracks, tracks }) {
  const { app } = pane;
  const counts = new Map();
  for (const track of shownTracks) counts.set(track.kind, (counts.get(track.kind) ?? 0) + 1);
  const chips = Object.keys(KINDS)
    .filter((kind) => counts.has(kind))
    .map((kind) =>
      element("span", { class: "chip" }, kindMark(kind, app.colours.theme), `${kind} ${counts.get(kind)}`),
    );
  pane.kinds.hidden = !tracks;
  pane.kinds.replaceChildren(...(chips.length ? chips : [element("span", {}, "no track here")]));
}

export function drawTokens(pane) {
  const { sample, survey, app } = pane;
  const { total, rows } = sinkTokens(sample, survey, app.state.epsilon);
  const most = rows[0]?.count ?? 1;
  const lines = rows.slice(0, TABLE_ROWS).map(({ id, count, sum }) => {
    const token = tokenOf(sample, id);
    const bar = element("span", { class: "bar" });
    bar.style.width = `${(100 * count) / most}%`;
    const cell = element("td", { class: "number counted" }, bar, element("span", {}, grouped(count)));
    return element(
      "tr",
      {},
      element("td", {}, element("code", {}, alone(token.text))),
      element("td", { class: "muted" }, token.class),
      cell,
      element("td", { class: "number" }, brief(sum / count)),
    );
  });
  if (!lines.length)
    lines.push(
      element("tr", {}, element("td", { colspan: 4, class: "muted" }, "None at this ε: drag the line to the left.")),
    );
  pane.table.replaceChildren(...lines);
  const more = rows.length > TABLE_ROWS ? `, ${rows.length - TABLE_ROWS} more tokens` : "";
  pane.tokensNote.textContent = `${plural(total, "sink")} over all steps${more}`;
}

export function drawLives(pane, { shownTracks, colours, epsilon }) {
  const { sample } = pane;
  const result = survival(sample, shownTracks);
  const numbers = sample.json.step_numbers;
  pane.lives.hidden = result.lives === 0;
  if (result.lives)
    drawSurvival(pane.lives, result, {
      width: pane.lives.parentNode.clientWidth,
      end: numbers[sample.T - 1] - numbers[0] + 1,
      colours,
    });
  const found = sample.tracks.epsilon;
  const half =
    result.median === null ? "more than half outlive the run" : `half are gone after ${plural(result.median, "step")}`;
  const born = result.lives ? `Of ${result.lives} born under way, ${half}.` : "";
  const kept = `${result.left} there from the start, ${result.alive} alive at the end.`;
  const words = shownTracks.length
    ? `${plural(shownTracks.length, "track")}: ${kept} ${born}`
    : "No track exceeds ε in these heads.";
  pane.livesNote.textContent = epsilon < found ? `${words} Tracks were found at ε = ${found}.` : words;
}
