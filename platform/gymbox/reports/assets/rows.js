// Rows: what the table lists, made of the runs' columns: rollouts, tasks, or tasks of two runs side by side.

let report = null;
let rows = [];
const state = {
  scope: "",
  pair: 1,
  view: "tasks",
  search: "",
  outcome: "",
  kind: "",
  low: null,
  high: null,
  within: null,
};

/** How a rollout came out. */
function outcomeOf(columns, row, success) {
  if (columns.aside[row]) return "aside";
  if (columns.error[row] >= 0) return "failed";
  return columns.reward[row] >= success ? "solved" : "unsolved";
}

const keyOf = (environment, task) => `${environment}\u0000${task}`;

/** The tasks of a run, each with the numbers of its rollouts' rows and with its figures. */
function tasksOf(run) {
  const columns = rows[run];
  const figures = new Map(report.runs[run].summary.tasks.map((each) => [keyOf(each.environment, each.task), each]));
  const tasks = columns.tasks.map(([environment, task, preview]) => ({
    environment: columns.environments[environment],
    task,
    preview,
    run,
    rollouts: [],
    figures: figures.get(keyOf(columns.environments[environment], task)) ?? null,
  }));
  columns.task.forEach((task, row) => tasks[task].rollouts.push(row));
  for (const each of tasks)
    each.rollouts.sort(
      (one, other) =>
        (columns.repeat[one] ?? 0) - (columns.repeat[other] ?? 0) || columns.aside[one] - columns.aside[other],
    );
  return tasks;
}

/** Of what these rollouts that count have in a column, the mean; null of nothing. */
function meanOf(columns, name, members) {
  let sum = 0;
  let count = 0;
  for (const row of members) {
    if (known(columns[name][row]) && !columns.aside[row]) {
      sum += columns[name][row];
      count++;
    }
  }
  return count ? sum / count : null;
}

const tokensOf = (columns, row) =>
  known(columns.input_tokens[row]) || known(columns.output_tokens[row])
    ? (columns.input_tokens[row] ?? 0) + (columns.output_tokens[row] ?? 0)
    : null;

function kindsOf(columns, members) {
  const kinds = new Map();
  for (const row of members)
    if (columns.error[row] >= 0 && !columns.aside[row])
      kinds.set(columns.error[row], (kinds.get(columns.error[row]) ?? 0) + 1);
  return [...kinds]
    .map(([kind, count]) => `${words(plain(columns.errors[kind]))}${count > 1 ? ` × ${count}` : ""}`)
    .join(", ");
}

const SAID = {
  solved: ["good", "solved"],
  unsolved: ["plain", "not solved"],
  failed: ["bad", "failed"],
  aside: ["warn", "earlier attempt"],
};

/** A reward, with a bar that shows it beside 0 and 1. */
function rewardCell(value) {
  if (!known(value)) return el("span", { class: "unknown" }, UNKNOWN);
  const part = Math.min(Math.max(value, 0), 1);
  return [
    svg(
      "svg",
      { class: "meter", viewBox: "0 0 40 6", "aria-hidden": "true" },
      svg("rect", { class: "rule", width: 40, height: 6, rx: 3 }),
      svg("rect", { class: part >= 1 ? "bar good" : "bar one", width: 40 * part, height: 6, rx: 3 }),
    ),
    ` ${mean(value)}`,
  ];
}

const severalEnvironments = () => new Set(rows.flatMap((each) => each.environments)).size > 1;
const name = (title, value, cell, more = {}) => ({ title, value, cell, ...more });

/** Columns of tasks of one run. */
function taskColumns() {
  const columns = rows[0];
  return [
    name(
      "task",
      (each) => each.task,
      (each) => [
        el("span", { class: "strong" }, plain(each.task)),
        el("span", { class: "preview" }, plain(each.preview)),
      ],
      { kind: "wide" },
    ),
    severalEnvironments() &&
      name(
        "environment",
        (each) => each.environment,
        (each) => plain(each.environment),
        { kind: "text", hide: "medium" },
      ),
    name(
      "solved",
      (each) => each.figures && each.figures.n && each.figures.c / each.figures.n,
      (each) => (each.figures ? `${each.figures.c} of ${each.figures.n}` : UNKNOWN),
      { hide: "narrow" },
    ),
    name(
      "mean reward",
      (each) => each.figures?.mean,
      (each) => rewardCell(each.figures?.mean),
      { kind: "reward" },
    ),
    name(
      "sd",
      (each) => each.figures?.deviation,
      (each) => mean(each.figures?.deviation),
      { hide: "wide" },
    ),
    name(
      "failures",
      (each) => each.figures?.missing ?? 0,
      (each) => el("span", { class: "bad-text" }, kindsOf(columns, each.rollouts)),
      { kind: "text", hide: "narrow" },
    ),
    ...spentColumns(
      (each, field) => meanOf(columns, field, each.rollouts),
      (each) => {
        const found = ["input_tokens", "output_tokens"].map((field) => meanOf(columns, field, each.rollouts));
        return found.some(known) ? (found[0] ?? 0) + (found[1] ?? 0) : null;
      },
    ),
  ].filter(Boolean);
}

