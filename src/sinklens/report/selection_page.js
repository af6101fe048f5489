/** Token selection: an image, a budget, and which patches are left behind every gate. Needs decode.js before it. */

const FADED = 0.14; // how much of a dropped patch is left
const SHOWN = 4; // classes that are listed
const percent = (share) => `${Math.round(100 * share)} %`;

/** An element with properties, attributes (data-..., aria-...) and children. */
function make(tag, fields = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** What the payload holds, as arrays, with names for their places. */
class Maps {
  constructor(payload, arrays) {
    Object.assign(this, payload, arrays);
    this.patches = this.grid[0] * this.grid[1];
    this.images = this.names.length;
  }

  isKept(alpha, image, gate, patch) {
    return this.kept[((alpha * this.images + image) * this.gated.length + gate) * this.patches + patch] === 1;
  }

  count(alpha, image, gate) {
    let sum = 0;
    for (let patch = 0; patch < this.patches; patch++) sum += this.isKept(alpha, image, gate, patch);
    return sum;
  }

  /** The smallest budget from which on a patch stays; -1: only where gates are not run, or never. */
  needed(image, gate, patch) {
    let from = this.alphas.length;
    while (from > 0 && this.isKept(from - 1, image, gate, patch)) from--;
    return from < this.alphas.length ? this.alphas[from] : -1;
  }

  name(number) {
    return this.classes[number] ?? String(number);
  }

  /** Classes by chance, the likeliest first. */
  ranking(alpha, image) {
    const count = this.chances.length / (this.alphas.length * this.images);
    const start = (alpha * this.images + image) * count;
    return Array.from({ length: count }, (_, at) => [at, this.chances[start + at]]).sort((a, b) => b[1] - a[1]);
  }

  /** An image as it is. */
  picture(image) {
    const [channels, height, width] = this.size;
    const plane = height * width;
    const start = image * channels * plane;
    const out = new ImageData(width, height);
    for (let at = 0; at < plane; at++) {
      for (let c = 0; c < 3; c++) out.data[4 * at + c] = this.pixels[start + (channels === 1 ? 0 : c) * plane + at];
      out.data[4 * at + 3] = 255;
    }
    return out;
  }
}

/** Put a picture on a canvas of its own size; weight(patch) is how much of a patch is left, the rest is tint. */
function paint(canvas, maps, image, weight, tint) {
  const [, height, width] = maps.size;
  const picture = maps.picture(image);
  const [rows, columns] = maps.grid;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const patch = Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width);
      const share = weight(patch);
      const at = 4 * (y * width + x);
      for (let c = 0; c < 3; c++) picture.data[at + c] = picture.data[at + c] * share + tint[c] * (1 - share);
    }
  }
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

/** A #rrggbb colour of the style sheet as numbers. */
function colourOf(root, name) {
  const hex = getComputedStyle(root).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** What the address says, where it makes sense. */
function readState(maps) {
  const said = new URLSearchParams(location.hash.slice(1));
  const whole = (text, end) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : 0);
  const nearest = (to) =>
    maps.alphas.reduce((best, one, at) => (Math.abs(one - to) < Math.abs(maps.alphas[best] - to) ? at : best), 0);
  const alpha = Number.parseFloat(said.get("alpha") ?? "0.5");
  return {
    image: whole(said.get("image"), maps.images),
    alpha: nearest(Number.isFinite(alpha) ? alpha : 0.5),
    view: said.get("view") === "needed" ? "needed" : "kept",
  };
}

class SelectionView {
  constructor(root, maps) {
    this.root = root;
    this.maps = maps;
    this.state = readState(maps);
    this.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    this.build();
    this.show();
  }

