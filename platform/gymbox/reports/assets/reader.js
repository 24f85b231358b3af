// Reader: one rollout to be read, or the same task in two runs side by side.

class Reader {
  /** `back` is called when it has closed. */
  constructor(dialog, back) {
    this.dialog = dialog;
    this.list = [];
    this.at = 0;
    dialog.addEventListener("close", () => {
      history.replaceState(null, "", location.pathname + location.search);
      back(this.at);
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "ArrowLeft" || event.key === "k") this.go(-1);
      else if (event.key === "ArrowRight" || event.key === "j") this.go(1);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  /** Open the `at`-th of these: `task`, `environment`, and for each side the run, its rows of the task, and which. */
  open(list, at) {
    this.list = list;
    this.at = at;
    this.draw();
    if (!this.dialog.open) this.dialog.showModal();
    byId("reader-title").focus();
  }

  go(by) {
    const at = this.at + by;
    if (at < 0 || at >= this.list.length) return;
    this.at = at;
    this.draw();
    byId("reader-title").focus();
  }

  draw() {
    const entry = this.list[this.at];
    const panes = entry.sides.map((side, number) =>
      el("section", {
        class: "pane",
        "aria-label": side ? plain(report.runs[side.run].name) : "not run",
        "data-side": number,
      }),
    );
    this.dialog.classList.toggle("two", panes.length > 1);
    fill(
      this.dialog,
      el(
        "header",
        { class: "reader-head" },
        el(
          "div",
          { class: "reader-name" },
          el("h2", { id: "reader-title", tabindex: "-1" }, plain(entry.task)),
          el(
            "p",
            {},
            `${plain(entry.environment)} · ${(this.at + 1).toLocaleString("en")} of ${this.list.length.toLocaleString("en")}`,
          ),
        ),
        el(
          "div",
          { class: "reader-tools" },
          el(
            "button",
            {
              type: "button",
              "aria-label": "Previous",
              title: "Previous (←)",
              disabled: this.at === 0,
              onclick: () => this.go(-1),
            },
            "←",
          ),
          el(
            "button",
            {
              type: "button",
              "aria-label": "Next",
              title: "Next (→)",
              disabled: this.at === this.list.length - 1,
              onclick: () => this.go(1),
            },
            "→",
          ),
          el(
            "button",
            { type: "button", "aria-label": "Close", title: "Close (Esc)", onclick: () => this.dialog.close() },
            "✕",
          ),
        ),
      ),
      el("div", { class: "panes" }, panes),
    );
    entry.sides.forEach((side, number) => {
      if (side === null) fill(panes[number], el("p", { class: "nothing" }, "This run has no rollout of the task."));
      else this.pane(panes[number], side);
    });
  }

  async pane(place, side) {
    const { run } = side;
    const row = side.rows[side.chosen];
    place.dataset.row = row;
    const columns = rows[run];
    history.replaceState(
      null,
      "",
      `#rollout=${encodeURIComponent(columns.id[row].toWellFormed?.() ?? columns.id[row])}`,
    );
    fill(place, this.tries(place, side), el("p", { class: "nothing", role: "status" }, "Reading…"));
    let made;
    try {
      made = rolloutShown(run, row, await trajectory(run, row));
    } catch (error) {
      made = [el("p", { class: "notice bad", role: "alert" }, `This rollout cannot be read: ${error.message}`)];
    }
    if (place.dataset.row !== String(row)) return; // another one was chosen meanwhile
    fill(place, this.tries(place, side), made);
    place.dataset.ready = "true";
  }

  /** The tries of the task, to choose from. */
  tries(place, side) {
    const columns = rows[side.run];
    const { success } = report.runs[0].summary;
    const heading = report.comparison ? el("h3", { class: "pane-name" }, plain(report.runs[side.run].name)) : null;
    if (side.rows.length < 2) return heading;
    return [
      heading,
      el(
        "div",
        { class: "tries", role: "group", "aria-label": "Tries" },
        side.rows.map((row, at) => {
          const outcome = outcomeOf(columns, row, success);
          const said =
            outcome === "failed" || outcome === "aside" ? SAID[outcome][1] : `reward ${mean(columns.reward[row])}`;
          return el(
            "button",
            {
              type: "button",
              class: `try ${SAID[outcome][0]}`,
              "aria-pressed": String(at === side.chosen),
              title: said,
              onclick: () => {
                side.chosen = at;
                this.pane(place, side).then(() => place.querySelector('[aria-pressed="true"]')?.focus());
              },
            },
            `${known(columns.repeat[row]) ? columns.repeat[row] + 1 : at + 1}`,
            el("span", { class: "sr" }, `: ${said}`),
          );
        }),
      ),
    ];
  }
}