/** Columns of rollouts of one run. */
function rolloutColumns(tasks) {
  const columns = rows[0];
  const success = report.runs[0].summary.success;
  const task = (row) => tasks[columns.task[row]];
  return [
    name(
      "task",
      (row) => task(row).task,
      (row) => [
        el("span", { class: "strong" }, plain(task(row).task)),
        el(
          "span",
          { class: "preview" },
          columns.details[row] ? plain(columns.details[row]) : plain(task(row).preview),
        ),
      ],
      { kind: "wide" },
    ),
    severalEnvironments() &&
      name(
        "environment",
        (row) => task(row).environment,
        (row) => plain(task(row).environment),
        { kind: "text", hide: "medium" },
      ),
    name(
      "try",
      (row) => columns.repeat[row],
      (row) => (known(columns.repeat[row]) ? number(columns.repeat[row] + 1) : UNKNOWN),
      { hide: "wide", kind: "small" },
    ),
    name(
      "reward",
      (row) => columns.reward[row],
      (row) => rewardCell(columns.reward[row]),
      { kind: "reward" },
    ),
    name(
      "outcome",
      (row) => outcomeOf(columns, row, success) + (columns.errors[columns.error[row]] ?? ""),
      (row) => {
        const [kind, said] = SAID[outcomeOf(columns, row, success)];
        return el(
          "span",
          { class: `badge ${kind}` },
          columns.error[row] >= 0 ? words(plain(columns.errors[columns.error[row]])) : said,
        );
      },
      { kind: "text", hide: "narrow" },
    ),
    ...spentColumns(
      (row, field) => columns[field][row],
      (row) => tokensOf(columns, row),
    ),
    name(
      "tool errors",
      (row) => columns.tool_errors[row],
      (row) => number(columns.tool_errors[row]),
      { kind: "number long", hide: "wide" },
    ),
  ].filter(Boolean);
}

function spentColumns(at, tokens) {
  const any = (field) => rows[0][field].some(known);
  return [
    any("seconds") &&
      name(
        "time",
        (each) => at(each, "seconds"),
        (each) => duration(at(each, "seconds")),
        { hide: "medium" },
      ),
    any("output_tokens") && name("tokens", tokens, (each) => short(tokens(each)), { hide: "wide" }),
    any("cost") &&
      name(
        "cost",
        (each) => at(each, "cost"),
        (each) => cost(at(each, "cost")),
        { hide: "wide" },
      ),
    any("turns") &&
      name(
        "turns",
        (each) => at(each, "turns"),
        (each) => number(at(each, "turns")),
        { hide: "wide" },
      ),
  ];
}

/** Tasks of the first run and of the chosen one, those of either, by how much they differ; each has the two runs' tasks as `sides`. */
function pairsOf(tasks) {
  const pairs = new Map();
  [0, state.pair].forEach((run, side) => {
    for (const task of tasks[run]) {
      const key = keyOf(task.environment, task.task);
      const pair =
        pairs.get(key) ??
        pairs
          .set(key, { environment: task.environment, task: task.task, preview: task.preview, sides: [null, null] })
          .get(key);
      pair.sides[side] = task;
    }
  });
  for (const pair of pairs.values()) {
    const [first, second] = pair.sides.map((side) => side?.figures?.mean ?? null);
    pair.difference = known(first) && known(second) ? second - first : null;
  }
  return [...pairs.values()].sort(
    (one, other) =>
      Math.abs(other.difference ?? 0) - Math.abs(one.difference ?? 0) ||
      known(other.difference) - known(one.difference),
  );
}

/** Columns of tasks of two runs. */
function pairColumns() {
  const side = (pair, at) => pair.sides[at];
  const of = (pair, at, field) =>
    side(pair, at) ? meanOf(rows[side(pair, at).run], field, side(pair, at).rollouts) : null;
  const gap = (field) => (pair) =>
    known(of(pair, 0, field)) && known(of(pair, 1, field)) ? of(pair, 1, field) - of(pair, 0, field) : null;
  const any = (field) => rows.some((each) => each[field].some(known));
  return [
    name(
      "task",
      (pair) => pair.task,
      (pair) => [
        el("span", { class: "strong" }, plain(pair.task)),
        el("span", { class: "preview" }, plain(pair.preview)),
      ],
      { kind: "wide" },
    ),
    severalEnvironments() &&
      name(
        "environment",
        (pair) => pair.environment,
        (pair) => plain(pair.environment),
        { kind: "text", hide: "medium" },
      ),
    name(
      "first",
      (pair) => side(pair, 0)?.figures?.mean,
      (pair) => rewardCell(side(pair, 0)?.figures?.mean),
      { kind: "reward", hide: "narrow" },
    ),
    name(
      "compared",
      (pair) => side(pair, 1)?.figures?.mean,
      (pair) => rewardCell(side(pair, 1)?.figures?.mean),
      { kind: "reward", hide: "narrow" },
    ),
    name(
      "Δ reward",
      (pair) => pair.difference,
      (pair) =>
        el(
          "span",
          { class: `badge ${!pair.difference ? "plain" : pair.difference > 0 ? "good" : "bad"}` },
          known(pair.difference) ? signed(pair.difference) : UNKNOWN,
        ),
      { kind: "change" },
    ),
    name(
      "failures",
      (pair) => pair.sides.reduce((sum, each) => sum + (each?.figures?.missing ?? 0), 0),
      (pair) =>
        el(
          "span",
          { class: "bad-text" },
          pair.sides
            .map((each) => (each ? kindsOf(rows[each.run], each.rollouts) : "not run"))
            .filter(Boolean)
            .join(" → "),
        ),
      { kind: "text", hide: "wide" },
    ),
    any("seconds") &&
      name("Δ time", gap("seconds"), (pair) => withSign(gap("seconds")(pair), duration), { hide: "medium" }),
    any("cost") && name("Δ cost", gap("cost"), (pair) => withSign(gap("cost")(pair), cost), { hide: "wide" }),
  ].filter(Boolean);
}

const withSign = (value, format) =>
  known(value) ? `${value > 0 ? "+" : value < 0 ? "−" : ""}${format(Math.abs(value))}` : UNKNOWN;
