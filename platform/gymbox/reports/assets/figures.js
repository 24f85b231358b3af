// Figures: the headline of a run, and what stands beneath its plots.

/** Of the chosen environment, or of all; of the chosen agent, or of all. */
function figuresOf({ summary }, agent = state.agent) {
  if (agent === "") return state.scope === "" ? summary.total : summary.environments[state.scope];
  return state.scope === "" ? summary.agent_totals[agent] : summary.agents[state.scope]?.[agent];
}
function plotsOf(run, agent = state.agent) {
  const plots = agent === "" ? run.plots : run.agent_plots[agent];
  return plots[state.scope] ?? plots[""];
}

function tile(name, value, ...below) {
  return el(
    "div",
    { class: "card tile" },
    el("h3", {}, name),
    el("p", { class: "value" }, value),
    ...below
      .flat()
      .filter((line) => line)
      .map((line) => (typeof line === "string" ? el("p", { class: "below" }, line) : line)),
  );
}

/** An interval on a line, with a mark at the value, and one at `origin`; in the colour of a series. */
function intervalBar(ends, value, from, to, origin = null, kind = "one") {
  if (!ends) return null;
  const at = (each) => 4 + 192 * Math.min(Math.max((each - from) / (to - from || 1), 0), 1);
  return svg(
    "svg",
    {
      class: "interval",
      viewBox: "0 0 200 16",
      role: "img",
      "aria-label": `${mean(value)}, interval ${interval(ends)}`,
    },
    svg("line", { class: "rule", x1: 4, x2: 196, y1: 8, y2: 8 }),
    origin === null ? null : svg("line", { class: "axis", x1: at(origin), x2: at(origin), y1: 1, y2: 15 }),
    svg("rect", {
      class: `range bar ${kind}`,
      x: at(ends[0]),
      y: 5,
      width: Math.max(at(ends[1]) - at(ends[0]), 2),
      height: 6,
      rx: 3,
    }),
    svg("circle", { class: `dot ${kind}`, cx: at(value), cy: 8, r: 5 }),
  );
}

const POLICIES = { excluded: "left out of the figures", as_failure: "counted as a reward of 0" };

/** The tiles of a run. */
function headline(run) {
  const figures = figuresOf(run);
  const { summary } = run;
  const low = Math.min(0, figures.smallest ?? 0);
  const high = Math.max(1, figures.largest ?? 1);
  const best = Object.entries(figures.pass_at)
    .filter(([, at]) => known(at.value))
    .at(-1);
  const all = best && figures.pass_all[best[0]];
  return [
    el(
      "div",
      { class: "card tile main" },
      el("h3", {}, agentsOf().length > 1 && state.agent === "" ? "Mean reward of all agents" : "Mean reward"),
      el(
        "p",
        { class: "value" },
        mean(figures.mean),
        known(figures.standard_error) ? el("span", { class: "error" }, ` ± ${mean(figures.standard_error)}`) : null,
      ),
      intervalBar(figures.interval, figures.mean, low, high),
      el(
        "p",
        { class: "below" },
        figures.interval
          ? `${level(summary.level)} interval ${interval(figures.interval)}`
          : "too few tasks for an interval",
      ),
      el("p", { class: "below" }, `mean over tasks ${mean(figures.task_mean)}, median ${mean(figures.median)}, spread ${mean(figures.deviation)}`),
    ),
    tile(
      "Solved",
      percent(figures.solved),
      `rewards of ${number(summary.success)} or more`,
      `${plural(figures.tasks, "task")}`,
    ),
    best && Number(best[0]) > 1
      ? tile(
          `pass@${best[0]}`,
          mean(best[1].value),
          known(all?.value) ? `pass^${best[0]} ${mean(all.value)}` : "",
          best[1].left_out ? `${plural(best[1].left_out, "task")} left out` : "",
        )
      : null,
    tile(
      "Rollouts",
      figures.scored.toLocaleString("en"),
      `with a reward, of ${number(figures.planned ?? figures.rollouts)}${known(figures.planned) ? " planned" : ""}`,
      figures.missing
        ? el("p", { class: "below warn" }, `${number(figures.missing)} without, ${POLICIES[summary.missing_policy]}`)
        : "none without",
    ),
    keyTile(run),
    figures.cost.count
      ? tile(
          "Cost",
          number(figures.cost.total),
          `${number(figures.cost.mean)} a rollout`,
          partly(figures.cost, figures),
        )
      : null,
    figures.output_tokens.count
      ? tile(
          "Tokens",
          short(figures.input_tokens.total + figures.output_tokens.total),
          `${short(figures.input_tokens.mean)} in, ${short(figures.output_tokens.mean)} out a rollout`,
          partly(figures.output_tokens, figures),
        )
      : null,
    figures.seconds.count
      ? tile(
          "Time",
          duration(figures.seconds.mean),
          "a rollout, waits included",
          `${duration(figures.seconds.total)} in all`,
        )
      : null,
    figures.turns.count
      ? tile(
          "Turns",
          number(figures.turns.mean),
          figures.tool_calls.count ? `${number(figures.tool_calls.mean)} tool calls a rollout` : "",
          figures.tool_errors.count
            ? `${number(figures.tool_errors.total)} of ${number(figures.tool_calls.total)} failed`
            : "",
        )
      : null,
  ];
}

