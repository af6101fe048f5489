/** One run with its views and side panels. */

import { lean, shade } from "./colours.js";
import { HeadGrid } from "./head_grid.js";
import { Histogram } from "./histogram.js";
import { header, lowerPart, mainColumn, sideColumn, transport } from "./layout.js";
import { drawKinds, drawLives, drawScale, drawTokens } from "./legends.js";
import { Ribbon } from "./ribbon.js";
import { headName, nameHeads, openSample, parseHeads } from "./sample.js";
import { clamp, element, plural } from "./small.js";
import { greatest, surveyHeads, surveyPeaks } from "./survey.js";
import { TokenMap } from "./token_map.js";
import { pointBox, tellHead, tellToken } from "./words.js";

/** The strongest sink of masked queries less that of unmasked ones, of every head; step null: the mean over steps. */
function groupGap(sample, step) {
  const { T, L, H, tops, table } = sample;
  const gap = (layer, t, head) => {
    const at = (layer * T + t) * H + head;
    return table[tops.masked[at]] - table[tops.unmasked[at]];
  };
  return Float32Array.from({ length: L * H }, (_, head) => {
    const [row, column] = [Math.floor(head / H), head % H];
    if (step !== null) return gap(row, step, column);
    let sum = 0;
    for (let t = 0; t < T; t++) sum += gap(row, t, column);
    return sum / T;
  });
}

