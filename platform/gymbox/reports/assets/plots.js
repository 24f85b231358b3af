// Plots: what is drawn of a run, or of several over one another.

const SERIES = ["one", "two", "three", "four", "five", "six"];
const series = (at) => SERIES[at % SERIES.length];

/** How rewards are spread; a bar filters the table. Of several runs, a line of steps each. */
function rewardsPlot(parts, choose) {
  const having = parts.filter((part) => part.plots.rewards);
  if (having.length === 0) return null;
  const [
    {
      plots: { rewards: first },
    },
  ] = having;
  const from = Math.min(...having.map((part) => part.plots.rewards.edges[0]));
  const to = Math.max(...having.map((part) => part.plots.rewards.edges.at(-1)));
  const shares = having.map(({ plots: { rewards } }) => {
    const all = rewards.counts.reduce((sum, count) => sum + count, 0);
    return rewards.counts.map((count) => (having.length > 1 ? count / all : count));
  });
  const most = Math.max(...shares.flat());
  const range = (edges, at) => `${number(edges[at])} to ${number(edges[at + 1])}`;
  return card({
    title: "Rewards",
    note:
      having.length > 1
        ? "Part of each run's scored rollouts."
        : "Scored rollouts by reward. Choose a bar to see them.",
    legend: having.length > 1 ? having.map((part, at) => [series(at), plain(part.name)]) : [],
    draw: (width) => {
      const chart = frame(
        width,
        `Distribution of rewards from ${number(from)} to ${number(to)}`,
        { from, to, label: "reward", format: number },
        { from: 0, to: most || 1, format: having.length > 1 ? (part) => `${number(100 * part)} %` : short },
      );
      having.forEach(({ plots: { rewards } }, which) => {
        const gap = having.length > 1 ? 0 : 2;
        const slot = (chart.x(rewards.edges[1]) - chart.x(rewards.edges[0]) - 2) / having.length;
        rewards.counts.forEach((count, at) => {
          if (count === 0) return;
          const value = shares[which][at];
          const top = Math.min(chart.y(value), chart.bottom - 2);
          const bar = svg("rect", {
            class: `bar ${series(which)}`,
            x: chart.x(rewards.edges[at]) + 1 + which * slot,
            y: top,
            width: Math.max(slot - gap / 2, 1.5),
            height: chart.bottom - top,
            rx: 2,
          });
          const told = `${having.length > 1 ? `${plain(having[which].name)}: ` : ""}${plural(count, "rollout")} with a reward of ${range(rewards.edges, at)}`;
          chart.root.append(
            choosable(
              bar,
              told,
              choose && (() => choose(rewards.edges[at], rewards.edges[at + 1], at === rewards.counts.length - 1)),
            ),
          );
        });
      });
      return chart.root;
    },
    columns: ["reward", ...having.map((part) => (having.length > 1 ? plain(part.name) : "rollouts"))],
    cells: having.every((part) => String(part.plots.rewards.edges) === String(first.edges))
      ? first.counts.map((_, at) => [
          range(first.edges, at),
          ...having.map((part) => number(part.plots.rewards.counts[at])),
        ])
      : having.flatMap((part, which) =>
          part.plots.rewards.counts.map((count, at) => [
            `${plain(part.name)}: ${range(part.plots.rewards.edges, at)}`,
            ...having.map((_, each) => (each === which ? number(count) : "")),
          ]),
        ),
  });
}

