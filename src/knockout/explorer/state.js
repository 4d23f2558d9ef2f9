"use strict";
// What the page shows, as one object, and as the part of an address after its #. Pure functions.
//
// A state is { scores, mask, k, boost, order, hard, temperature, slot, candidate, names }: what `tournament` takes, the
// temperature of lapsum, whose gradient is shown (candidate is -1 for the blended score of the slot, else the weight of
// that candidate in it), and names or null. boost always has kind, c, b, unit and alpha, also where its kind has no use
// for one of them.

const MOST = 32; // candidates
const LARGEST_SCORE = 1e300; // the arithmetic does not guard against overflow

const BOOSTS = {
  adaptive: { c: 2, b: 20, unit: 1.5, alpha: 1.5 },
  relative: { c: 4, b: 20, unit: 1, alpha: 1.5 },
  fixed: { c: 4, b: 20, unit: 1, alpha: 1 },
  base: { c: 4, b: 20, unit: 1, alpha: 1 },
  power: { c: 4, b: 20, unit: 1, alpha: 1 },
};

const boostOf = (kind) => ({ kind, ...BOOSTS[kind] });
const hasUnit = (kind) => kind === "adaptive" || kind === "relative";
const strengthOf = (kind) => (kind === "base" || kind === "power" ? "b" : "c");

// A complete state from the parts that are given; what does not fit together is made to fit.
function completed(part) {
  const scores = part.scores.slice(0, MOST);
  const n = scores.length;
  const within = (x, low, high) => Math.min(Math.max(x, low), high);
  const kind = part.boost?.kind ?? "adaptive";
  const k = within(part.k ?? 1, 1, n);
  return {
    scores,
    mask: scores.map((_, i) => part.mask?.[i] ?? true),
    k,
    boost: { ...boostOf(kind), ...part.boost },
    order: part.order ?? "score",
    hard: part.hard ?? false,
    temperature: part.temperature ?? 0.1,
    slot: within(part.slot ?? 0, 0, k - 1),
    candidate: within(part.candidate ?? -1, -1, n - 1),
    names: part.names?.length ? scores.map((_, i) => part.names[i] ?? String(i)) : null,
  };
}

const nameOf = (state, i) => state.names?.[i] ?? String(i);

// For an address: what is as usual is left out.
function toAddress(state) {
  const { kind, alpha, unit } = state.boost;
  const strength = strengthOf(kind);
  const off = state.scores.map((_, i) => i).filter((i) => !state.mask[i]);
  const parts = [
    ["scores", state.scores.map(typable).join(",")],
    ["off", off.join(",")],
    ["k", state.k],
    ["boost", kind],
    [strength, state.boost[strength]],
    ["unit", hasUnit(kind) ? unit : ""],
    ["alpha", alpha],
    ["order", state.order === "score" ? "" : state.order],
    ["hard", state.hard ? 1 : ""],
    ["temperature", state.temperature === 0.1 ? "" : state.temperature],
    ["slot", state.slot || ""],
    ["candidate", state.candidate < 0 ? "" : state.candidate],
    ["names", state.names ? state.names.map(encodeURIComponent).join(",") : ""],
  ];
  return parts.filter(([, value]) => value !== "").map((part) => part.join("=")).join("&");
}

// The state that an address tells, and what in it is wrong and was left out. { state: null } if it has no scores.
function fromAddress(text) {
  const problems = [];
  const told = new Map();
  for (const part of text.replace(/^#/, "").split("&").filter(Boolean)) {
    const [name, ...rest] = part.split("=");
    told.set(name, rest.join("="));
  }
  const take = (name, read) => {
    if (!told.has(name)) return undefined;
    const value = read(told.get(name));
    if (value === undefined) problems.push(`${name}=${told.get(name)}`);
    return value;
  };
  const list = (read) => (value) => {
    const values = value.split(",").map(read);
    return values.every((each) => each !== undefined) ? values : undefined;
  };
  const among = (choices) => (value) => choices.find((choice) => String(choice) === value);

  const scores = take("scores", list(readScore));
  if (!scores) return { state: null, problems };
  if (scores.length > MOST) problems.push(`more than ${MOST} scores`);
  const n = Math.min(scores.length, MOST);
  const off = take("off", list(wholeNumber(0, n - 1))) ?? [];
  const boost = {};
  for (const [name, read] of [
    ["kind", among(Object.keys(BOOSTS))],
    ["c", positive],
    ["b", (value) => (positive(value) > 1 ? positive(value) : undefined)],
    ["unit", positive],
    ["alpha", among([1, 1.5, 2])],
  ]) {
    const value = take(name === "kind" ? "boost" : name, read);
    if (value !== undefined) boost[name] = value;
  }
  const part = {
    scores,
    mask: scores.map((_, i) => !off.includes(i)),
    k: take("k", wholeNumber(1, n)),
    boost,
    order: take("order", among(["score", "position"])),
    hard: take("hard", among(["0", "1"])) === "1",
    temperature: take("temperature", positive),
    slot: take("slot", wholeNumber(0, n - 1)),
    candidate: take("candidate", wholeNumber(0, n - 1)),
    names: take("names", list(readName)),
  };
  return { state: completed(part), problems };
}

const typable = (score) => (score === -Infinity ? "-inf" : String(score));

// A score that was typed or told: a number, or -inf for a candidate that takes no part; undefined for anything else.
function readScore(text) {
  const plain = text.trim().replace("−", "-");
  if (/^-inf(inity)?$/i.test(plain)) return -Infinity;
  const value = Number(plain);
  return plain && Math.abs(value) <= LARGEST_SCORE ? value : undefined;
}

function positive(text) {
  const value = Number(text);
  return text.trim() && value > 0 && value <= LARGEST_SCORE ? value : undefined;
}

const wholeNumber = (low, high) => (text) => {
  const value = Number(text);
  return text.trim() && Number.isInteger(value) && value >= low && value <= high ? value : undefined;
};

function readName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined; // a % that begins nothing
  }
}

// The same selection in Python.
function toPython(state) {
  const { kind, c, b, unit, alpha } = state.boost;
  const class_ = kind[0].toUpperCase() + kind.slice(1);
  const numbers = [strengthOf(kind) === "b" ? b : c, ...(hasUnit(kind) ? [`unit=${unit}`] : []), `alpha=${alpha}`];
  const scores = state.scores.map((score) => (score === -Infinity ? "-torch.inf" : String(score)));
  const off = state.scores.map((_, i) => i).filter((i) => !state.mask[i]);
  return [
    "import torch, knockout",
    "",
    `scores = torch.tensor([${scores.join(", ")}], dtype=torch.float64, requires_grad=True)`,
    ...(off.length ? [`mask = torch.ones(${scores.length}, dtype=torch.bool)`, `mask[[${off.join(", ")}]] = False`] : []),
    `boost = knockout.boost.${class_}(${numbers.join(", ")})`,
    `picked = knockout.select(scores, k=${state.k}, boost=boost${off.length ? ", mask=mask" : ""}` +
      `${state.order === "score" ? "" : ', order="position"'}${state.hard ? ", hard=True" : ""})`,
    "picked.weights(), picked.mass(), picked.perplexity()",
    state.candidate < 0
      ? `torch.autograd.grad(picked.scores[${state.slot}], scores)`
      : `torch.autograd.grad(picked.weights()[${state.slot}, ${state.candidate}], scores)`,
  ].join("\n");
}