/** One run: its transport, text, map, grid and side panels. */
export class Pane {
  constructor(app, index) {
    this.app = app;
    this.index = index;
    this.run = app.payload.runs[index];
    this.name = "ab"[index];
    this.dirty = new Set();
    this.node = element("section", {
      class: "pane",
      "data-pane": this.name,
      "aria-label": `Run ${this.name.toUpperCase()}: ${this.run.name}`,
    });
    this.observer = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== this.width) this.invalidate("look");
      this.width = contentRect.width;
    });
    this.observer.observe(this.node);
    this.opened = new Map();
    this.loaded = -1;
  }

  get state() {
    return this.app.state.panes[this.index];
  }

  // Loading ..........................................................................................................

  async load(number) {
    if (this.loaded === number) return;
    this.loaded = number;
    if (!this.opened.has(number)) this.opened.set(number, openSample(this.run.samples[number]));
    const sample = await this.opened.get(number);
    if (this.loaded !== number || this.app.gone) return;
    this.ribbon?.destroy();
    this.sample = sample;
    this.survey = null;
    this.build();
    this.invalidate("survey");
    if (sample.surveyed) return;
    sample.surveyed = true;
    setTimeout(
      () =>
        surveyPeaks(
          sample,
          () => this.sample === sample && this.invalidate("grid"),
          () => !this.app.gone,
        ),
      0,
    );
  }

  build() {
    const { sample, app } = this;
    this.ribbon = new Ribbon(sample, {
      point: (k, node) =>
        k === null ? app.tooltip.hide() : tellToken(this, this.state.step, k, node.getBoundingClientRect()),
      choose: (k) => app.change(this, { token: this.state.token === k ? null : k }),
    });
    this.map = new TokenMap(sample, app.panes.length > 1, {
      jump: (t, k) => this.jump(t, k),
      move: (dt, dk) =>
        this.jump(clamp(this.state.step + dt, 0, sample.T - 1), clamp((this.state.token ?? 0) + dk, 0, sample.K - 1)),
      point: (t, k, event) => (t === null ? app.tooltip.hide() : tellToken(this, t, k, pointBox(event))),
    });
    this.grid = new HeadGrid(sample, {
      pick: (head, add) => this.pick(head, add),
      point: (head, event) =>
        head === null || head === undefined ? app.tooltip.hide() : tellHead(this, head, pointBox(event)),
    });
    this.histogram = new Histogram(app.leastEpsilon, {
      epsilon: (value) => app.set({ epsilon: Math.round(value * 100) / 100 }),
    });
    this.node.replaceChildren(
      header(this),
      transport(this),
      element("div", { class: "columns" }, mainColumn(this), sideColumn(this), lowerPart(this)),
    );
  }

  // Acting ...........................................................................................................

  get heads() {
    const chosen = parseHeads(this.sample, this.state.heads.join(","));
    return chosen.length ? chosen : [[...this.sample.exact.keys()][0] ?? 0];
  }

  /** Heads that were asked for, in an address, and are not in the page. */
  get absentHeads() {
    return this.state.heads.filter((name) => !parseHeads(this.sample, name).length);
  }

  jump(t, k) {
    this.app.change(this, { token: k });
    this.app.goTo(this, t);
    this.ribbon.reveal(k);
  }

  pick(head, add) {
    const now = this.heads;
    const heads = !add
      ? [head]
      : now.includes(head)
        ? now.filter((one) => one !== head)
        : [...now, head].sort((a, b) => a - b);
    if (heads.length) this.chooseHeads(heads);
  }

  typeHeads() {
    const heads = parseHeads(this.sample, this.headsInput.value);
    if (heads.length) this.chooseHeads(heads);
    else {
      this.app.say(
        `No head is called ${this.headsInput.value}; heads are written layer.head, as in ${headName(this.sample, 0)}`,
      );
      this.headsInput.value = nameHeads(this.sample, this.heads);
    }
  }

  /** What the field holds afterwards is what holds. */
  typeEpsilon() {
    this.app.set({ epsilon: Number(this.epsilonInput.value) });
    this.epsilonInput.value = String(this.app.state.epsilon);
  }

  chooseHeads(heads) {
    this.app.change(this, { heads: nameHeads(this.sample, heads).split(", ") });
    this.app.say(`${plural(heads.length, "head")} selected: ${nameHeads(this.sample, heads)}`);
  }

  // Drawing ..........................................................................................................

  /** What must be drawn again: "survey" (other heads), "look" (everything visible), "grid" or "step". */
  invalidate(what) {
    this.dirty.add(what);
    this.app.schedule();
  }

  render() {
    if (!this.sample || !this.dirty.size || !this.node.isConnected) return;
    const { dirty, app } = this;
    this.dirty = new Set();
    const { reading, epsilon } = app.state;
    const stale =
      !this.survey ||
      dirty.has("survey") ||
      epsilon < this.survey.floor ||
      (reading === "difference") !== this.surveyed;
    if (stale) {
      this.survey = surveyHeads(this.sample, this.heads, reading, Math.min(1, epsilon));
      this.surveyed = reading === "difference";
    }
    const scene = this.scene();
    if (stale || dirty.has("look")) this.drawAll(scene);
    else if (dirty.has("step")) this.map.drawCursor(scene);
    if (stale || dirty.has("look") || dirty.has("step")) this.drawStep(scene);
    if (stale || dirty.size !== 1 || !dirty.has("step") || app.state.scope === "step") this.drawGrid(scene);
  }

  /** What one frame shows, for all views. */
  scene() {
    const { survey, app } = this;
    const { unit, epsilon, tracks } = app.state;
    const leaning = survey.difference !== null;
    const top = survey.top[leaning ? "difference" : unit];
    return {
      step: this.state.step,
      token: this.state.token,
      epsilon,
      limit: Math.fround(epsilon),
      survey,
      tracks,
      shownTracks: survey.tracks.filter((one) => one.peak > epsilon),
      top,
      leaning,
      values: leaning ? survey.difference : unit === "excess" ? survey.excess : survey.share,
      toShade: leaning ? (value) => lean(value, top) : (value) => shade(value, top),
      shades: leaning ? app.colours.diverging : app.colours.sequential,
      colours: app.colours,
      heads: survey.heads,
    };
  }

  drawAll(scene) {
    const { app, sample, survey } = this;
    this.ribbon.repaint();
    this.grid.layOut();
    this.map.draw(scene);
    this.histogram.draw(scene);
    drawScale(this, scene);
    drawKinds(this, scene);
    drawTokens(this);
    drawLives(this, scene);
    this.scope.show(app.state.scope);
    this.reading.show(app.state.reading);
    const names = nameHeads(sample, survey.heads);
    this.headsInput.value = names;
    this.epsilonInput.value = String(app.state.epsilon);
    const missing =
      app.state.reading === "difference" && !scene.leaning
        ? " · no query groups of these heads, all queries shown"
        : "";
    const whose = survey.heads.length === 1 ? `head ${names}` : `mean of ${survey.heads.length} heads`;
    const absent = this.absentHeads.map((name) => `no head ${name} here`).join(", ");
    this.mapNote.replaceChildren(
      ...(absent ? [element("strong", { class: "missing" }, absent), " · shown: "] : []),
      whose + missing,
    );
    if (absent) app.say(`${absent}; shown: ${whose}`);
  }

  drawStep(scene) {
    const { sample, survey } = this;
    const { T, K } = sample;
    this.ribbon.update(scene);
    this.ribbon.shades = scene.shades;
    let [masked, sinks] = [0, 0];
    for (let cell = scene.step * K; cell < (scene.step + 1) * K; cell++) {
      masked += sample.masked[cell];
      if (survey.eligible[cell] && survey.excess[cell] > scene.limit) sinks++;
    }
    const numbers = sample.json.step_numbers;
    this.slider.value = String(scene.step);
    this.slider.setAttribute("aria-valuetext", `step ${numbers[scene.step]} of ${numbers[T - 1]}`);
    this.slider.style.setProperty("--done", `${T > 1 ? (100 * scene.step) / (T - 1) : 0}%`);
    const left = this.run.model.causal ? "" : ` · ${masked} masked`;
    this.where = `step ${numbers[scene.step]} of ${numbers[T - 1]}${left} · ${plural(sinks, "sink")}`;
    this.output.textContent = this.where;
  }

  drawGrid(scene) {
    const { sample, app } = this;
    const { T, L, H } = sample;
    const { tops, peaks } = sample;
    const mean = app.state.scope === "mean";
    const count = L * H;
    const differs = app.state.reading === "difference";
    const known = tops.masked && tops.unmasked;
    let values;
    if (!differs)
      values = mean
        ? peaks.mean
        : Float32Array.from({ length: count }, (_, head) => peaks.value[head * T + scene.step]);
    else if (known) values = groupGap(sample, mean ? null : scene.step);
    else values = new Float32Array(count).fill(NaN);
    const top = differs ? tops.most : mean ? greatest(peaks.mean, 4) : peaks.most;
    const toShade = differs ? (value) => lean(value, top) : (value) => shade(value, top);
    this.grid.draw({
      values,
      toShade,
      shades: differs ? app.colours.diverging : app.colours.sequential,
      heads: scene.heads,
      colours: app.colours,
    });
    this.gridValues = values;
    const what = differs
      ? "Strongest sink of masked queries less that of unmasked ones"
      : "Strongest sink of every head";
    let note = `${what}, ${mean ? "mean over steps" : "at this step"}. Rows are layers, columns heads.`;
    if (differs && !known) note = "This run does not tell masked from unmasked queries.";
    else if (!differs && peaks.done < count) note = `Reading heads: ${peaks.done} of ${count}.`;
    this.gridNote.textContent = note;
  }

  destroy() {
    this.observer.disconnect();
    this.ribbon?.destroy();
  }
}