  build() {
    const { maps } = this;
    this.slider = make("input", {
      type: "range", min: 0, max: maps.alphas.length - 1, step: 1, id: "budget", "data-part": "slider",
      oninput: () => this.set({ alpha: Number(this.slider.value) }),
    }); // prettier-ignore
    this.budget = make("output", { className: "budget", "data-part": "budget" });
    this.said = make("p", { className: "said", role: "status", "data-part": "said" });
    this.classes = make("dl", { className: "chances", "data-part": "chances" });
    this.views = ["kept", "needed"].map((name) =>
      make("button", { type: "button", "data-value": name, onclick: () => this.set({ view: name }) },
        { kept: "patches kept", needed: "budget a patch needs" }[name])); // prettier-ignore
    this.thumbs = maps.names.map((name, image) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      paint(canvas, maps, image, () => 1, [0, 0, 0]);
      const press = () => this.set({ image });
      return make("button", { type: "button", className: "thumb", title: name, "aria-label": name, onclick: press }, canvas);
    });
    this.figures = maps.gated.map((block, gate) => {
      const canvas = make("canvas", { role: "img", "data-part": `gate-${gate}` });
      return { canvas, caption: make("figcaption"), block, gate };
    });
    this.whole = make("canvas", { role: "img", "aria-label": "the image", "data-part": "image" });
    const whole = make("figure", { className: "gate" }, this.whole, make("figcaption", {}, "the image"));
    const gates = this.figures.map(({ canvas, caption, gate }) =>
      make("figure", { className: gate === maps.channelGate ? "gate sent" : "gate" }, canvas, caption));
    this.toggle = make("button", { type: "button", "data-part": "theme", onclick: () => this.turn() });
    this.root.replaceChildren(
      make("header", { className: "toolbar" },
        make("div", { className: "title" }, make("h1", {}, maps.model), make("p", { className: "sentence" },
          "Which patches of an image stay, at a budget of your choice. Faded ones are dropped and never come back.")),
        this.toggle),
      make("nav", { className: "thumbs", "aria-label": "images" }, ...this.thumbs),
      make("div", { className: "budget-row" },
        make("label", { htmlFor: "budget" }, "budget"), this.slider, this.budget,
        make("span", { className: "views", role: "group", "aria-label": "what is shown" }, ...this.views)),
      this.said,
      make("main", { className: "maps" }, whole, ...gates),
      this.classes,
    ); // prettier-ignore
    window.addEventListener("hashchange", () => this.set(readState(maps)));
  }

  turn() {
    this.theme = this.theme === "dark" ? "light" : "dark";
    this.show();
  }

  set(change) {
    Object.assign(this.state, change);
    this.show();
  }

  show() {
    const { maps, state } = this;
    this.root.dataset.theme = this.theme;
    this.toggle.textContent = this.theme === "dark" ? "light" : "dark";
    this.slider.value = state.alpha;
    const alpha = maps.alphas[state.alpha];
    this.slider.setAttribute("aria-valuetext", `alpha ${alpha}`);
    this.budget.textContent = alpha === 1 ? "1 (gates off)" : String(alpha);
    this.thumbs.forEach((thumb, image) => thumb.setAttribute("aria-pressed", String(image === state.image)));
    this.views.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.value === state.view)));
    paint(this.whole, maps, state.image, () => 1, [0, 0, 0]);
    this.figures.forEach((figure) => this.drawGate(figure));
    this.tell();
    const address = `#image=${state.image}&alpha=${alpha}&view=${state.view}`;
    if (location.hash !== address) history.replaceState(null, "", address);
  }

  drawGate({ canvas, caption, block, gate }) {
    const { maps, state } = this;
    const tint = colourOf(this.root, "--dropped");
    const kept = (patch) => (maps.isKept(state.alpha, state.image, gate, patch) ? 1 : FADED);
    const needed = (patch) => {
      const from = maps.needed(state.image, gate, patch);
      return from < 0 ? 0 : 1 - from * (1 - FADED);
    };
    paint(canvas, maps, state.image, state.view === "kept" ? kept : needed, tint);
    const count = maps.count(state.alpha, state.image, gate);
    const words = `block ${block}: ${count} of ${maps.patches} patches`;
    canvas.setAttribute("aria-label", words);
    caption.textContent = gate === maps.channelGate ? `${words}; these are sent` : words;
  }

  tell() {
    const { maps, state } = this;
    const ranking = maps.ranking(state.alpha, state.image);
    const at = state.alpha * maps.images + state.image;
    const label = maps.labels[state.image];
    const [best, chance] = ranking[0];
    const truth = label === null ? "" : best === label ? ", which is right" : `, but it is ${maps.name(label)}`;
    this.said.textContent =
      `${maps.names[state.image]}: ${maps.name(best)}, ${percent(chance)}${truth}. ` +
      `${maps.sent[at]} tokens are sent, those that are no patches included; ${percent(maps.macs[at])} of the multiply-accumulates.`;
    this.classes.replaceChildren(
      ...ranking.slice(0, SHOWN).flatMap(([number, share]) => {
        const bar = make("meter", { min: 0, max: 1, value: share, "aria-label": maps.name(number) });
        return [make("dt", {}, maps.name(number)), make("dd", {}, bar, ` ${percent(share)}`)];
      }),
    );
  }
}

async function mountSelection(root, payload) {
  const names = ["pixels", "kept", "chances", "macs", "sent"];
  const arrays = await Promise.all(names.map((name) => unpack(payload[name])));
  new SelectionView(root, new Maps(payload, Object.fromEntries(names.map((name, at) => [name, arrays[at]]))));
}
