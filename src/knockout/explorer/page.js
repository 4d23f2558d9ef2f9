"use strict";
// Puts the parts together: one state, which every control changes and every picture shows.

{
  const byId = (id) => document.getElementById(id);
  let state = completed(Object.values(PRESETS)[0]);
  let fresh = true; // whether the scores are others, and not changed ones

  const change = (part) => show(completed({ ...state, ...part }));
  const select = (slot, candidate) => change({ slot, candidate });

  const showSettings = makeSettings(byId("settings"), () => state, change);
  const showCandidates = makeCandidates(byId("candidates"), () => state, change);
  const showWeights = makeWeights(byId("weights"), () => state, select);
  const showMethods = makeMethods(byId("methods"));
  const count = wholeControl("candidates, n", 1, {
    name: "n", high: () => MOST, value: (s) => s.scores.length,
    set: (n) => change({ scores: [...state.scores, ...randomScores(MOST)].slice(0, n) }),
  });
  byId("settings").prepend(count.row);
  const temperature = positiveControl("temperature of lapsum", 0.001, 10, {
    name: "temperature-lapsum", value: () => state.temperature, set: (value) => change({ temperature: value }),
  });
  byId("temperature").append(temperature.row);

  function show(next) {
    state = next;
    const made = tournament(state);
    const slopes = state.candidate < 0 ? made.gradientOfScore(state.slot) : made.gradientOfWeight(state.slot, state.candidate);
    count.show(state);
    showSettings(state);
    showCandidates(state, made, slopes, fresh);
    drawBracket(byId("bracket"), state, made, select);
    showWeights(state, made);
    showMethods(state, made);
    temperature.show(state);
    byId("summary").textContent = summary(made);
    byId("gradient-note").textContent = gradientNote(made, slopes);
    byId("python").textContent = toPython(state);
    fresh = false;
    remember();
  }

  function summary(made) {
    const name = (i) => nameOf(state, i);
    const leaders = made.leaders.filter((leader) => leader >= 0);
    const best = hardMass(state).map((weight, i) => (weight ? i : -1)).filter((i) => i >= 0);
    const same = best.every((i) => leaders.includes(i));
    const empty = made.leaders.length - leaders.length;
    return `${made.active.length} candidates, ${made.rounds.length - 1} rounds, ${state.k} slots${empty ? `, ${empty} of them empty` : ""}. ` +
      `Led by ${leaders.map(name).join(", ") || "none"}: ` +
      (same ? "the true top k." : `not the true top k, which is ${best.map(name).join(", ")}.`);
  }

  function gradientNote(made, slopes) {
    const what = state.candidate < 0
      ? `the blended score of slot ${state.slot}`
      : `the weight of ${nameOf(state, state.candidate)} in slot ${state.slot}`;
    if (slopes.every((slope) => slope === 0)) return `Gradient of ${what}: 0. No score changes it, as long as the pairs stay the same.`;
    return `Gradient of ${what}, by each score${state.hard ? " (of the soft selection: straight-through)" : ""}. ` +
      "Full bars, to the right: a higher score raises it. Hatched bars, to the left: a higher score lowers it.";
  }

  // The address follows a moment later: browsers allow only so many changes of it.
  let waiting = 0;
  function remember() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      try {
        history.replaceState(null, "", `#${toAddress(state)}`);
      } catch {
        // Some frames have no address of their own; the page works without.
      }
    }, 150);
  }

  function showProblems(problems) {
    byId("problems").hidden = !problems.length;
    byId("problems").textContent = problems.length ? `Not understood in the address, and left out: ${problems.join("; ")}` : "";
  }

  // From the address if it tells scores, else what the page was written with, else the first preset.
  function open() {
    const { state: told, problems } = fromAddress(location.hash);
    showProblems(problems);
    const written = JSON.parse(byId("start").textContent);
    const start = written && { ...written, scores: written.scores.map((score) => score ?? -Infinity) };
    byId("note").textContent = told || start ? "" : Object.values(PRESETS)[0].note;
    fresh = true;
    show(told ?? completed(start ?? Object.values(PRESETS)[0]));
  }

  const presets = { ...PRESETS, "random scores": null };
  for (const [name, preset] of Object.entries(presets)) {
    byId("presets").append(element("button", {
      type: "button",
      onclick: () => {
        byId("note").textContent = preset?.note ?? "";
        fresh = true;
        show(preset ? completed(preset) : completed({ ...state, scores: randomScores(state.scores.length), names: null }));
      },
    }, name));
  }

  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      byId("copied").textContent = `${what} copied.`;
    } catch {
      byId("copied").textContent = `Copying is not allowed here: ${what === "Link" ? "take it from the address bar." : "select the code."}`;
    }
  }
  byId("copy-link").addEventListener("click", () => copy(`${location.href.split("#")[0]}#${toAddress(state)}`, "Link"));
  byId("copy-python").addEventListener("click", () => copy(byId("python").textContent, "Code"));

  // The part of the address after its # is the state, so the link that skips the controls is followed here.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  window.addEventListener("hashchange", () => {
    if (location.hash !== `#${toAddress(state)}`) open();
  });
  let drawn = 0;
  new ResizeObserver(() => {
    const { clientWidth } = byId("bracket");
    if (clientWidth !== drawn) drawBracket(byId("bracket"), state, tournament(state), select);
    drawn = clientWidth;
  }).observe(byId("bracket"));
  open();
}
