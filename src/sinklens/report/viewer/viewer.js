/**
 * The explorer: scrub through a generation and watch attention sinks come, move and go.
 *
 * The entry of ES modules without dependencies, which page.py joins into one for the page and for the notebook widget.
 * `mount(root, payload)` builds everything inside `root`; viewer.css holds the style. The payload (format 1) carries
 * fair shares of all heads in 8 bits, a few heads as floats, and the tracks. Sinks are found here, by the rule of
 * `detect_sinks`:
 *
 *     excess = share - mean share of the other visible keys;   sink: excess > epsilon, and enough queries see the key
 *
 * Text of tokens is what a model wrote: it enters the document through textContent alone. Nothing is ever requested.
 */

import { palette } from "./colours.js";
import { CALM_STEP_MS, DEFAULTS, FORMAT, STEP_MS } from "./constants.js";
import { download, pictureOf } from "./export.js";
import { PAUSE, PLAY, segmented } from "./layout.js";
import { Pane } from "./pane.js";
import { brief, clamp, element, icon, plural, settled } from "./small.js";
import { leastEpsilon, readHash, tidy, writeHash } from "./state.js";
import { Tooltip } from "./words.js";

/** How a run was made, and what its numbers lost on the way into the page. */
function lossOf({ sampler, source, detail, samples: [{ loss, left_out: left, exact }] }) {
  const how = [sampler, source && `trace ${source}`, detail === "sinks" && "sinks only"].filter(Boolean).join(", ");
  const [part, from] = [(100 * loss.max_relative).toFixed(1), brief(loss.relative_from)];
  const said = [
    `${how ? ` (${how})` : ""}.`,
    `Shares are stored in 8 bits: within ${part} % from ${from} fair shares on,`,
    `within ${brief(loss.max_absolute_below)} below.`,
    `Exact: heads ${exact.map((one) => `${one.layer}.${one.head}`).join(", ")}.`,
  ];
  if (left?.layers || left?.heads) {
    said.push(
      `Left out to keep the page small: ${plural(left.layers, "layer")}, ${plural(left.heads, "head")} a layer.`,
    );
  }
  return said.join(" ");
}

/** Everything inside one root. */
class Explorer {
  constructor(root, payload, options) {
    this.root = root;
    this.payload = payload;
    this.leastEpsilon = leastEpsilon(payload.runs);
    this.embedded = options.hash === false;
    this.state = this.stateOf(this.embedded ? "" : location.hash);
    this.tooltip = new Tooltip();
    this.frame = 0;
    this.playing = null;
    this.panes = payload.runs.map((_, index) => new Pane(this, index));
    this.active = this.panes[0];
    this.saveHash = settled(() => this.writeHash(), 300);
    this.announce = settled(() => this.say(this.active.where ?? ""), 500);
    this.stop = new AbortController();
    this.build();
    this.paintTheme();
    this.ready = this.start();
  }

  /** The mark tells a benchmark, on the browser's own clock, when the first whole picture was drawn. */
  async start() {
    await Promise.all(this.panes.map((pane) => pane.load(pane.state.sample)));
    this.flush();
    performance.mark("sinklens-drawn");
  }

  build() {
    const { root, panes } = this;
    root.classList.add("sinklens");
    root.classList.toggle("two", panes.length > 1);
    this.live = element("p", { class: "unseen", role: "status", "aria-live": "polite", "data-part": "live" });
    this.panesNode = element("main", { class: "panes" }, ...panes.map((pane) => pane.node));
    root.replaceChildren(this.toolbar(), this.panesNode, this.footer(), this.tooltip.node, this.live);
    this.listen();
  }

