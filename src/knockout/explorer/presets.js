"use strict";
// States to start from, each with what there is to see. The first one is what the page opens with.

const PRESETS = {
  "twelve scores": {
    note: "Twelve candidates for three slots, with the default boost. Drag a score, change k, click a slot.",
    scores: [0.3, 1.6, -0.4, 0.9, 2.2, -1.1, 0.1, 1.3, -0.7, 0.6, 1.8, -0.2],
    k: 3,
  },
  ties: {
    note: "Among equal scores the lower index is the better one. A pair of equals is blended half and half, and both get a gradient.",
    scores: [1, 2, 1, 0, 2, 1, 0, 1, 2, 0, 1, 0],
    k: 3,
  },
  outlier: {
    note: "One score far above the others. The default boost leaves the widest gaps of a round out of its scale, so the outlier hardly changes slot 1: type 1.4 for it, and compare. With Relative, which counts all gaps, it makes slot 1 much softer.",
    scores: [0.4, -0.3, 1.1, 0.2, 14, -0.9, 0.7, -0.1, 0.5, -0.6, 0.9, 0.1, -1.2, 0.3, -0.4, 0.8],
    k: 2,
  },
  "near-constant": {
    note: "Scores that hardly differ are blended: noise is not amplified. Only a much smaller unit (try 0.001) tells them apart. The hard choice shows no sign of doubt.",
    scores: [1.001, 1.003, 1, 1.002, 1.004, 1.001, 1.003, 1, 1.002, 1.005, 1.001, 1.002],
    k: 3,
  },
  "uniform, as in the paper": {
    note: "Thirty-two uniform scores and the boost that the paper's authors ran, Power(20).",
    scores: [
      0.84, 0.76, 0.42, 0.26, 0.51, 0.4, 0.78, 0.3, 0.48, 0.58, 0.91, 0.5, 0.28, 0.76, 0.62, 0.25,
      0.91, 0.98, 0.81, 0.9, 0.31, 0.73, 0.9, 0.68, 0.47, 0.1, 0.43, 0.61, 0.91, 0.97, 0.48, 0.87,
    ],
    k: 4,
    boost: { kind: "power", b: 20, alpha: 1 },
  },
  // Made by docs/explorer/trained_scorer.py.
  "a trained scorer": {
    note: "A layer with nothing set was trained to find the tokens 2, 9 and 17 of 24. It is sure of 17, whose slot is decided. But it takes 23 to be as good as 2: they share a slot, and both get a gradient. The hard choice has 23 alone.",
    scores: [
      -2.29, 0.7, 1.92, -0.46, 0.86, -0.42, -1.56, -0.51, 1.18, 4.27, -1.73, 0.75,
      -0.2, -1.53, -1.89, -1.74, 1.91, 6.84, -0.47, -0.39, 0.22, 0.18, 0.56, 1.97,
    ],
    k: 3,
    boost: { kind: "adaptive", c: 2, unit: 0.65, alpha: 1.5 },
    order: "position",
  },
};

// Normal scores, as many as there are.
function randomScores(n) {
  return Array.from({ length: n }, () => {
    const size = Math.sqrt(-2 * Math.log(1 - Math.random()));
    return Number((size * Math.cos(2 * Math.PI * Math.random())).toFixed(2));
  });
}
