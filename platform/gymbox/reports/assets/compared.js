// Compared: what stands in place of a run's figures where a report compares several.

const VERDICTS = {
  better: ["good", "better"],
  worse: ["bad", "worse"],
  no_difference_shown: ["plain", "no difference shown"],
  unknown: ["plain", "unknown"],
};
const TESTS = { mcnemar: "exact McNemar test", sign_flip: "permutation test of signs" };

/** The differences of the chosen run in the chosen environments. */
function chosenDifferences() {
  const second = report.runs[comparedRuns()[state.pair][1]].name;
  return report.comparison.differences.filter(
    (each) => each.second === second && (state.scope === "" || each.environment === state.scope),
  );
}

/** What is shown of a difference, as a coloured word. */
const verdictBadge = ({ verdict }) => {
  const [kind, said] = VERDICTS[verdict];
  return el("span", { class: `badge ${kind}` }, said);
};

/** A card for each environment: how much, how sure. */
function verdicts() {
  const { comparison } = report;
  return chosenDifferences().map((each) => {
    const far = Math.max(...[each.difference ?? 0, ...(each.interval ?? [])].map(Math.abs), 0.05) * 1.1;
    return el(
      "div",
      { class: "card tile verdict" },
      el("h3", {}, plain(each.environment), verdictBadge(each)),
      el(
        "p",
        { class: "value" },
        signed(each.difference),
        known(each.standard_error) ? el("span", { class: "error" }, ` ± ${mean(each.standard_error)}`) : null,
      ),
      intervalBar(each.interval, each.difference, -far, far, 0),
      el(
        "p",
        { class: "below" },
        `${level(comparison.level)} interval ${each.interval ? `${signed(each.interval[0])} to ${signed(each.interval[1])}` : UNKNOWN}`,
      ),
      el(
        "p",
        { class: "below" },
        `mean over ${plural(each.paired, "task")}: ${mean(each.first_mean)} → ${mean(each.second_mean)}`,
      ),
      el(
        "p",
        { class: "below" },
        known(each.p) ? `p ${chance(each.p)}, adjusted ${chance(each.p_holm)} (${TESTS[each.test]})` : "no p-value",
      ),
      el(
        "p",
        { class: "below" },
        `${plural(each.better.length, "task")} better, ${each.worse.length.toLocaleString("en")} worse`,
      ),
      each.left_out || each.only_in_one
        ? el(
            "p",
            { class: "below warn" },
            `${number(each.left_out)} left out without a reward, ${number(each.only_in_one)} only in one run`,
          )
        : null,
    );
  });
}

/** Tables of a comparison. */
const comparedDetails = () => [
  costs(),
  subsetDifferences(),
  metricsTable("Key metrics", "key_metrics", report.runs),
  metricsTable("The environments' own metrics", "own_metrics", report.runs),
];

/** What each run took. */
function costs() {
  const each = report.runs.map((run) => [run, figuresOf(run)]);
  const spread = (found, format) => (found?.count ? format(found.mean) : UNKNOWN);
  return numbersTable(
    `The ${partWord()}s`,
    [
      partWord(),
      "rollouts",
      "without a reward",
      "mean reward",
      "interval",
      "solved",
      "cost in all",
      "cost each",
      "time each",
      "tokens in each",
      "tokens out each",
      "turns each",
    ],
    each.map(([run, figures]) =>
      figures
        ? [
            plain(run.name),
            number(figures.rollouts),
            number(figures.missing),
            mean(figures.mean),
            interval(figures.interval),
            percent(figures.solved),
            figures.cost.count ? number(figures.cost.total) : UNKNOWN,
            spread(figures.cost, number),
            spread(figures.seconds, duration),
            spread(figures.input_tokens, short),
            spread(figures.output_tokens, short),
            spread(figures.turns, number),
          ]
        : [plain(run.name), ...Array(11).fill(UNKNOWN)],
    ),
    true,
  );
}
