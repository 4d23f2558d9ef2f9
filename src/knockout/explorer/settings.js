"use strict";
// The settings: k, the boost with its numbers, order, hard. Each control shows the state, and changes it.

// A slider on whole numbers.
function wholeControl(label, low, { name, high, value, set }) {
  const input = element("input", { type: "range", min: low, step: 1, id: name, class: "plain" });
  const shown = element("output", { for: name, id: `${name}-shown` });
  input.addEventListener("input", () => set(Number(input.value)));
  return {
    row: element("div", { class: "setting" }, element("label", { for: name }, label), input, shown),
    show(state) {
      input.max = high(state);
      input.value = value(state);
      shown.textContent = `${value(state)} of ${high(state)}`;
    },
  };
}

// A slider on the powers of ten between two numbers, and a field for any positive number.
function positiveControl(label, low, high, { name, value, set, shown = () => true, above = 0 }) {
  const input = element("input", {
    type: "range", min: Math.log10(low), max: Math.log10(high), step: "any", id: name, class: "plain",
  });
  const field = element("input", { type: "text", inputmode: "decimal", id: `${name}-number`, autocomplete: "off" });
  const row = element("div", { class: "setting" }, element("label", { for: name }, label), input, field);
  input.addEventListener("input", () => set(Number((10 ** input.value).toPrecision(2))));
  field.addEventListener("change", () => {
    const typed = positive(field.value);
    if (typed > above) set(typed);
    else field.value = value(null);
  });
  return {
    row,
    show(state) {
      row.hidden = !shown(state);
      if (document.activeElement !== input || Math.abs(10 ** input.value / value(state) - 1) > 0.1) {
        input.value = Math.log10(value(state));
      }
      input.setAttribute("aria-valuetext", digits(value(state)));
      field.value = value(state);
      field.setAttribute("aria-label", `${label}, as a number`);
    },
  };
}

// A few choices side by side.
function choiceControl(label, choices, { name, value, set }) {
  const inputs = choices.map((choice) => {
    const input = element("input", { type: "radio", name, value: choice, id: `${name}-${choice}` });
    input.addEventListener("change", () => set(choice));
    return { input, choice, label: element("label", { for: `${name}-${choice}` }, String(choice)) };
  });
  const group = element("div", { class: "segments" }, ...inputs.flatMap((each) => [each.input, each.label]));
  return {
    row: element("div", { class: "setting", role: "radiogroup", "aria-label": label }, element("span", {}, label), group),
    show: (state) => inputs.forEach(({ input, choice }) => (input.checked = choice === value(state))),
  };
}

const FORMULAS = {
  adaptive: "t = (c / rounds) · h · gap / mean gap: sharper as the scores spread, in comparison with the unit.",
  relative: "t = c · gap / mean gap of the round, which is at least the unit at first.",
  fixed: "t = c · gap.",
  base: "t = ln(b) · gap: the paper's boosted softmax as printed.",
  power: "t = b^better − b^worse: what the paper's authors ran.",
};
const SHARES = {
  1: "Share of the better one: 1 / (1 + e^−t), never quite 1.",
  1.5: "Share of the better one: 1/2 + t/4 · √(2 − t²/4), exactly 1 from t = 2 on.",
  2: "Share of the better one: 1/2 + t/2, exactly 1 from t = 1 on.",
};

// All of them. `state()` is the state, `change(part)` changes a part of it.
function makeSettings(parent, state, change) {
  const setBoost = (part) => change({ boost: { ...state().boost, ...part } });
  const kind = element("select", { id: "boost", onchange: () => change({ boost: boostOf(kind.value) }) });
  for (const each of Object.keys(BOOSTS)) {
    kind.append(element("option", { value: each }, each === "adaptive" ? "Adaptive (the default)" : each[0].toUpperCase() + each.slice(1)));
  }
  const formula = element("p", { class: "hint", id: "formula" });
  const hard = element("input", { type: "checkbox", id: "hard", onchange: () => change({ hard: hard.checked }) });
  const controls = [
    wholeControl("slots, k", 1, {
      name: "k", high: (s) => s.scores.length, value: (s) => s.k, set: (k) => change({ k }),
    }),
    {
      row: element("div", { class: "setting" }, element("label", { for: "boost" }, "boost"), kind),
      show: (s) => (kind.value = s.boost.kind),
    },
    positiveControl("strength, c", 0.1, 100, {
      name: "c", value: () => state().boost.c, set: (c) => setBoost({ c }), shown: (s) => strengthOf(s.boost.kind) === "c",
    }),
    positiveControl("base, b", 1.1, 1000, {
      name: "b", value: () => state().boost.b, set: (b) => setBoost({ b }), above: 1,
      shown: (s) => strengthOf(s.boost.kind) === "b",
    }),
    positiveControl("unit", 0.001, 100, {
      name: "unit", value: () => state().boost.unit, set: (unit) => setBoost({ unit }), shown: (s) => hasUnit(s.boost.kind),
    }),
    choiceControl("alpha", [1, 1.5, 2], {
      name: "alpha", value: (s) => s.boost.alpha, set: (alpha) => setBoost({ alpha }),
    }),
    {
      row: formula,
      show: (s) => (formula.textContent = `${FORMULAS[s.boost.kind]} ${SHARES[s.boost.alpha]}`),
    },
    choiceControl("order of slots", ["score", "position"], {
      name: "order", value: (s) => s.order, set: (order) => change({ order }),
    }),
    {
      row: element("div", { class: "setting" }, element("label", { for: "hard" }, "hard"), element("span", { class: "check" }, hard,
        element("label", { for: "hard" }, "the leaders alone forward, the soft gradients backward"))),
      show: (s) => (hard.checked = s.hard),
    },
  ];
  parent.append(...controls.map((control) => control.row));
  return (s) => controls.forEach((control) => control.show(s));
}
