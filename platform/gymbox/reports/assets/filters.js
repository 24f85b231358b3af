// Filters: which rows the table lists.

const OUTCOMES = { solved: "solved", unsolved: "not solved", failed: "failed", aside: "earlier attempts" };
const CHANGES = {
  better: "better",
  worse: "worse",
  same: "the same",
  unpaired: "in one run only, or without a reward",
};

const select = (id, label, options, change) =>
  el(
    "label",
    { class: "field" },
    el("span", {}, label),
    el(
      "select",
      { id, onchange: (event) => change(event.target.value) },
      options.map(([value, said]) => el("option", { value }, said)),
    ),
  );

/** Make the form; `changed` is called when the rows are other ones. */
function makeFilters(changed) {
  const form = byId("filters");
  const set = (field) => (value) => {
    state[field] = value;
    changed();
  };
  const bound = (id, field, label) =>
    el(
      "label",
      { class: "field short" },
      el("span", {}, label),
      el("input", {
        id,
        type: "number",
        step: "any",
        inputmode: "decimal",
        oninput: (event) => set(field)(event.target.value === "" ? null : Number(event.target.value)),
      }),
    );
  const kinds = [...new Set(rows.flatMap((each) => each.errors))].sort();
  const compares = report.comparison !== null;
  const outcomes = Object.entries(compares ? CHANGES : OUTCOMES).filter(
    ([value]) => value !== "aside" || report.runs.some((run) => run.set_aside > 0),
  );
  fill(
    form,
    el(
      "label",
      { class: "field search" },
      el("span", {}, "Search"),
      el("input", {
        id: "search",
        type: "search",
        placeholder: "task, rollout, error",
        autocomplete: "off",
        spellcheck: "false",
        "aria-keyshortcuts": "/",
        oninput: (event) => {
          state.search = event.target.value;
          state.within = null;
          changed();
        },
      }),
    ),
    el(
      "button",
      { type: "submit", id: "within", title: "Read all trajectories of this file for the text (Enter)" },
      "Search trajectories",
    ),
    select("outcome", compares ? "Change" : "Outcome", [["", "any"], ...outcomes], set("outcome")),
    agentsOf().length > 0
      ? select("by", "Agent", [["", "any"], ...agentsOf().map((each) => [each, plain(each)])], set("by"))
      : null,
    subsetNames().length > 0
      ? select("subset", "Subset", [["", "any"], ...subsetNames().map((each) => [each, plain(each)])], set("subset"))
      : null,
    kinds.length > 0
      ? select("kind", "Failure", [["", "any"], ...kinds.map((kind) => [kind, words(plain(kind))])], set("kind"))
      : null,
    compares ? null : bound("low", "low", "Reward from"),
    compares ? null : bound("high", "high", "to"),
    el(
      "button",
      {
        type: "button",
        id: "clear",
        onclick: () => {
          setFilters({});
          changed();
        },
      },
      "Clear",
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searchWithin(changed);
  });
}

/** Set all filters, in the form too; what is not given is cleared. */
function setFilters({ search = "", outcome = "", kind = "", by = "", subset = "", low = null, high = null }) {
  const chosen = { search, outcome, kind, by, subset };
  Object.assign(state, chosen, { low, high, within: null });
  for (const [id, value] of Object.entries({ ...chosen, low: low ?? "", high: high ?? "" }))
    if (byId(id)) byId(id).value = value;
}

let searching = 0;

/** Look for the text in all that rollouts hold, and list those that have it. */
async function searchWithin(changed) {
  const text = state.search.trim();
  if (text === "") return;
  const mine = ++searching;
  const found = [];
  for (let run = 0; run < rows.length; run++) {
    const members = await rowsWith(run, text, (part) => {
      fill(byId("count"), `reading trajectories: ${Math.round((100 * (run + part)) / rows.length)} %`);
      return mine === searching && state.search.trim() === text;
    });
    if (members === null) return;
    found.push(members);
  }
  state.within = found;
  changed();
}

/** Whether a rollout is to be listed. */
function rolloutFits(run, row, success, wanted) {
  const columns = rows[run];
  if (state.scope !== "" && columns.environments[columns.tasks[columns.task[row]][0]] !== state.scope) return false;
  for (const wanted of [state.agent, state.by])
    if (wanted !== "" && agentOf(columns, columns.task[row]) !== wanted) return false;
  if (state.subset !== "" && subsetOf(run, columns.task[row]) !== state.subset) return false;
  if (state.kind !== "" && columns.errors[columns.error[row]] !== state.kind) return false;
  if (state.outcome in OUTCOMES && outcomeOf(columns, row, success) !== state.outcome) return false;
  const reward = columns.reward[row];
  if (state.low !== null && !(known(reward) && reward >= state.low)) return false;
  if (state.high !== null && !(known(reward) && reward <= state.high)) return false;
  if (state.within !== null) return state.within[run].has(row);
  if (wanted === "") return true;
  const [, task, preview] = columns.tasks[columns.task[row]];
  return [task, preview, columns.id[row], columns.details[row], columns.errors[columns.error[row]]].some(
    (text) => text && text.toLowerCase().includes(wanted),
  );
}

/** The rows of the table, as the filters have them. */
function chosenRows(tasks, pairs) {
  const wanted = state.search.trim().toLowerCase();
  const success = report.runs[0].summary.success;
  const fits = (run) => (row) => rolloutFits(run, row, success, wanted);
  if (report.comparison)
    return pairs.filter(
      (pair) => changeFits(pair) && pair.sides.some((side) => side && side.rollouts.some(fits(side.run))),
    );
  if (state.view === "tasks") return byTask(tasks[0].filter((task) => task.rollouts.some(fits(0))));
  return rows[0].id.map((_, row) => row).filter(fits(0));
}

function changeFits(pair) {
  if (state.outcome === "") return true;
  const { difference } = pair;
  if (!known(difference)) return state.outcome === "unpaired";
  return state.outcome === (difference > 0 ? "better" : difference < 0 ? "worse" : "same");
}
