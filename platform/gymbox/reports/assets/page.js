// The page: reads the data, draws what is chosen, and listens.

let tasks = [];
let pairs = [];
let grid = null;
let reader = null;

function drawFigures() {
  const compared = report.comparison !== null;
  if (!compared && !figuresOf(report.runs[0])) {
    fill(byId("headline"), el("p", { class: "nothing" }, "This agent has no rollout here."));
    for (const id of ["agents", "plots", "details"]) fill(byId(id));
    return;
  }
  const parts = partsShown();
  const by = (which) => (compared || parts.length < 2 ? "" : parts[which].name);
  fill(byId("headline"), compared ? verdicts() : headline(report.runs[0]));
  fill(byId("agents"), compared ? [] : agentsShown(report.runs[0]));
  const choose = compared
    ? null
    : (low, high, last, which) => filterBy({ low, high: last ? null : high - 1e-9, by: by(which) });
  fill(
    byId("plots"),
    rewardsPlot(parts, choose),
    passPlot(parts),
    effortPlot(parts),
    failuresPlot(parts, (kind, which) => filterBy({ kind, by: by(which) })),
    compared ? null : timelinePlot(plotsOf(report.runs[0])),
  );
  fill(byId("details"), compared ? comparedDetails() : details(report.runs[0]));
}

/** What the plots lay over one another, each in its colour: the runs, or the agents of one; else the one run. */
function partsShown() {
  const part = (run, agent, kind) => ({
    name: agent || run.name,
    kind,
    figures: figuresOf(run, agent),
    plots: plotsOf(run, agent),
  });
  const [run] = report.runs;
  const agents = state.agent === "" ? agentsOf() : [];
  const parts = report.comparison
    ? report.runs.map((each, at) => part(each, "", series(at)))
    : agents.length > 1
      ? agents.map((agent, at) => part(run, agent, series(at)))
      : [{ ...part(run, state.agent, "one"), name: run.name }];
  return parts.filter((each) => each.figures);
}

/** Set the table's filters from a plot or a table, and go there. */
function filterBy(filters, view = "rollouts") {
  if (!report.comparison) setView(view, false);
  setFilters(filters);
  drawTable();
  byId("table").scrollIntoView({ block: "start" });
  byId("search").focus({ preventScroll: true });
}

function drawTable() {
  const compared = report.comparison !== null;
  const listed = chosenRows(tasks, pairs);
  const columns = compared ? pairColumns() : state.view === "tasks" ? taskColumns() : rolloutColumns(tasks[0]);
  const all = compared ? pairs.length : state.view === "tasks" ? tasks[0].length : rows[0].id.length;
  const what = compared || state.view === "tasks" ? "task" : "rollout";
  const several = agentsOf().length;
  grid.show(columns, listed);
  fill(
    byId("count"),
    `${listed.length.toLocaleString("en")} of ${plural(all, what)}${several && what === "task" ? ` of ${several} agents` : ""}${state.within ? " whose trajectories hold the text" : ""}`,
  );
}

