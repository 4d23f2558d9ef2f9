"use strict";
// The candidates: a row for each, with its score as a bar to drag, its mass, and the gradient of what is selected.

// From where to where the bars go: wide enough for all scores, with room to drag.
function axisOf(scores) {
  const finite = scores.filter(Number.isFinite);
  const size = Math.max(...finite.map(Math.abs), 0) || 1;
  const power = 10 ** Math.floor(Math.log10(size * 1.2));
  const most = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((x) => x * power).find((x) => x >= size * 1.1) ?? size * 1.2;
  return { low: finite.some((score) => score < 0) ? -most : -most / 4, high: most };
}

const fits = ({ low, high }, scores) =>
  scores.every((score) => score === -Infinity || (score > 0.98 * low + 0.02 * high && score < 0.98 * high + 0.02 * low));

function makeCandidates(table, state, change) {
  const body = table.tBodies[0];
  let axis = null;
  const setScore = (i, score) => change({ scores: state().scores.map((old, j) => (i === j ? score : old)) });

  function makeRow(i) {
    const active = element("input", { type: "checkbox", id: `active-${i}` });
    active.addEventListener("change", () => change({ mask: state().mask.map((on, j) => (i === j ? active.checked : on)) }));
    const bar = element("input", { type: "range", step: "any", class: "bar", id: `bar-${i}` });
    bar.addEventListener("input", () => {
      const decimals = Math.min(Math.max(2 - Math.floor(Math.log10(axis.high)), 0), 100);
      setScore(i, Number(Number(bar.value).toFixed(decimals)));
    });
    // A finger that scrolls the page has touched the bar first: the score goes back to what it was.
    let before;
    bar.addEventListener("pointerdown", () => (before = state().scores[i]));
    bar.addEventListener("pointercancel", () => setScore(i, before));
    // While a bar is dragged the axis stays; then it grows, so that one can go on.
    bar.addEventListener("change", () => change({}));
    const field = element("input", { type: "text", inputmode: "decimal", id: `score-${i}`, autocomplete: "off" });
    field.addEventListener("change", () => {
      const typed = readScore(field.value);
      if (typed === undefined) field.value = typable(state().scores[i]);
      else setScore(i, typed);
    });
    return element("tr", {},
      element("th", { scope: "row" }, element("label", { for: `active-${i}` }, active, element("span"))),
      element("td", { class: "drag" }, bar),
      element("td", { class: "number" }, field),
      element("td", { class: "mass" }, element("span")),
      element("td", { class: "gradient" }, element("i"), element("span")));
  }

  function showRow(row, i, s, made, slopes, largest) {
    const name = nameOf(s, i);
    const score = s.scores[i];
    const [head, drag, number, mass, slope] = row.cells;
    const [active, bar, field] = [head.querySelector("input"), drag.firstChild, number.firstChild];
    row.classList.toggle("off", !s.mask[i] || score === -Infinity);
    head.querySelector("span").textContent = name;
    head.title = name;
    active.checked = s.mask[i];
    active.setAttribute("aria-label", `candidate ${name} takes part`);
    Object.assign(bar, { min: axis.low, max: axis.high });
    if (Number(bar.value) !== score) bar.value = Math.max(score, axis.low);
    bar.setAttribute("aria-label", `score of candidate ${name}`);
    bar.setAttribute("aria-valuetext", digits(score));
    const place = (x) => (Math.min(Math.max(x, axis.low), axis.high) - axis.low) / (axis.high - axis.low);
    bar.style.setProperty("--from", place(Math.min(score, 0)));
    bar.style.setProperty("--to", place(Math.max(score, 0)));
    bar.style.setProperty("--zero", place(0));
    field.value = typable(score);
    field.setAttribute("aria-label", `score of candidate ${name}, as a number`);
    mass.firstChild.textContent = short(made.mass[i]);
    mass.style.setProperty("--share", Math.min(made.mass[i], 1) || 0);
    slope.classList.toggle("down", slopes[i] < 0);
    slope.style.setProperty("--size", largest ? Math.abs(slopes[i]) / largest : 0);
    slope.lastChild.textContent = signed(slopes[i]);
  }

  return (s, made, slopes, fresh) => {
    const dragged = document.activeElement?.matches(".bar:active");
    if (fresh || !axis || (!dragged && !fits(axis, s.scores))) axis = axisOf(s.scores);
    const largest = Math.max(...slopes.map(Math.abs));
    table.style.setProperty("--longest", Math.max(...s.scores.map((_, i) => nameOf(s, i).length)));
    children(body, s.scores.length, makeRow).forEach((row, i) => showRow(row, i, s, made, slopes, largest));
  };
}
