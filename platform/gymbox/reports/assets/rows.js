// Rows: what the table lists, made of the runs' columns: rollouts, tasks, or tasks of two runs side by side.

let report = null;
let rows = [];
const state = {
  scope: "",
  agent: "",
  pair: 0,
  view: "tasks",
  search: "",
  outcome: "",
  kind: "",
  by: "",
  subset: "",
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

const keyOf = (environment, task, agent = null) => `${environment}\u0000${agent ?? ""}\u0000${task}`;

/** The agents that are told apart in the run of this page; none where it has one, and where runs are compared. */
const agentsOf = () => (report.comparison ? [] : Object.keys(report.runs[0].agent_plots));

/** Whether what is compared are agents of one run. */
const ofOneRun = () =>
  report.runs.length > 1 &&
  report.runs.every((run) => run.agent !== null && run.started_at === report.runs[0].started_at) &&
  new Set(report.runs.map((run) => run.agent)).size === report.runs.length;

/** Which agent made a task of a run, or null. */
const agentOf = (columns, task) => columns.agents[columns.tasks[task][3]] ?? null;

/** The tasks of a run, each with the numbers of its rollouts' rows and with its figures. */
function tasksOf(run) {
  const columns = rows[run];
  const figures = new Map(
    report.runs[run].summary.tasks.map((each) => [keyOf(each.environment, each.task, each.agent), each]),
  );
  const tasks = columns.tasks.map(([environment, task, preview], at) => ({
    environment: columns.environments[environment],
    agent: agentOf(columns, at),
    task,
    preview,
    run,
    rollouts: [],
    figures: figures.get(keyOf(columns.environments[environment], task, agentOf(columns, at))) ?? null,
  }));
  columns.task.forEach((task, row) => tasks[task].rollouts.push(row));
  for (const each of tasks)
    each.rollouts.sort(
      (one, other) =>
        (columns.repeat[one] ?? 0) - (columns.repeat[other] ?? 0) || columns.aside[one] - columns.aside[other],
    );
  return tasks;
}

/** What each agent made of a task one beneath the other, agents in their order; tasks as they came. */
function byTask(tasks) {
  const agents = agentsOf();
  if (agents.length < 2) return tasks;
  const groups = new Map();
  for (const task of tasks) {
    const key = keyOf(task.environment, task.task);
    (groups.get(key) ?? groups.set(key, []).get(key)).push(task);
  }
  const order = (group) => group.sort((one, other) => agents.indexOf(one.agent) - agents.indexOf(other.agent));
  return [...groups.values()].flatMap(order);
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

/** Which runs are compared, as places in the report: the first with all others, or, of runs with several agents, each
 * agent with itself. */
function comparedRuns() {
  const places = new Map(report.runs.map((run, at) => [run.name, at]));
  const pairs = new Map(
    report.comparison.differences.map((each) => [each.second, [places.get(each.first), places.get(each.second)]]),
  );
  return [...pairs.values()];
}

/** Tasks of the two runs that are chosen, those of either, by how much they differ; each has the two runs' tasks as `sides`. */
function pairsOf(tasks) {
  const pairs = new Map();
  comparedRuns()[state.pair].forEach((run, side) => {
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