  toolbar() {
    const button = (part, text, title, action) =>
      element("button", { type: "button", "data-part": part, title, onClick: action }, text);
    const toggle = (part, text, title) => button(part, text, title, () => this.set({ [part]: !this.state[part] }));
    this.unit = segmented(
      "Colour shows",
      [
        ["fair_share", "fair share", "Attention received over what uniform attention would give"],
        ["excess", "excess", "Fair share less the mean of the other tokens: what ε is compared with"],
      ],
      (unit) => this.set({ unit }),
    );
    this.toggles = { tracks: toggle("tracks", "tracks", "Draw the paths of sinks over the map") };
    if (this.panes.length > 1) this.toggles.link = toggle("link", "link steps", "Both runs move together");
    this.sentence = element("p", { class: "sentence" });
    return element(
      "header",
      { class: "toolbar" },
      element("div", { class: "title" }, element("h1", {}, "sinklens"), this.sentence),
      element(
        "div",
        { class: "actions", role: "toolbar", "aria-label": "View" },
        this.unit.node,
        ...Object.values(this.toggles),
        button("permalink", "copy link", "Copy the address of exactly this view", () => this.copyLink()),
        button("png", "PNG", "Save this view as a picture", () => this.savePicture()),
        button("theme", "◐", "Light or dark", () => this.set({ theme: this.theme === "dark" ? "light" : "dark" })),
      ),
    );
  }

  footer() {
    const made = this.payload.made ? `, ${this.payload.made.slice(0, 10)}` : "";
    const keys = [
      "Keys: ← → step, Space plays, Home and End jump; inside the map and the grid the arrows move there.",
      "Shift or Ctrl and a click adds heads.",
    ];
    return element(
      "footer",
      {},
      ...this.payload.runs.map((run) => element("p", { "data-part": "loss" }, element("b", {}, run.name), lossOf(run))),
      element("p", {}, keys.join(" ")),
      element("p", {}, `sinklens ${this.payload.sinklens}${made}. One file; nothing is loaded or sent.`),
    );
  }

