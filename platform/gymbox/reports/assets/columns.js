// Columns: what the table shows of a row: a title, the value that sorts, the cell, and where it is hidden.

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
const column = (title, value, cell, more = {}) => ({ title, value, cell, ...more });

/** The columns that name a row: its task with a line beneath, and its environment where there are several. */
function namedBy(taskOf, beneath = (row) => taskOf(row).preview) {
  return [
    column(
      "task",
      (row) => taskOf(row).task,
      (row) => [
        el("span", { class: "strong" }, plain(taskOf(row).task)),
        el("span", { class: "preview" }, plain(beneath(row))),
      ],
      { kind: "wide" },
    ),
    severalEnvironments() &&
      column(
        "environment",
        (row) => taskOf(row).environment,
        (row) => plain(taskOf(row).environment),
        { kind: "text", hide: "medium" },
      ),
  ];
}

/** Columns of tasks of one run. */
function taskColumns() {
  const columns = rows[0];
  return [
    ...namedBy((task) => task),
    column(
      "solved",
      (each) => each.figures && each.figures.n && each.figures.c / each.figures.n,
      (each) => (each.figures ? `${each.figures.c} of ${each.figures.n}` : UNKNOWN),
      { hide: "narrow" },
    ),
    column(
      "mean reward",
      (each) => each.figures?.mean,
      (each) => rewardCell(each.figures?.mean),
      { kind: "reward" },
    ),
    column(
      "sd",
      (each) => each.figures?.deviation,
      (each) => mean(each.figures?.deviation),
      { hide: "wide" },
    ),
    column(
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
    ...namedBy(task, (row) => columns.details[row] ?? task(row).preview),
    column(
      "try",
      (row) => columns.repeat[row],
      (row) => (known(columns.repeat[row]) ? number(columns.repeat[row] + 1) : UNKNOWN),
      { hide: "wide", kind: "small" },
    ),
    column(
      "reward",
      (row) => columns.reward[row],
      (row) => rewardCell(columns.reward[row]),
      { kind: "reward" },
    ),
    column(
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
    column(
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
      column(
        "time",
        (each) => at(each, "seconds"),
        (each) => duration(at(each, "seconds")),
        { hide: "medium" },
      ),
    any("output_tokens") && column("tokens", tokens, (each) => short(tokens(each)), { hide: "wide" }),
    any("cost") &&
      column(
        "cost",
        (each) => at(each, "cost"),
        (each) => cost(at(each, "cost")),
        { hide: "wide" },
      ),
    any("turns") &&
      column(
        "turns",
        (each) => at(each, "turns"),
        (each) => number(at(each, "turns")),
        { hide: "wide" },
      ),
  ];
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
    ...namedBy((pair) => pair),
    column(
      "first",
      (pair) => side(pair, 0)?.figures?.mean,
      (pair) => rewardCell(side(pair, 0)?.figures?.mean),
      { kind: "reward", hide: "narrow" },
    ),
    column(
      "compared",
      (pair) => side(pair, 1)?.figures?.mean,
      (pair) => rewardCell(side(pair, 1)?.figures?.mean),
      { kind: "reward", hide: "narrow" },
    ),
    column(
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
    column(
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
      column("Δ time", gap("seconds"), (pair) => withSign(gap("seconds")(pair), duration), { hide: "medium" }),
    any("cost") && column("Δ cost", gap("cost"), (pair) => withSign(gap("cost")(pair), cost), { hide: "wide" }),
  ].filter(Boolean);
}

const withSign = (value, format) =>
  known(value) ? `${value > 0 ? "+" : value < 0 ? "−" : ""}${format(Math.abs(value))}` : UNKNOWN;
