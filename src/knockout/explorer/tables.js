"use strict";
// The weights as a grid of slots and candidates, and the masses by other methods in the same columns.

function showHead(head, s, first, last) {
  const names = s.scores.map((_, i) => nameOf(s, i));
  const cells = children(head, s.scores.length + 2, () => element("th", { scope: "col" }));
  [first, ...names, last].forEach((text, at) => {
    cells[at].textContent = text;
    cells[at].title = text;
    cells[at].classList.toggle("upright", at > 0 && at <= names.length && names.some((name) => name.length > 3));
  });
}

function showWeight(cell, weight) {
  cell.textContent = weight === 0 ? "·" : short(weight);
  cell.style.setProperty("--share", Math.min(weight, 1) || 0);
  cell.classList.toggle("none", weight === 0);
}

function partsOf(table, n) {
  table.style.setProperty("--n", n);
  if (!table.tHead) table.append(element("thead", {}, element("tr")), element("tbody"));
  return { head: table.tHead.rows[0], body: table.tBodies[0] };
}

// The selected cell alone is in the order of the Tab key; arrow keys select its neighbours.
function makeWeights(table, state, select) {
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-candidate]");
    if (cell) choose(Number(cell.dataset.slot), Number(cell.dataset.candidate));
  });
  table.addEventListener("keydown", (event) => {
    const { slot, candidate, k, scores } = state();
    const n = scores.length;
    const moves = {
      ArrowUp: [slot - 1, candidate], ArrowDown: [slot + 1, candidate], ArrowLeft: [slot, candidate - 1],
      ArrowRight: [slot, candidate + 1], Home: [slot, -1], End: [slot, n - 1],
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const within = (x, low, high) => Math.min(Math.max(x, low), high);
    choose(within(moves[event.key][0], 0, k - 1), within(moves[event.key][1], -1, n - 1));
  });
  function choose(slot, candidate) {
    select(slot, candidate);
    table.querySelector("[tabindex='0']").focus({ preventScroll: false });
  }

  return (s, made) => {
    const { head, body } = partsOf(table, s.scores.length);
    showHead(head, s, "slot", "perplexity");
    children(body, s.k, () => element("tr")).forEach((row, slot) => {
      const cells = children(row, s.scores.length + 2, (at) => element(at ? "td" : "th", at ? {} : { scope: "row" }));
      cells.forEach((cell, at) => {
        const candidate = at - 1;
        cell.removeAttribute("style");
        cell.className = "";
        if (candidate === s.scores.length) {
          for (const name of ["tabindex", "aria-selected", "aria-label", "data-slot", "data-candidate"]) cell.removeAttribute(name);
          cell.textContent = made.filled[slot] ? made.perplexity[slot].toFixed(2) : "empty";
          cell.className = "last";
          return;
        }
        Object.assign(cell.dataset, { slot, candidate });
        const selected = slot === s.slot && candidate === s.candidate;
        cell.setAttribute("tabindex", selected ? 0 : -1);
        cell.setAttribute("aria-selected", selected);
        const of = candidate < 0 ? "" : nameOf(s, candidate);
        if (candidate < 0) {
          cell.textContent = slot;
          cell.setAttribute("aria-label", `slot ${slot}, led by ${made.filled[slot] ? nameOf(s, made.leaders[slot]) : "none"}`);
        } else {
          showWeight(cell, made.weights[slot][candidate]);
          cell.setAttribute("aria-label", `weight of ${of} in slot ${slot}: ${digits(made.weights[slot][candidate])}`);
          cell.classList.toggle("leader", made.leaders[slot] === candidate);
        }
      });
    });
  };
}

function makeMethods(table) {
  return (s, made) => {
    const { head, body } = partsOf(table, s.scores.length);
    showHead(head, s, "method", "sum");
    const all = { knockout: made.mass };
    for (const [name, mass] of Object.entries(METHODS)) all[name] = mass(s);
    const names = Object.keys(all);
    children(body, names.length, () => element("tr")).forEach((row, m) => {
      const mass = all[names[m]];
      const cells = children(row, s.scores.length + 2, (at) => element(at ? "td" : "th", at ? {} : { scope: "row" }));
      cells.forEach((cell, at) => {
        cell.removeAttribute("style");
        cell.className = "";
        if (at === 0) cell.textContent = names[m];
        else if (at <= s.scores.length) showWeight(cell, mass[at - 1]);
        else {
          cell.textContent = digits(mass.reduce((a, b) => a + b, 0));
          cell.className = "last";
        }
      });
    });
  };
}