/** pass@k and pass^k of a run; pass@k of several. */
function passPlot(parts) {
  const lines =
    parts.length > 1
      ? parts.map((part, at) => [plain(part.name), series(at), part.figures.pass_at])
      : [
          ["pass@k: one of k succeeds", "one", parts[0].figures.pass_at],
          ["pass^k: all k succeed", "two", parts[0].figures.pass_all],
        ];
  const having = lines
    .map(([name, kind, found]) => [
      name,
      kind,
      Object.entries(found)
        .filter(([, at]) => known(at.value))
        .map(([k, at]) => [Number(k), at]),
    ])
    .filter(([, , found]) => found.length > 0);
  if (having.length === 0) return null;
  const ks = [...new Set(having.flatMap(([, , found]) => found.map(([k]) => k)))].sort((one, other) => one - other);
  if (ks.length < 2) return null; // with a try each, the headline says it all
  const at = (k) => Math.log2(k);
  const out = Math.max(...having.flatMap(([, , found]) => found.map(([, each]) => each.left_out)));
  return card({
    title: "Success by tries",
    note:
      out > 0
        ? `Tasks with fewer than k tries are left out; up to ${plural(out, "task")} here.`
        : "Unbiased, over tasks.",
    legend: having.map(([name, kind]) => [kind, name]),
    draw: (width) => {
      const chart = frame(
        width,
        "Chance of success by number of tries",
        {
          from: at(ks[0]) - 0.15,
          to: at(ks.at(-1)) + 0.15,
          ticks: ks.map(at),
          format: (value) => String(Math.round(2 ** value)),
          label: "tries (k)",
        },
        { from: 0, to: 1, format: (value) => String(value) },
      );
      for (const [name, kind, found] of having) {
        lineOf(
          chart,
          found.map(([k, each]) => [at(k), each.value]),
          kind,
          found.map(
            ([k, each]) =>
              `${name.split(":")[0]}, k = ${k}: ${mean(each.value)} over ${plural(each.tasks, "task")}, ${each.left_out} left out`,
          ),
        );
      }
      return chart.root;
    },
    columns: ["k", ...having.map(([name]) => name.split(":")[0]), "tasks", "left out"],
    cells: ks.map((k) => {
      const each = having.map(([, , found]) => found.find(([has]) => has === k)?.[1]);
      const told = each.find((value) => value);
      return [String(k), ...each.map((value) => mean(value?.value)), number(told?.tasks), number(told?.left_out)];
    }),
  });
}

const MEASURES = { cost: ["cost", number], tokens: ["tokens in and out", short], seconds: ["time", duration] };

/** Rewards against cost, or against tokens or time where no cost is known. */
function effortPlot(parts) {
  const measure = parts.find((part) => part.plots.effort)?.plots.effort.measure;
  const having = parts.filter((part) => part.plots.effort?.measure === measure && part.plots.effort);
  if (having.length === 0) return null;
  const [name, format] = MEASURES[measure];
  const spots = having.flatMap((part, which) => part.plots.effort.spots.map((spot) => ({ ...spot, which })));
  const most = Math.max(...spots.map((spot) => spot.count));
  const low = Math.min(0, ...spots.map((spot) => spot.reward));
  const high = Math.max(1, ...spots.map((spot) => spot.reward));
  const pad = (high - low) * 0.06;
  const to = Math.max(...having.map((part) => part.plots.effort.largest)) * 1.04;
  return card({
    title: `Reward against ${name.split(" ")[0]}`,
    note:
      measure === "cost"
        ? "The larger a spot, the more rollouts."
        : `The larger a spot, the more rollouts. Their cost is ${measure === "tokens" ? "not known: no price is set, or calls were not recorded" : "not known"}.`,
    legend: having.length > 1 ? having.map((part, which) => [series(which), plain(part.name)]) : [],
    draw: (width) => {
      const chart = frame(
        width,
        `Reward against ${name}`,
        { from: 0, to, label: `${name} of a rollout`, format },
        { from: low - pad, to: high + pad, ticks: ticksBetween(low, high, 4), format: number },
      );
      for (const spot of [...spots].sort((one, other) => other.count - one.count)) {
        const told = `${having.length > 1 ? `${plain(having[spot.which].name)}: ` : ""}${plural(spot.count, "rollout")}, reward ${mean(spot.reward)}, ${name} ${format(spot.effort)}`;
        chart.root.append(
          svg(
            "circle",
            {
              class: `spot ${series(spot.which)}`,
              cx: chart.x(spot.effort),
              cy: chart.y(spot.reward),
              r: 3 + 11 * Math.sqrt(spot.count / most),
            },
            svg("title", {}, told),
          ),
        );
      }
      return chart.root;
    },
    columns: [...(having.length > 1 ? ["run"] : []), name, "reward", "rollouts"],
    cells: spots.map((spot) => [
      ...(having.length > 1 ? [plain(having[spot.which].name)] : []),
      format(spot.effort),
      mean(spot.reward),
      number(spot.count),
    ]),
  });
}

