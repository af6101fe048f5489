/** The text, a span a token. */

import { PIECE, WHOLE_RIBBON } from "./constants.js";
import { stateAt, tokenOf } from "./sample.js";
import { alone, clamp, element, flowing } from "./small.js";

/** The text, a span a token. Only what changed since the last step is touched, and only in pieces that are in sight. */
export class Ribbon {
  constructor(sample, act) {
    const { K } = sample;
    this.sample = sample;
    this.shown = {
      id: new Int32Array(K).fill(-2),
      state: new Array(K),
      shade: new Int16Array(K).fill(-1),
      ink: new Array(K),
      sink: new Uint8Array(K).fill(2),
      chosen: -1,
    };
    this.tokens = Array.from({ length: K }, (_, k) => this.token(k));
    this.node = element("div", {
      class: "ribbon",
      role: "listbox",
      "aria-label": "Tokens; arrow keys move between them",
      "data-part": "ribbon",
    });
    this.pieces = this.layOut();
    this.act = act;
    this.listen();
  }

  token(k) {
    const text = flowing(tokenOf(this.sample, this.sample.final[k]).text);
    const node = element("span", {
      class: "token",
      role: "option",
      "data-position": k,
      tabindex: k ? -1 : 0,
      "aria-selected": "false",
    });
    node.style.minWidth = `${clamp([...text].length, 1, 24)}ch`;
    return node;
  }

  /** Line ends of the final text break lines; a long text stands in pieces. */
  layOut() {
    const { K, final } = this.sample;
    const size = K > WHOLE_RIBBON ? PIECE : K;
    const pieces = [];
    for (let from = 0; from < K; from += size) {
      const node = element("div", { class: "piece" });
      const stop = Math.min(K, from + size);
      for (let k = from; k < stop; k++) {
        node.append(this.tokens[k]);
        if (tokenOf(this.sample, final[k]).text.includes("\n")) node.append(element("br"));
      }
      pieces.push({ node, from, stop, inSight: size === K });
      this.node.append(node);
    }
    if (pieces.length > 1) {
      this.observer = new IntersectionObserver(
        (entries) => {
          for (const entry of entries) pieces.find((one) => one.node === entry.target).inSight = entry.isIntersecting;
          if (this.last) this.update(this.last);
        },
        { root: this.node, rootMargin: "40px" },
      );
      pieces.forEach((one) => this.observer.observe(one.node));
    }
    return pieces;
  }

  listen() {
    const position = (event) => event.target.closest?.(".token")?.dataset.position;
    const on = (name, action) =>
      this.node.addEventListener(name, (event) => {
        const k = position(event);
        if (k !== undefined) action(Number(k), event);
      });
    on("pointerover", (k) => this.act.point(k, this.tokens[k]));
    on("focusin", (k) => this.act.point(k, this.tokens[k]));
    on("click", (k) => this.act.choose(k));
    on("keydown", (k, event) => this.key(k, event));
    this.node.addEventListener("pointerleave", () => this.act.point(null));
    this.node.addEventListener("focusout", () => this.act.point(null));
  }

  key(k, event) {
    const last = this.sample.K - 1;
    const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter") this.act.choose(k);
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.focus(clamp(to, 0, last));
  }

  focus(k) {
    this.node.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.tokens[k].setAttribute("tabindex", "0");
    this.tokens[k].focus({ preventScroll: true });
    this.reveal(k);
  }

  /** Scrolls the ribbon, not the page. */
  reveal(k) {
    const [box, token] = [this.node.getBoundingClientRect(), this.tokens[k].getBoundingClientRect()];
    if (token.top < box.top || token.bottom > box.bottom) this.node.scrollTop += token.top - box.top - box.height / 2;
  }

  /** @param scene step, token, epsilon, survey, values, top, shades and toShade: what is drawn */
  update(scene) {
    this.last = scene;
    for (const piece of this.pieces) {
      if (!piece.inSight) continue;
      for (let k = piece.from; k < piece.stop; k++) this.updateToken(k, scene);
    }
    if (this.shown.chosen === scene.token) return;
    this.tokens[this.shown.chosen]?.setAttribute("aria-selected", "false");
    this.tokens[scene.token]?.setAttribute("aria-selected", "true");
    this.shown.chosen = scene.token;
  }

  updateToken(k, { step, limit, survey, values, toShade, shades }) {
    const { sample, shown } = this;
    const node = this.tokens[k];
    const cell = step * sample.K + k;
    const state = stateAt(sample, step, k);
    const id = sample.canvas[cell];
    if (id !== shown.id[k] || state !== shown.state[k]) {
      const text = tokenOf(sample, id).text;
      const hidden = state === "masked" || state === "absent";
      node.textContent = hidden ? "" : flowing(text);
      node.dataset.state = state;
      node.setAttribute(
        "aria-label",
        `${hidden ? state : alone(text)}, position ${k}${state === "new" ? ", just committed" : ""}`,
      );
      shown.id[k] = id;
      shown.state[k] = state;
    }
    const value = values[cell];
    const tone = value === value ? toShade(value) : -2;
    if (tone !== shown.shade[k] || shades !== this.shades) {
      const ink = tone < 0 ? "" : shades.dark[tone] ? "#fff" : "#000";
      node.style.backgroundColor = tone < 0 ? "" : shades.css[tone];
      if (ink !== shown.ink[k]) node.style.color = shown.ink[k] = ink;
      shown.shade[k] = tone;
    }
    const sink = survey.eligible[cell] && survey.excess[cell] > limit ? 1 : 0;
    if (sink !== shown.sink[k]) node.classList.toggle("sink", sink === 1);
    shown.sink[k] = sink;
    if (sink) node.style.setProperty("--heat", node.style.backgroundColor); // the glow around it
  }

  /** New colours: everything is set again. */
  repaint() {
    this.shown.shade.fill(-1);
  }

  destroy() {
    this.observer?.disconnect();
  }
}
