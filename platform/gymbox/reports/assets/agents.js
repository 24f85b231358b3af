// Agents: what each agent of one run came to, beside the others.

/** What stands of a run's agents above its plots; nothing where one is looked at alone. */
function agentsShown(run) {
  if (agentsOf().length < 2 || state.agent !== "") return [];
  return [agentFigures(run), run.agents && agentDifferences(run.agents)];
}

/** Figures of each agent, in each environment where there are several. */
function agentFigures(run) {
  const { summary } = run;
  const environments = Object.keys(summary.environments).filter((each) => state.scope === "" || each === state.scope);
  const several = environments.length > 1;
  const lines = environments.flatMap((environment) =>
    agentsOf().map((agent) => [agent, environment, summary.agents[environment]?.[agent]]),
  );
  if (several) lines.push(...agentsOf().map((agent) => [agent, "all", summary.agent_totals[agent]]));
  const listed = lines.filter(([, , figures]) => figures);
  const ks = listed.flatMap(([, , each]) => Object.keys(each.pass_at).map(Number)).filter((k) => k > 1);
  const k = Math.max(0, ...ks);
  const low = Math.min(0, ...listed.map(([, , each]) => each.smallest ?? 0));
  const high = Math.max(1, ...listed.map(([, , each]) => each.largest ?? 1));
  const any = (field) => listed.some(([, , each]) => each[field].count > 0);
  const columns = [
    several && ["environment", (_, environment) => plain(environment)],
    [
      "mean reward",
      ({ mean: value, standard_error: error }) => `${mean(value)}${known(error) ? ` ± ${mean(error)}` : ""}`,
    ],
    [
      `${level(summary.level)} interval`,
      (each, environment, kind) => [
        interval(each.interval),
        intervalBar(each.interval, each.mean, low, high, null, kind),
      ],
    ],
    ["solved", (each) => percent(each.solved)],
    k > 1 && [`pass@${k}`, (each) => mean(each.pass_at[k]?.value)],
    k > 1 && [`pass^${k}`, (each) => mean(each.pass_all[k]?.value)],
    ["scored", (each) => `${number(each.scored)} of ${number(each.planned ?? each.rollouts)}`],
    any("cost") && ["cost each", (each) => spreadOf(each.cost, cost)],
    any("output_tokens") && ["tokens each", (each) => tokensEach(each)],
    any("seconds") && ["time each", (each) => spreadOf(each.seconds, duration)],
    any("turns") && ["turns each", (each) => spreadOf(each.turns, number)],
  ].filter(Boolean);
  return numbersTable(
    "Agents",
    ["agent", ...columns.map(([title]) => title)],
    listed.map(([agent, environment, figures]) => {
      const kind = series(agentsOf().indexOf(agent));
      return [
        [el("span", { class: `key ${kind}` }), plain(agent)],
        ...columns.map(([, cell]) => cell(figures, environment, kind)),
      ];
    }),
    true,
  );
}

const spreadOf = (spread, format) => (spread.count ? format(spread.mean) : UNKNOWN);
const tokensEach = (each) =>
  each.output_tokens.count ? short((each.input_tokens.mean ?? 0) + each.output_tokens.mean) : UNKNOWN;

/** Each agent against the first, on the same tasks. */
function agentDifferences(found) {
  const listed = found.differences.filter((each) => state.scope === "" || each.environment === state.scope);
  if (listed.length === 0) return null;
  const several = new Set(listed.map((each) => each.environment)).size > 1;
  const agent = (name) => plain(name.slice(name.lastIndexOf(":") + 1));
  const made = numbersTable(
    `Compared with ${agent(found.runs[0].run)}, task by task`,
    [
      "agent",
      ...(several ? ["environment"] : []),
      "verdict",
      "difference",
      `${level(found.level)} interval`,
      "adjusted p",
      "tasks",
      "better",
      "worse",
    ],
    listed.map((each) => {
      return [
        agent(each.second),
        ...(several ? [plain(each.environment)] : []),
        verdictBadge(each),
        `${signed(each.difference)}${known(each.standard_error) ? ` ± ${mean(each.standard_error)}` : ""}`,
        each.interval ? `${signed(each.interval[0])} to ${signed(each.interval[1])}` : UNKNOWN,
        chance(each.p_holm),
        number(each.paired),
        number(each.better.length),
        number(each.worse.length),
      ];
    }),
    true,
  );
  const command = "gymbox eval report RUN --agents";
  made.append(
    el("p", { class: "below" }, el("code", {}, command), " shows what each agent made of a task side by side."),
  );
  return made;
}
