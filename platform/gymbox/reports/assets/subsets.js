// Subsets: the parts of an environment that a field of its rows tells apart.

/** Each environment in view with its subsets: [environment, subset, figures]. */
const subsetsOf = ({ summary }) =>
  Object.entries(summary.subsets)
    .filter(([environment]) => state.scope === "" || environment === state.scope)
    .flatMap(([environment, found]) => Object.entries(found).map(([subset, figures]) => [environment, subset, figures]));

/** Names of all subsets, to choose from. */
const subsetNames = () => [
  ...new Set(
    report.runs.flatMap((run) => Object.values(run.summary.subsets).flatMap((found) => Object.keys(found))),
  ),
];

/** Which subset a task is in, or null. */
const subsetOf = (run, task) => tasks[run][task].figures?.subset ?? null;

/** The name of a subset, which lists its tasks in the table. */
const subsetCell = (subset) =>
  el(
    "button",
    { type: "button", class: "link", title: "List its tasks", onclick: () => filterBy({ subset }, "tasks") },
    plain(subset),
  );

/** Figures of a run's subsets; nothing where one of its agents is looked at alone. */
function subsetsShown(run) {
  const listed = state.agent === "" ? subsetsOf(run) : [];
  if (listed.length === 0) return null;
  const several = new Set(listed.map(([environment]) => environment)).size > 1;
  const k = Math.max(0, ...listed.flatMap(([, , each]) => Object.keys(each.pass_at).map(Number)));
  const low = Math.min(0, ...listed.map(([, , each]) => each.smallest ?? 0));
  const high = Math.max(1, ...listed.map(([, , each]) => each.largest ?? 1));
  const any = (field) => listed.some(([, , each]) => each[field].count > 0);
  const columns = [
    several && ["environment", (_, environment) => plain(environment)],
    ["tasks", (each) => number(each.tasks)],
    ["scored", (each) => `${number(each.scored)} of ${number(each.rollouts)}`],
    [
      "mean reward",
      ({ mean: value, standard_error: error }) => `${mean(value)}${known(error) ? ` ± ${mean(error)}` : ""}`,
    ],
    [
      `${level(run.summary.level)} interval`,
      (each) => [interval(each.interval), intervalBar(each.interval, each.mean, low, high)],
    ],
    ["solved", (each) => percent(each.solved)],
    k > 1 && [`pass@${k}`, (each) => mean(each.pass_at[k]?.value)],
    any("cost") && ["cost each", (each) => spreadOf(each.cost, cost)],
    any("output_tokens") && ["tokens each", (each) => tokensEach(each)],
    any("seconds") && ["time each", (each) => spreadOf(each.seconds, duration)],
  ].filter(Boolean);
  return numbersTable(
    `By ${plain(report.by)}`,
    ["subset", ...columns.map(([title]) => title)],
    listed.map(([environment, subset, figures]) => [
      subsetCell(subset),
      ...columns.map(([, cell]) => cell(figures, environment)),
    ]),
    true,
  );
}

/** How the chosen run compares with the first, subset by subset. */
function subsetDifferences() {
  const second = report.runs[comparedRuns()[state.pair][1]].name;
  const listed = report.comparison.subsets.filter(
    (each) => each.second === second && (state.scope === "" || each.environment === state.scope),
  );
  if (listed.length === 0) return null;
  const several = new Set(listed.map((each) => each.environment)).size > 1;
  const ends = listed.flatMap((each) => [each.difference ?? 0, ...(each.interval ?? [])]);
  const far = Math.max(...ends.map(Math.abs), 0.05) * 1.1;
  const made = numbersTable(
    `By ${plain(report.by)}: ${plain(listed[0].first)} → ${plain(second)}`,
    [
      "subset",
      ...(several ? ["environment"] : []),
      "verdict",
      "difference",
      `${level(report.comparison.level)} interval`,
      "adjusted p",
      "means",
      "tasks",
      "better",
      "worse",
    ],
    listed.map((each) => [
      subsetCell(each.subset),
      ...(several ? [plain(each.environment)] : []),
      verdictBadge(each),
      signed(each.difference),
      [
        each.interval ? `${signed(each.interval[0])} to ${signed(each.interval[1])}` : UNKNOWN,
        intervalBar(each.interval, each.difference, -far, far, 0),
      ],
      chance(each.p_holm),
      `${mean(each.first_mean)} → ${mean(each.second_mean)}`,
      number(each.paired),
      number(each.better.length),
      number(each.worse.length),
    ]),
    true,
  );
  made.append(el("p", { class: "below" }, "Verdicts and p are adjusted for all subsets (Holm)."));
  return made;
}
