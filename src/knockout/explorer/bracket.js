"use strict";
// The bracket: candidates on the left, rounds, slots on the right, as knockout.plot.bracket draws it.

const LINE = 20; // from one candidate to the next
const TOP = 26;
const BLENDS = 82; // the width of a round that has room for blended scores

function drawBracket(parent, s, made, select) {
  const rounds = made.rounds.length - 1;
  const width = Math.max(parent.clientWidth, 280);
  if (!made.slots.length) return parent.replaceChildren(element("p", {}, "No candidate takes part."));
  const named = made.active.map((i) => nameOf(s, i).length + digits(s.scores[i], 4).length + 1);
  const left = Math.min(Math.max(68, Math.max(...named) * 6.9 + 16), width * 0.32);
  const right = Math.min(Math.max(100, width * 0.36), 380);
  const step = rounds ? (width - left - right) / rounds : 0;
  const at = (round) => left + round * step;
  const heights = new Map();
  let leaves = 0;

  // Leaves get their heights from top to bottom, pairs lie in the middle.
  function place(entry, slot) {
    if (!entry.better) heights.set(entry, TOP + 12 + LINE * (leaves++ + slot * 0.5));
    else {
      place(entry.better, slot);
      if (entry.worse) place(entry.worse, slot);
      const ends = [entry.better, entry.worse ?? entry.better].map((each) => heights.get(each));
      heights.set(entry, (ends[0] + ends[1]) / 2);
    }
  }
  made.slots.forEach(place);
  parent.classList.toggle("blends", rounds > 1 && step > BLENDS);
  const height = TOP + LINE * (leaves + (made.slots.length - 1) * 0.5) + 8;
  const lines = [];
  const texts = [];

  function draw(entry, round) {
    const y = heights.get(entry);
    if (!entry.better) {
      // A candidate with byes is an entry once a round; its lines are drawn by these.
      const name = fitted(nameOf(s, entry.leader), (left - 14) / 6.6 - digits(s.scores[entry.leader], 4).length - 1);
      texts.push(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, svg("tspan", { class: "name" }, name), " ",
        svg("tspan", { class: "quiet" }, digits(s.scores[entry.leader], 4))));
      return;
    }
    const share = valueOf(entry.share);
    const middle = at(round) - step * 0.3;
    const sides = entry.worse ? [[entry.better, share], [entry.worse, 1 - share]] : [[entry.better, 1]];
    for (const [side, part] of sides) {
      const from = heights.get(side);
      lines.push(svg("path", {
        d: `M${at(round - 1)} ${from}H${middle}V${y}H${at(round)}`,
        class: part > 0 ? "line" : "line lost",
        "stroke-width": 0.8 + 3.2 * part,
      }));
      if (part > 0 && part < 1) texts.push(svg("text", { x: middle - 4, y: from - 3, "text-anchor": "end", class: "share" }, short(part)));
      draw(side, round - 1);
    }
    if (entry.worse && round < rounds && step > BLENDS) {
      texts.push(svg("text", { x: at(round) + 3, y: y - 4, class: "share quiet" },
        `${fitted(nameOf(s, entry.leader), 6)}: ${digits(entry.score.value)}`));
    }
  }

  made.slots.forEach((slot, number) => {
    draw(slot, rounds);
    const y = heights.get(slot);
    const group = svg("g", { class: number === s.slot ? "slot selected" : "slot", onclick: () => select(number, -1) },
      svg("rect", { x: width - right + 2, y: y - LINE / 2, width: right - 2, height: LINE, rx: 4 }),
      svg("text", { x: width - right + 8, y: y + 4 },
        svg("tspan", { class: "quiet" }, number === s.slot ? `▸${number}: ` : `${number}: `),
        firstOf(membersOf(s, made, number), (right - 34) / (number === s.slot ? 6.9 : 6.3))));
    group.prepend(svg("title", {}, `slot ${number}: ${membersOf(s, made, number).join(" + ")}`));
    texts.push(group);
  });
  const heads = [[0, "start", "candidates"], [width - right + 8, "start", "slots"]];
  for (let round = 1; round <= rounds; round++) {
    if (step > 68) heads.push([at(round) - step * 0.3, "middle", `round ${round}`]);
    else heads.push([at(round) - step * 0.3, "middle", String(round)]);
  }
  const words = made.slots.map((_, number) => `slot ${number}: ${membersOf(s, made, number).join(" + ")}`).join("; ");
  parent.replaceChildren(svg("svg", {
    role: "img", "aria-label": `Tournament of ${made.active.length} candidates in ${rounds} rounds. ${words}.`,
    width, height, viewBox: `0 0 ${width} ${height}`,
  }, ...heads.map(([x, anchor, text]) => svg("text", { x, y: 12, "text-anchor": anchor, class: "quiet" }, text)), ...lines, ...texts));
}

// The candidates of a slot with their weights, the largest first.
function membersOf(s, made, slot) {
  const members = made.weights[slot].map((weight, i) => [weight, i]).filter(([weight]) => weight > 0);
  return members.sort((a, b) => b[0] - a[0]).map(([weight, i]) => `${short(weight)} of ${nameOf(s, i)}`);
}

// As many of the parts of a sum as there is room for.
function firstOf(parts, room) {
  let text = fitted(parts[0], parts.length > 1 ? room - 4 : room);
  for (const [i, part] of parts.slice(1).entries()) {
    const longer = `${text} + ${part}`;
    if (longer.length + (i < parts.length - 2 ? 4 : 0) > room) return `${text} + …`;
    text = longer;
  }
  return text;
}

function fitted(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, Math.floor(room) - 1))}…`;
}