/** How many rollouts failed in which way; a bar filters the table. */
function failuresPlot(parts, choose) {
  const kinds = new Map();
  parts.forEach((part, which) => {
    const undone = part.figures.missing - Object.values(part.figures.errors).reduce((sum, count) => sum + count, 0);
    for (const [kind, count] of [...Object.entries(part.figures.errors), ["not done", undone]]) {
      if (count > 0)
        (kinds.get(kind) ??
          kinds
            .set(
              kind,
              parts.map(() => 0),
            )
            .get(kind))[which] = count;
    }
  });
  const listed = [...kinds].sort((one, other) => Math.max(...other[1]) - Math.max(...one[1])).slice(0, 12);
  const title = "Failures";
  if (listed.length === 0) {
    return el(
      "figure",
      { class: "card plot" },
      el("figcaption", {}, el("h3", {}, title)),
      el("p", { class: "nothing" }, "None: every rollout has a reward."),
    );
  }
  const most = Math.max(...listed.flatMap(([, counts]) => counts));
  return card({
    title,
    note: "Rollouts without a reward, by the kind of their error." + (choose ? " Choose one to see them." : ""),
    legend: parts.length > 1 ? parts.map((part, which) => [series(which), plain(part.name)]) : [],
    draw: (width) => {
      const row = 26 + 12 * (parts.length - 1);
      const height = Math.max(row * listed.length + 8, 60);
      const name = Math.min(170, width * 0.45);
      const root = svg("svg", {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: "group",
        "aria-label": "Failures by kind",
      });
      listed.forEach(([kind, counts], at) => {
        const y = at * row + 4;
        const letters = Math.floor(name / 7);
        const said = words(plain(kind));
        root.append(
          svg(
            "text",
            { class: "tick", x: name - 8, y: y + row / 2 + 1, "text-anchor": "end" },
            said.length > letters ? `${said.slice(0, letters - 1)}…` : said,
          ),
        );
        counts.forEach((count, which) => {
          const thick = (row - 8) / counts.length;
          const length = Math.max(((width - name - 50) * count) / most, count > 0 ? 3 : 0);
          const bar = svg("rect", {
            class: `bar ${parts.length > 1 ? series(which) : "bad"}`,
            x: name,
            y: y + which * thick,
            width: length,
            height: thick - 1,
            rx: 3,
          });
          const told = `${said}: ${plural(count, "rollout")}${parts.length > 1 ? ` of ${plain(parts[which].name)}` : ""}`;
          root.append(choosable(bar, told, choose && kind !== "not done" ? () => choose(kind) : null));
          root.append(
            svg("text", { class: "tick", x: name + length + 6, y: y + which * thick + thick / 2 + 3 }, number(count)),
          );
        });
      });
      return root;
    },
    columns: ["kind", ...parts.map((part) => (parts.length > 1 ? plain(part.name) : "rollouts"))],
    cells: listed.map(([kind, counts]) => [words(plain(kind)), ...counts.map(number)]),
  });
}

/** What happened when: rollouts that ended, and how many ran at once. */
function timelinePlot({ plots: { timeline } }) {
  if (!timeline) return null;
  const steps = timeline.scored.length;
  const most = Math.max(...timeline.scored.map((count, at) => count + timeline.failed[at]), 1);
  const busiest = Math.max(...timeline.running, 1);
  const when = (at) => duration(at * timeline.step);
  return card({
    title: "Time line",
    note: `Began ${moment(timeline.began)}. Up to ${number(Math.round(busiest))} at once.`,
    legend: [
      ["good", "ended with a reward"],
      ["bad", "ended in an error"],
      ["line-key", "under way at once, by its own scale"],
    ],
    wide: true,
    draw: (width) => {
      const length = steps * timeline.step;
      const chart = frame(
        width,
        `Rollouts that ended, over ${duration(length)}`,
        {
          from: 0,
          to: length,
          label: "time since the first began",
          format: duration,
          ticks: timesBetween(length, Math.max(2, Math.floor(width / 90))),
        },
        { from: 0, to: most },
      );
      const slot = chart.x(timeline.step) - chart.x(0);
      for (let at = 0; at < steps; at++) {
        let base = 0;
        for (const [kind, count] of [
          ["good", timeline.scored[at]],
          ["bad", timeline.failed[at]],
        ]) {
          if (count === 0) continue;
          const told = `${when(at)} to ${when(at + 1)}: ${timeline.scored[at]} with a reward, ${timeline.failed[at]} in an error, ${number(timeline.running[at])} under way`;
          chart.root.append(
            svg(
              "rect",
              {
                class: `bar ${kind}`,
                x: chart.x(at * timeline.step) + 0.5,
                y: chart.y(base + count),
                width: Math.max(slot - 1, 1),
                height: chart.y(base) - chart.y(base + count),
              },
              svg("title", {}, told),
            ),
          );
          base += count;
        }
      }
      const places = timeline.running.map(
        (count, at) =>
          `${chart.x((at + 0.5) * timeline.step).toFixed(1)},${chart.y((count / busiest) * most * 0.96).toFixed(1)}`,
      );
      chart.root.append(svg("polyline", { class: "line running", points: places.join(" ") }));
      return chart.root;
    },
    columns: ["from", "with a reward", "in an error", "under way"],
    cells: timeline.scored.map((count, at) => [
      when(at),
      number(count),
      number(timeline.failed[at]),
      number(timeline.running[at]),
    ]),
  });
}
