// Table: as many rows as there are, of which only those in sight are elements.

const ROW = 44; // pixels; the style sheet has the same
const BEYOND = 8;

class Grid {
  /** `open(row, at)` is called for the row that is chosen. */
  constructor(place, open) {
    this.open = open;
    this.rows = [];
    this.columns = [];
    this.sort = null;
    this.active = 0;
    this.first = this.last = -1;
    this.head = el("tr", { "aria-rowindex": "1" });
    this.group = el("colgroup");
    this.body = el("tbody");
    this.table = el(
      "table",
      { class: "grid", role: "grid", "aria-label": "Tasks or rollouts" },
      this.group,
      el("thead", {}, this.head),
      this.body,
    );
    this.frame = el("div", { class: "grid-scroll" }, this.table);
    this.empty = el("p", { class: "nothing", hidden: true }, "Nothing fits these filters.");
    fill(place, this.frame, this.empty);
    this.frame.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-at]");
      if (row) this.choose(Number(row.dataset.at));
    });
    window.addEventListener("beforeprint", () => this.draw(true));
    window.addEventListener("afterprint", () => this.draw());
  }

  /** List these rows; columns of the same titles keep their order of rows. */
  show(columns, rows) {
    const same = columns.map((each) => each.title).join() === this.columns.map((each) => each.title).join();
    this.columns = columns;
    if (!same) this.sort = null;
    this.unsorted = rows;
    this.active = 0;
    this.frame.scrollTop = 0;
    this.headings();
    this.order();
  }

  headings() {
    const kinds = this.columns.map((each) => `${each.kind ?? "number"}${each.hide ? ` hide-${each.hide}` : ""}`);
    fill(
      this.group,
      kinds.map((kind) => el("col", { class: kind })),
    );
    fill(
      this.head,
      this.columns.map((each, at) => {
        const sorted = this.sort?.title === each.title ? this.sort.down : null;
        return el(
          "th",
          {
            scope: "col",
            class: kinds[at],
            "aria-sort": sorted === null ? "none" : sorted ? "descending" : "ascending",
          },
          el(
            "button",
            { type: "button", onclick: () => this.sortBy(each) },
            each.title,
            el("span", { class: "arrow", "aria-hidden": "true" }, sorted === null ? "" : sorted ? " ↓" : " ↑"),
          ),
        );
      }),
    );
    this.kinds = kinds;
  }

  sortBy(column) {
    this.sort = { title: column.title, down: this.sort?.title === column.title ? !this.sort.down : false };
    const at = this.columns.indexOf(column);
    this.active = 0;
    this.frame.scrollTop = 0;
    this.headings();
    this.order();
    this.head.children[at].firstChild.focus();
  }

  /** By the chosen column; what is unknown comes last either way. */
  order() {
    const column = this.columns.find((each) => each.title === this.sort?.title);
    if (column) {
      const way = this.sort.down ? -1 : 1;
      const keyed = this.unsorted.map((row, at) => [column.value(row), at, row]);
      keyed.sort(([one, place], [other, beside]) => {
        if (!known(one) || !known(other)) return known(one) - known(other) ? (known(one) ? -1 : 1) : place - beside;
        const order = typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
        return way * order || place - beside;
      });
      this.rows = keyed.map(([, , row]) => row);
    } else this.rows = this.unsorted;
    this.table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.empty.hidden = this.rows.length > 0;
    this.frame.hidden = this.rows.length === 0;
    this.first = -1;
    this.draw();
  }

  /** Make elements of the rows in sight; on paper, of the first two hundred. */
  draw(paper = false) {
    const high = this.frame.clientHeight || 600;
    const first = paper ? 0 : Math.max(0, Math.floor(this.frame.scrollTop / ROW) - BEYOND);
    const last = paper
      ? Math.min(200, this.rows.length)
      : Math.min(this.rows.length, Math.ceil((this.frame.scrollTop + high) / ROW) + BEYOND);
    if (first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const focused = this.body.contains(document.activeElement);
    const made = [];
    for (let at = first; at < last; at++) made.push(this.rowAt(at));
    const space = (count, where) =>
      el(
        "tr",
        { class: "space", "aria-hidden": "true" },
        el("td", { height: paper ? 0 : count * ROW, "data-where": where }),
      );
    fill(this.body, space(first, "above"), made, space(this.rows.length - last, "below"));
    if (focused) this.body.querySelector(`[data-at="${this.active}"]`)?.focus({ preventScroll: true });
  }

  rowAt(at) {
    const row = this.rows[at];
    return el(
      "tr",
      { "data-at": at, "aria-rowindex": at + 2, tabindex: at === this.active ? "0" : "-1" },
      this.columns.map((column, number) => el("td", { class: this.kinds[number] }, column.cell(row))),
    );
  }

  /** Move to a row, and into sight. */
  goTo(at) {
    if (this.rows.length === 0) return;
    this.active = Math.min(Math.max(at, 0), this.rows.length - 1);
    const top = this.active * ROW;
    const high = this.frame.clientHeight - this.head.offsetHeight;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    else if (top + ROW > this.frame.scrollTop + high) this.frame.scrollTop = top + ROW - high;
    this.first = -1;
    this.draw();
    this.body.querySelector(`[data-at="${this.active}"]`)?.focus({ preventScroll: true });
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.frame.clientHeight / ROW) - 2);
    const moves = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.rows.length,
      End: this.rows.length,
    };
    if (event.key in moves) {
      event.preventDefault();
      this.goTo(this.active + moves[event.key]);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(this.active);
    }
  }

  choose(at) {
    this.active = at;
    this.open(this.rows[at], at);
  }
}
