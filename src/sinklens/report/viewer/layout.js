/** The elements of a pane. */

import { saveTable } from "./export.js";
import { element, icon, plural } from "./small.js";

export const PLAY = "M7 4v16l13-8z";
export const PAUSE = "M6 4h4v16H6zM14 4h4v16h-4z";

/** Buttons of which one is on. `data-value` names them. */
export function segmented(title, options, choose) {
  const buttons = options.map(([value, text, hint]) =>
    element(
      "button",
      { type: "button", "data-value": value, "aria-pressed": "false", title: hint, onClick: () => choose(value) },
      text,
    ),
  );
  const node = element("div", { class: "segmented", role: "group", "aria-label": title }, ...buttons);
  const show = (value) =>
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.value === value)));
  return { node, show };
}

function panel(name, title, ...children) {
  const heading = element("h3", {}, title);
  const bar = element("div", { class: "panel-head" }, heading);
  return {
    node: element("section", { class: `panel ${name}`, "data-panel": name, "aria-label": title }, bar, ...children),
    bar,
    heading,
  };
}

export function header(pane) {
  const { run, sample, app } = pane;
  const { model } = run;
  const facts = [
    model.name === run.name ? "" : model.name,
    model.causal ? "autoregressive" : "diffusion",
    `${plural(sample.L, "layer")} × ${plural(sample.H, "head")}`,
    plural(sample.T, "step"),
    plural(sample.K, "token"),
  ];
  const letter = app.panes.length > 1 ? [element("span", { class: "letter" }, pane.name.toUpperCase())] : [];
  const node = element(
    "header",
    { class: "pane-head" },
    element("h2", {}, ...letter, run.name),
    element("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
  );
  const tools = element("div", { class: "tools" });
  if (run.samples.length > 1) {
    const choice = element("select", {
      "aria-label": "Sample",
      "data-part": "sample",
      onChange: () => app.change(pane, { sample: Number(choice.value) }),
    });
    run.samples.forEach((one, at) => choice.append(element("option", { value: at }, `sample ${one.sample}`)));
    choice.value = String(pane.state.sample);
    tools.append(choice);
  }
  tools.append(
    element(
      "button",
      {
        type: "button",
        "data-part": "csv",
        title: "Numbers of the selected heads as CSV",
        onClick: () => saveTable(pane),
      },
      "CSV",
    ),
  );
  node.append(tools);
  return node;
}

export function transport(pane) {
  const { app, sample } = pane;
  const button = (part, title, path, action) =>
    element(
      "button",
      { type: "button", class: "icon", "data-part": part, "aria-label": title, title, onClick: action },
      icon(path),
    );
  pane.playButton = button("play", "Play", PLAY, () => app.togglePlay(pane));
  pane.slider = element("input", {
    type: "range",
    min: 0,
    max: sample.T - 1,
    step: 1,
    "data-part": "slider",
    "aria-label": "Step",
    onInput: () => app.goTo(pane, Number(pane.slider.value)),
  });
  pane.output = element("output", { class: "where", "data-part": "where" });
  return element(
    "div",
    { class: "transport" },
    pane.playButton,
    button("back", "Previous step", "M15 5 8 12l7 7z", () => app.goTo(pane, pane.state.step - 1)),
    pane.slider,
    button("forward", "Next step", "m9 5 7 7-7 7z", () => app.goTo(pane, pane.state.step + 1)),
    pane.output,
  );
}

export function mainColumn(pane) {
  const states = [
    ["prompt", "prompt"],
    ["committed", "committed"],
    ["new", "just committed"],
    ["masked", "masked"],
  ]
    .filter(([state]) => state !== "masked" || !pane.run.model.causal)
    .map(([state, text]) => element("span", { class: "token", "data-state": state }, state === "masked" ? "" : text));
  const sink = element("span", { class: "token sink example" }, "sink");
  const key = element("p", { class: "key", "aria-label": "How tokens are drawn" }, ...states, sink);
  if (!pane.run.model.causal)
    key.querySelector('[data-state="masked"]').after(element("span", { class: "word" }, "masked"));
  const text = panel("text", "Text", pane.ribbon.node);
  text.bar.append(key);
  pane.scale = element("canvas", { class: "scale", "aria-hidden": "true" });
  pane.kinds = element("p", { class: "key kinds", "aria-label": "Kinds of tracks" });
  const map = panel(
    "token-map",
    "Token by step",
    pane.map.node,
    element("div", { class: "legend" }, pane.scale, pane.kinds),
  );
  pane.mapNote = element("span", { class: "note", "data-part": "selection" });
  map.bar.append(pane.mapNote);
  return element("div", { class: "stack" }, text.node, map.node);
}

export function sideColumn(pane) {
  const { app } = pane;
  pane.scope = segmented(
    "Grid shows",
    [
      ["step", "this step"],
      ["mean", "mean", "Mean over all steps"],
    ],
    (scope) => app.set({ scope }),
  );
  pane.reading = segmented(
    "Queries",
    [
      ["all", "all", "All queries"],
      ["difference", "masked − unmasked", "What masked queries give beyond unmasked ones"],
    ],
    (reading) => app.set({ reading }),
  );
  pane.headsInput = element("input", {
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    "data-part": "heads",
    "aria-label": "Selected heads, as layer.head; * for all",
    onChange: () => pane.typeHeads(),
  });
  pane.gridNote = element("p", { class: "note", "data-part": "grid-note" });
  const grid = panel(
    "heads",
    "Heads",
    element("div", { class: "row" }, pane.scope.node, pane.reading.node),
    pane.grid.node,
    pane.gridNote,
  );
  grid.bar.append(element("label", { class: "field" }, element("span", {}, "selected"), pane.headsInput));
  pane.epsilonInput = element("input", {
    type: "number",
    min: app.leastEpsilon,
    step: 0.1,
    "data-part": "epsilon",
    "aria-label": "Threshold epsilon",
    onChange: () => pane.typeEpsilon(),
  });
  const scores = panel("scores", "Scores", pane.histogram.node);
  scores.bar.append(element("label", { class: "field" }, element("span", {}, "ε ="), pane.epsilonInput));
  return element("div", { class: "stack side" }, grid.node, scores.node);
}

export function lowerPart(pane) {
  pane.table = element("tbody", { "data-part": "sink-tokens" });
  const columns = [["token"], ["class"], ["sinks", "number"], ["excess", "number"]].map(([text, kind]) =>
    element("th", { scope: "col", class: kind }, text),
  );
  const tokens = panel(
    "tokens",
    "Sink tokens",
    element("table", {}, element("thead", {}, element("tr", {}, ...columns)), pane.table),
  );
  pane.tokensNote = element("span", { class: "note", "data-part": "sink-count" });
  tokens.bar.append(pane.tokensNote);
  pane.lives = element("canvas", { "aria-hidden": "true" });
  pane.livesNote = element("p", { class: "note", "data-part": "lifetimes" });
  const lifetimes = panel("lifetimes", "Lifetimes", pane.lives, pane.livesNote);
  return element("div", { class: "stack lower" }, tokens.node, lifetimes.node);
}
