// Rollout: what the reader shows of one, whoever wrote it and however long it is.

const LONG = 1800; // characters from which on a text is folded
const STAGES = ["provision", "reset", "agent", "verify"];

/** All that is said of a rollout. */
function rolloutShown(run, row, told) {
  const columns = rows[run];
  const outcome = outcomeOf(columns, row, report.runs[0].summary.success);
  const [kind, said] = SAID[outcome];
  const facts = [
    ["reward", mean(columns.reward[row])],
    ["time", duration(columns.seconds[row])],
    ["tokens in", short(columns.input_tokens[row])],
    ["tokens out", short(columns.output_tokens[row])],
    ["cost", number(columns.cost[row])],
    ["turns", number(columns.turns[row])],
    ["tool calls", number(columns.tool_calls[row])],
    ["tool errors", number(columns.tool_errors[row])],
    ["attempts", number(columns.attempts[row])],
    ["began", known(columns.began[row]) ? moment(columns.began[row]) : UNKNOWN],
  ];
  return [
    el(
      "div",
      { class: "verdict-line" },
      el("span", { class: `badge ${kind} large` }, said),
      el("code", { class: "id" }, plain(columns.id[row])),
    ),
    el(
      "dl",
      { class: "strip" },
      facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))),
    ),
    told === null
      ? el(
          "p",
          { class: "notice" },
          "There was no room for this trajectory in the file. Make the report with a larger --size, or read it by ",
          el("code", {}, `gymbox show RUN ${plain(columns.id[row])}`),
          ".",
        )
      : trajectoryShown(told, columns.reward[row]),
  ];
}

function trajectoryShown(told, reward) {
  const { error, timings } = told;
  return [
    error.kind || error.detail
      ? el(
          "div",
          { class: "notice bad" },
          el(
            "h3",
            {},
            `${words(plain(error.kind?.text ?? "error"))}${error.stage ? ` (in its stage ${plain(error.stage.text)})` : ""}`,
          ),
          error.detail ? textShown(error.detail, told) : null,
          error.logs ? [el("h4", {}, "Its log"), textShown(error.logs, told)] : null,
        )
      : null,
    told.masked !== null
      ? el(
          "p",
          { class: "notice" },
          `Not to be trained on (mask_sample): ${words(plain(told.masked))}. Its reward counts.`,
        )
      : null,
    stagesShown(timings),
    el(
      "div",
      { class: "groups" },
      figuresShown("Reward components", told.components),
      figuresShown("Metrics", told.metrics),
      figuresShown("Tokens", told.tokens),
      figuresShown("Recorded calls", told.calls),
    ),
    told.attempts.length > 0
      ? el(
          "div",
          { class: "block" },
          el("h3", {}, "Failed attempts before"),
          el(
            "ol",
            { class: "attempts" },
            told.attempts.map((attempt) =>
              el(
                "li",
                {},
                el("strong", {}, words(plain(attempt.error.kind ?? "error"))),
                attempt.error.stage ? ` (in its stage ${plain(attempt.error.stage)})` : "",
                attempt.error.detail ? `: ${plain(attempt.error.detail)}` : "",
                known(attempt.timings.total) ? ` (${duration(attempt.timings.total)})` : "",
              ),
            ),
          ),
        )
      : null,
    folded(`${plural(told.tools.length, "tool")} offered`, told.tools, told),
    folded(`${plural(told.skills.length, "skill")} at hand`, told.skills, told),
    told.asked.length > 0 ? el("h3", { class: "part" }, "The task") : null,
    conversation(told.asked, told),
    el("h3", { class: "part" }, "The trajectory"),
    told.done.length > 0 && !told.answered
      ? el(
          "p",
          { class: "notice" },
          "The agent did not get to its end. This is what its model had last been asked and had answered, from the recorded calls.",
        )
      : null,
    told.done.length > 0
      ? conversation(told.done, told)
      : el(
          "p",
          { class: "nothing" },
          told.answered
            ? "The agent answered nothing."
            : "The agent did not get to its end, so there is no trajectory; runner.capture=on records what its model is asked.",
        ),
    told.left_out > 0
      ? el(
          "p",
          { class: "notice" },
          `${plural(told.left_out, "more item")} had no room here. All of it is in ${plain(told.file)}, line ${number(told.line)}.`,
        )
      : null,
    judgeShown(told, reward),
    folded("What only the verifier saw", told.hidden, told),
    Object.keys(told.facts).length > 0
      ? el(
          "details",
          { class: "block" },
          el("summary", {}, "Where it comes from"),
          el(
            "dl",
            { class: "facts" },
            el("dt", {}, "line"),
            el("dd", {}, `${plain(told.file)}:${told.line}`),
            Object.entries(told.facts).map(([label, value]) => [el("dt", {}, label), el("dd", {}, plain(value))]),
          ),
        )
      : null,
  ];
}