  listen() {
    const { signal } = this.stop;
    const keys = this.embedded ? this.root : document;
    keys.addEventListener("keydown", (event) => this.key(event), { signal });
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.refresh(), { signal });
    if (!this.embedded) {
      window.addEventListener(
        "hashchange",
        () => {
          if (location.hash !== this.written) this.set(this.stateOf(location.hash));
        },
        { signal },
      );
    }
    for (const pane of this.panes) {
      const wake = () => (this.active = pane);
      pane.node.addEventListener("pointerdown", wake, { signal });
      pane.node.addEventListener("focusin", wake, { signal });
    }
    this.root.addEventListener(
      "keydown",
      (event) => {
        if (event.key === "Escape") this.tooltip.hide();
      },
      { signal },
    );
  }

  /** Keys that hold everywhere but in fields; what has arrows of its own stops them before they come here. */
  key(event) {
    const { target } = event;
    const field = target.closest?.("input:not([type=range]), select, textarea");
    if (event.defaultPrevented || field || event.ctrlKey || event.metaKey || event.altKey || !this.active.sample)
      return;
    const pane = this.active;
    const { step } = pane.state;
    const to = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: pane.sample.T - 1 }[event.key];
    if (to !== undefined) this.goTo(pane, to);
    else if (event.key === " " && !target.closest?.("button")) this.togglePlay(pane);
    else return;
    event.preventDefault();
  }

  // State ............................................................................................................

  /** The whole view that an address names; what it does not name has its default. */
  stateOf(hash) {
    const read = readHash(hash);
    return tidy(
      { ...DEFAULTS, ...read, panes: read.panes.map((pane) => ({ token: null, ...pane })) },
      this.payload.runs,
    );
  }

  merged(partial) {
    const panes = this.state.panes.map((pane, index) => ({ ...pane, ...partial.panes?.[index] }));
    const own = Object.fromEntries(
      ["sample", "step", "heads", "token"].filter((name) => name in partial).map((name) => [name, partial[name]]),
    );
    const index = this.active?.index ?? 0;
    panes[index] = { ...panes[index], ...own };
    return tidy({ ...this.state, ...partial, panes }, this.payload.runs);
  }

  /** Takes over what is given, and draws what depends on it. */
  async set(partial) {
    const before = this.state;
    this.state = this.merged(partial);
    if (before.theme !== this.state.theme) this.paintTheme();
    const looks = Object.keys(DEFAULTS).some((name) => before[name] !== this.state[name]);
    if (looks) this.showControls();
    for (const pane of this.panes) {
      const [old, now] = [before.panes[pane.index], pane.state];
      if (old.sample !== now.sample) await pane.load(now.sample);
      if (String(old.heads) !== String(now.heads)) pane.invalidate("survey");
      if (looks) pane.invalidate("look");
      if (old.step !== now.step || old.token !== now.token) pane.invalidate("step");
    }
    this.saveHash();
  }

  change(pane, partial) {
    const panes = this.panes.map((one) => (one === pane ? partial : {}));
    return this.set({ panes });
  }

  /** A step of one pane, and of the other where they are linked: the same one, or the same way through the run. */
  goTo(pane, step) {
    const to = clamp(step, 0, pane.sample.T - 1);
    const panes = this.panes.map((one) => {
      if (one === pane) return { step: to };
      if (!this.state.link || !one.sample) return {};
      const same = one.sample.T === pane.sample.T || pane.sample.T < 2;
      return { step: same ? to : Math.round((to / (pane.sample.T - 1)) * (one.sample.T - 1)) };
    });
    this.announce();
    return this.set({ panes });
  }

  // Playing ..........................................................................................................

  togglePlay(pane) {
    const on = this.playing !== pane;
    this.pause();
    if (!on) return;
    this.playing = pane;
    this.showPlay(pane, true);
    if (pane.state.step === pane.sample.T - 1) this.goTo(pane, 0);
    const wait = matchMedia("(prefers-reduced-motion: reduce)").matches ? CALM_STEP_MS : STEP_MS;
    this.timer = setInterval(() => {
      this.goTo(pane, pane.state.step + 1);
      if (pane.state.step === pane.sample.T - 1) this.pause();
    }, wait);
  }

  pause() {
    clearInterval(this.timer);
    if (this.playing) this.showPlay(this.playing, false);
    this.playing = null;
  }

  showPlay(pane, on) {
    pane.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    pane.playButton.title = on ? "Pause" : "Play";
    pane.playButton.replaceChildren(icon(on ? PAUSE : PLAY));
  }

  // Showing ..........................................................................................................

  get theme() {
    if (this.state.theme !== "auto") return this.state.theme;
    return this.dark?.matches ? "dark" : "light";
  }

  paintTheme() {
    this.root.dataset.theme = this.theme;
    this.colours = palette(this.root, this.theme);
    this.showControls();
  }

  refresh() {
    this.paintTheme();
    this.panes.forEach((pane) => pane.invalidate("look"));
  }

  showControls() {
    this.unit.show(this.state.unit);
    for (const [name, node] of Object.entries(this.toggles))
      node.setAttribute("aria-pressed", String(this.state[name]));
    const { epsilon } = this.state;
    this.sentence.replaceChildren(
      "An attention sink is a token that receives far more attention than the others: here, more than ",
      element("b", {}, `ε = ${epsilon}`),
      " fair shares above their mean.",
    );
  }

  schedule() {
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.colours.paper) this.paintTheme(); // a notebook may attach the root later than it is built
    this.panes.forEach((pane) => pane.render());
  }

  say(text) {
    this.live.textContent = text;
  }

  writeHash() {
    if (this.embedded) return;
    this.written = writeHash(this.state);
    history.replaceState(null, "", this.written);
  }

  async copyLink() {
    this.writeHash();
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("Link copied");
    } catch {
      this.say("The address of the page is the link to this view");
    }
  }

  savePicture() {
    this.flush();
    pictureOf(this.root, this.colours.paper).toBlob((blob) => download(blob, "sinklens.png"));
    this.say("Picture saved");
  }

  destroy() {
    this.gone = true;
    this.pause();
    this.stop.abort();
    this.saveHash.cancel();
    this.announce.cancel();
    cancelAnimationFrame(this.frame);
    this.panes.forEach((pane) => pane.destroy());
    this.root.replaceChildren();
    this.root.classList.remove("sinklens", "two");
  }
}

/**
 * Builds the explorer inside `root`.
 * @param {HTMLElement} root
 * @param {object} payload  format 1
 * @param {{hash?: boolean}} options  hash false: a part of another page; its address is left alone, keys hold inside
 * @returns {{destroy(): void, state(): object, set(partial: object): Promise<void>, ready: Promise<void>}}
 */
export function mount(root, payload, options = {}) {
  if (payload.format !== FORMAT)
    throw new Error(`the data has format ${payload.format}; this viewer reads format ${FORMAT}: make the page again`);
  const explorer = new Explorer(root, payload, options);
  return {
    ready: explorer.ready,
    destroy: () => explorer.destroy(),
    state: () => structuredClone(explorer.state),
    set: async (partial) => {
      await explorer.set(partial);
      explorer.flush();
    },
  };
}