function setView(view, draw = true) {
  state.view = view;
  for (const button of byId("view").children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  fill(byId("table-title"), report.comparison ? "Tasks, side by side" : view === "tasks" ? "Tasks" : "Rollouts");
  if (draw) drawTable();
}

/** What the reader shows of a task, of the rollout `row` where one was chosen. */
function entryOf(task, row = null) {
  const fitting = task.rollouts.findIndex((each) =>
    rolloutFits(task.run, each, report.runs[0].summary.success, state.search.trim().toLowerCase()),
  );
  return {
    task: task.task,
    environment: task.environment,
    agent: task.agent,
    sides: [
      { run: task.run, rows: task.rollouts, chosen: row === null ? Math.max(fitting, 0) : task.rollouts.indexOf(row) },
    ],
  };
}

function pairEntry(pair) {
  return {
    task: pair.task,
    environment: pair.environment,
    sides: pair.sides.map((task) => task && entryOf(task).sides[0]),
  };
}

function openAt(at) {
  // each entry is made when it is reached: a list of them all would take longer to make than to read one
  const source = grid.rows;
  const made = (index) =>
    report.comparison
      ? pairEntry(source[index])
      : state.view === "tasks"
        ? entryOf(source[index])
        : entryOf(tasks[0][rows[0].task[source[index]]], source[index]);
  const list = new Proxy([], { get: (_, key) => (key === "length" ? source.length : made(Number(key))) });
  reader.open(list, at);
}

/** Open the rollout that the address names. */
function openNamed() {
  const named = /^#rollout=(.+)$/.exec(location.hash);
  if (!named) return;
  let id;
  try {
    id = decodeURIComponent(named[1]);
  } catch {
    return;
  }
  for (let run = 0; run < rows.length; run++) {
    const row = rows[run].id.indexOf(id);
    if (row < 0) continue;
    const entry = entryOf(tasks[run][rows[run].task[row]], row);
    reader.open([entry], 0);
    return;
  }
}

function fillTop() {
  const run = report.runs[0];
  document.title = `${plain(report.title)} – gymbox`;
  fill(byId("title"), plain(report.title));
  const said = report.comparison
    ? [
        `${plural(report.runs.length, partWord())}, ${oneFirst() ? `compared with ${plain(run.name)}` : "each agent compared with itself"}`,
      ]
    : [
        run.status && words(run.status),
        run.started_at && moment(run.started_at),
        run.ended_at &&
          run.started_at &&
          `took ${duration((new Date(run.ended_at) - new Date(run.started_at)) / 1000)}`,
        run.agent !== null && `agent ${plain(run.agent)}`,
        agentsOf().length > 0 && plural(agentsOf().length, "agent"),
        plural(run.summary.total.tasks, "task"),
        plural(run.summary.total.rollouts, "rollout"),
      ];
  fill(byId("subtitle"), said.filter(Boolean).join(" · "));
  fill(
    byId("made"),
    `Made by gymbox ${plain(report.gymbox)} on ${moment(report.made_at)}. This file asks for nothing from any network.`,
  );
  const environments = [...new Set(report.runs.flatMap((each) => Object.keys(each.summary.environments)))].sort();
  const scope = byId("scope");
  fill(
    scope,
    el("option", { value: "" }, "All environments"),
    environments.map((each) => el("option", { value: each }, plain(each))),
  );
  scope.closest("label").hidden = environments.length < 2;
  scope.addEventListener("change", () => {
    state.scope = scope.value;
    drawFigures();
    drawTable();
  });
  const agent = byId("agent");
  fill(
    agent,
    el("option", { value: "" }, "All agents"),
    agentsOf().map((each) => el("option", { value: each }, plain(each))),
  );
  agent.closest("label").hidden = agentsOf().length === 0;
  agent.addEventListener("change", () => {
    state.agent = agent.value;
    state.by = byId("by").value = "";
    byId("by").closest("label").hidden = state.agent !== "";
    drawFigures();
    drawTable();
  });
  const pair = byId("pair");
  const compared = report.comparison ? comparedRuns() : [];
  const name = (at) => plain(report.runs[at].name);
  fill(
    pair,
    compared.map(([first, second], at) =>
      el("option", { value: at }, oneFirst() ? name(second) : `${name(first)} → ${name(second)}`),
    ),
  );
  fill(pair.closest("label").firstElementChild, `Compared ${oneFirst() ? partWord() : "runs"}`);
  pair.closest("label").hidden = compared.length < 2;
  pair.addEventListener("change", () => {
    state.pair = Number(pair.value);
    pairs = pairsOf(tasks);
    drawFigures();
    drawTable();
  });
}

/** Whether all are compared with the same run. */
const oneFirst = () => report.comparison === null || new Set(comparedRuns().map(([first]) => first)).size === 1;

function notices() {
  const said = report.runs.flatMap((run, at) => {
    const of = report.runs.length > 1 ? `${plain(run.name)}: ` : "";
    const without = rows[at].chunk.filter((each) => each < 0).length;
    return [
      run.status && run.status !== "finished"
        ? `${of}This run is ${run.status === "running" ? "still running, or was killed" : words(run.status)}; these are the figures so far.`
        : null,
      run.summary.torn_bytes
        ? `${of}The last line, of ${plural(run.summary.torn_bytes, "byte")}, is not whole and was left out.`
        : null,
      run.set_aside
        ? `${of}${plural(run.set_aside, "earlier attempt")} from failures.jsonl can be read in the table; no figure counts them.`
        : null,
      without
        ? `${of}${plural(without, "trajectory", "trajectories")} had no room in this file; failures and first tries were put in before others.`
        : null,
    ];
  });
  fill(
    byId("notices"),
    said.filter(Boolean).map((text) => el("p", { class: "notice" }, text)),
  );
}

function themes() {
  const theme = byId("theme");
  const apply = () => document.documentElement.setAttribute("data-theme", theme.value);
  try {
    theme.value = localStorage.getItem("gymbox-theme") ?? theme.value;
  } catch {
    // a page from a file may have no storage: then the choice lasts as long as the page
  }
  if (theme.selectedIndex < 0) theme.selectedIndex = 0;
  apply();
  theme.addEventListener("change", () => {
    apply();
    try {
      localStorage.setItem("gymbox-theme", theme.value);
    } catch {
      // as above
    }
  });
}

function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest?.("input, select, textarea") || byId("reader").open) return;
    event.preventDefault();
    byId("search").focus();
  });
  window.addEventListener("hashchange", openNamed);
}

async function start() {
  themes();
  report = await packedJson("report");
  rows = await Promise.all(report.runs.map((_, at) => packedJson(`rows-${at}`)));
  tasks = report.runs.map((_, at) => tasksOf(at));
  if (report.comparison) pairs = pairsOf(tasks);
  grid = new Grid(byId("grid-frame"), (_, at) => openAt(at));
  reader = new Reader(byId("reader"), (at) => grid.goTo(Math.min(at, grid.rows.length - 1)));
  fillTop();
  notices();
  fill(
    byId("view"),
    report.comparison
      ? []
      : [
          ["tasks", "Tasks"],
          ["rollouts", "Rollouts"],
        ].map(([view, said]) =>
          el("button", { type: "button", "data-view": view, onclick: () => setView(view) }, said),
        ),
  );
  makeFilters(drawTable);
  setView("tasks");
  drawFigures();
  fill(byId("facts"), factsOf(report.runs));
  listen();
  openNamed();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  fill(
    byId("notices"),
    el("p", { class: "notice bad", role: "alert" }, `This report cannot be shown: ${error.message}`),
  );
  document.documentElement.dataset.failed = "true";
  throw error;
});
