// Metrics: what an environment's manifest wants to be seen first, and what its own code made of a run.

const LONGEST = 500; // characters of a metric that is a text or a list; the report's JSON has all

/** A metric's value: a number, or anything else that JSON has. */
function metricValue(value) {
  if (!known(value)) return UNKNOWN;
  if (typeof value === "number") return number(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return plain(text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);
}

/** Names and values, of an object in an object by names with dots. */
const flattened = (values, prefix = "") =>
  Object.entries(values).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flattened(value, `${prefix}${name}.`)
      : [[prefix + name, value]],
  );

/** By environment and metric of those in view, the value in each of these runs. */
function metricsOf(field, runs) {
  const found = new Map();
  runs.forEach((run, at) => {
    for (const [environment, values] of Object.entries(run[field])) {
      if (state.scope !== "" && environment !== state.scope) continue;
      for (const [name, value] of flattened(values)) {
        const key = `${environment}\u0000${name}`;
        const metric = found.get(key) ?? found.set(key, { environment, name, values: Array(runs.length) }).get(key);
        metric.values[at] = value;
      }
    }
  });
  return [...found.values()];
}

/** The tile of a run's key metrics; nothing where one of its agents is looked at alone, whose they are not. */
function keyTile(run) {
  const metrics = state.agent === "" ? metricsOf("key_metrics", [run]) : [];
  if (metrics.length === 0) return null;
  const several = new Set(metrics.map((each) => each.environment)).size > 1;
  return el(
    "div",
    { class: "card tile" },
    el("h3", {}, "Key metrics"),
    el(
      "dl",
      { class: "strip" },
      metrics.map(({ environment, name, values }) =>
        el("div", {}, el("dt", {}, plain(several ? `${environment}: ${name}` : name)), el("dd", {}, metricValue(values[0]))),
      ),
    ),
  );
}

/** A table of such metrics, a column a run; nothing where there are none. */
function metricsTable(title, field, runs) {
  const metrics = state.agent === "" ? metricsOf(field, runs) : [];
  if (metrics.length === 0) return null;
  const several = new Set(metrics.map((each) => each.environment)).size > 1;
  return numbersTable(
    title,
    ["metric", ...(several ? ["environment"] : []), ...(runs.length > 1 ? runs.map((run) => plain(run.name)) : ["value"])],
    metrics.map(({ environment, name, values }) => [
      plain(name),
      ...(several ? [plain(environment)] : []),
      ...Array.from(values, metricValue),
    ]),
    runs.length > 1,
  );
}