/** How long each stage took, as one bar. */
function stagesShown(timings) {
  const stages = STAGES.filter((stage) => timings[stage] > 0);
  const total = stages.reduce((sum, stage) => sum + timings[stage], 0);
  if (total === 0) return null;
  let from = 0;
  const bars = stages.map((stage, at) => {
    const width = (400 * timings[stage]) / total;
    from += width;
    return svg(
      "rect",
      { class: `bar ${series(at)}`, x: from - width, y: 0, width: Math.max(width - 1, 0.5), height: 10 },
      svg("title", {}, `${stage} ${duration(timings[stage])}`),
    );
  });
  return el(
    "div",
    { class: "block" },
    el("h3", {}, "Time by stage"),
    svg("svg", { class: "stages", viewBox: "0 0 400 10", preserveAspectRatio: "none", "aria-hidden": "true" }, bars),
    el(
      "ul",
      { class: "legend" },
      stages.map((stage, at) =>
        el("li", {}, el("span", { class: `key ${series(at)}` }), `${stage} ${duration(timings[stage])}`),
      ),
    ),
  );
}

function figuresShown(title, figures) {
  const listed = Object.entries(figures);
  if (listed.length === 0) return null;
  return el(
    "div",
    { class: "block" },
    el("h3", {}, title),
    el(
      "dl",
      { class: "strip" },
      listed.map(([label, value]) => el("div", {}, el("dt", {}, words(plain(label))), el("dd", {}, number(value)))),
    ),
  );
}

function folded(title, items, told) {
  if (items.length === 0) return null;
  return el(
    "details",
    { class: "block" },
    el("summary", {}, title),
    items.map((item) =>
      el(
        "div",
        { class: "item" },
        el("h4", {}, item.by ? plain(item.by) : words(plain(item.kind))),
        textShown(item, told, true),
      ),
    ),
  );
}

/** What was said and done, in order; a result stands with its call where it follows it. */
function conversation(items, told) {
  const calls = new Map(items.filter((item) => item.kind === "call").map((item) => [item.call, item]));
  return el(
    "ol",
    { class: "conversation" },
    items.map((item) => {
      if (item.kind === "message") return step(`message ${plain(item.by)}`, plain(item.by), textShown(item, told));
      if (item.kind === "reasoning")
        return step(
          "reasoning",
          "reasoning",
          item.text ? textShown(item, told) : el("p", { class: "nothing" }, "hidden by the model's provider"),
        );
      if (item.kind === "call")
        return step("call", ["calls ", el("code", {}, plain(item.by))], textShown(item, told, true));
      if (item.kind !== "result") return step("other", words(plain(item.kind)), textShown(item, told, true));
      const call = calls.get(item.call);
      const wrong = /^\s*(error|\{"error")/i.test(item.text);
      return step(
        `result${wrong ? " wrong" : ""}`,
        [wrong ? "error of " : "result of ", el("code", {}, plain(call?.by ?? item.call ?? "a call"))],
        textShown(item, told, true),
      );
    }),
  );
}

const step = (kind, title, body) => el("li", { class: `step ${kind}` }, el("h4", {}, title), body);

/** JSON with a line for each field; as it is where it is none, was cut, or has numbers that would change. */
function indented(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 20000 || /\d{16}/.test(text)) return text;
  try {
    const value = JSON.parse(text);
    const flat = JSON.stringify(value);
    return flat.length < 60 ? text : JSON.stringify(value, null, 2);
  } catch {
    return text;
  }
}

/** A text, folded where it is long; of one that was cut, how much is missing and where all of it is. */
function textShown(item, told, json = false) {
  const cut = item.length !== undefined;
  const text = json && !cut ? indented(item.text) : item.text;
  const body = el("pre", { class: "text", dir: "auto" }, shown(text));
  if (cut) {
    const there = item.text.length + item.end.length;
    body.append(
      el(
        "span",
        { class: "cut" },
        `… cut: ${number(item.length - there)} of ${item.length.toLocaleString("en")} characters are left out here; all of it is in ${plain(told.file)}, line ${told.line} …`,
      ),
      ...shown(item.end),
    );
  }
  if (text.length < LONG && (text.match(/\n/g)?.length ?? 0) < 30) return body;
  body.classList.add("clamped");
  const button = el("button", {
    type: "button",
    class: "more",
    "aria-expanded": "false",
    onclick: () => {
      const open = !body.classList.toggle("clamped");
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "Show less" : said;
    },
  });
  const said = `Show all ${(text.length + (item.end?.length ?? 0)).toLocaleString("en")} characters`;
  button.textContent = said;
  return [body, button];
}