const partly = (spread, figures) => (spread.count < figures.rollouts ? `known of ${number(spread.count)}` : "");

const numbersTable = (title, columns, cells, wide = false) =>
  el("div", { class: wide ? "card wide" : "card" }, el("h3", {}, title), tableOf(title, columns, cells));

/** Tables of a run: its environments and their subsets, metrics, reward components, and why agents ended. */
function details(run) {
  const figures = figuresOf(run);
  const environments = Object.entries(run.summary.environments);
  const spreads = [
    ...Object.entries(figures.components).map((each) => ["component", ...each]),
    ...Object.entries(figures.metrics).map((each) => ["metric", ...each]),
  ];
  const stops = Object.entries(figures.stop_reasons).sort((one, other) => other[1] - one[1]);
  return [
    environments.length > 1 && state.scope === "" && state.agent === ""
      ? numbersTable(
          "Environments",
          ["environment", "tasks", "rollouts", "scored", "missing", "mean reward", "interval", "solved", "cost"],
          environments.map(([name, each]) => [
            plain(name),
            number(each.tasks),
            number(each.rollouts),
            number(each.scored),
            number(each.missing),
            `${mean(each.mean)}${known(each.standard_error) ? ` ± ${mean(each.standard_error)}` : ""}`,
            interval(each.interval),
            percent(each.solved),
            each.cost.count ? number(each.cost.total) : UNKNOWN,
          ]),
          true,
        )
      : null,
    subsetsShown(run),
    metricsTable("The environments' own metrics", "own_metrics", [run]),
    spreads.length > 0
      ? numbersTable(
          "Reward components and metrics",
          ["name", "kind", "mean", "rollouts that have it"],
          spreads.map(([kind, name, spread]) => [plain(name), kind, number(spread.mean), number(spread.count)]),
        )
      : null,
    stops.length > 0
      ? numbersTable(
          "Why agents ended",
          ["reason", "rollouts"],
          stops.map(([name, count]) => [words(plain(name)), number(count)]),
        )
      : null,
  ];
}

/** What went into the runs. */
function factsOf(all) {
  const runs = ofOneRun() ? all.slice(0, 1) : all;
  return runs
    .filter((run) => Object.keys(run.facts).length > 0)
    .map((run) =>
      el(
        "details",
        { class: "card" },
        el("summary", {}, runs.length > 1 ? `How ${plain(run.name)} was run` : "How it was run"),
        el(
          "dl",
          { class: "facts" },
          Object.entries(run.facts).map(([name, value]) => [
            el("dt", {}, plain(name)),
            el("dd", {}, plain(value.length > 2000 ? `${value.slice(0, 2000)}…` : value)),
          ]),
        ),
      ),
    );
}
