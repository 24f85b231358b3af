// Judge: what a verifier asked a model about a rollout, each question with its votes.

const VOTES = {
  taken: ["good", "taken"],
  remembered: ["good", "taken, remembered from before"],
  unusable: ["warn", "not usable"],
  failed: ["bad", "failed"],
  cancelled: ["warn", "given up"],
};

/** The questions to a rollout's judge, and what became of it; nothing where none are recorded. */
function judgeShown(told, reward) {
  const judged = told.judged ?? [];
  if (judged.length === 0) return null;
  const votes = judged.reduce((sum, each) => sum + each.votes.length, 0);
  const failed = told.error.kind?.text === "judge_failed";
  return el(
    "details",
    { class: "block judge", open: failed },
    el("summary", {}, `What the judge was asked: ${plural(judged.length, "question")}, ${plural(votes, "answer")}`),
    el(
      "p",
      { class: "below" },
      failed
        ? "It gave no verdict, so there is no reward."
        : `What the verifier made of it: reward ${mean(reward)}${known(told.metrics.judge_agreement) ? `, agreement of its votes ${percent(told.metrics.judge_agreement)}` : ""}.`,
    ),
    judged.map((each, at) => questionShown(each, at)),
  );
}

function questionShown({ asked, votes, tally }, at) {
  return el(
    "section",
    { class: "question", "aria-label": `Question ${at + 1}` },
    el("h3", {}, `Question ${at + 1}`),
    conversation(asked, votes[0]),
    tally.length > 0
      ? el(
          "dl",
          { class: "strip tally" },
          tally.map(([field, counts]) =>
            el(
              "div",
              {},
              el("dt", {}, plain(field)),
              el("dd", {}, counts.map(([value, count]) => `${plain(value)} × ${count}`).join(", ")),
            ),
          ),
        )
      : null,
    el("ol", { class: "votes" }, votes.map(voteShown)),
  );
}

function voteShown(vote) {
  const [kind, said] = VOTES[vote.outcome];
  const took = [
    vote.outcome === "remembered" ? null : duration(vote.seconds),
    known(vote.tokens) && `${short(vote.tokens)} tokens`,
    known(vote.cost) && `cost ${cost(vote.cost)}`,
  ];
  return el(
    "li",
    {},
    el(
      "h4",
      {},
      `Vote ${vote.vote + 1}${vote.attempt > 0 ? `, asked again (${vote.attempt + 1})` : ""} `,
      el("span", { class: `badge ${kind}` }, said),
      el("span", { class: "took" }, took.filter(Boolean).join(" · ")),
    ),
    vote.why ? el("div", { class: "why" }, textShown(vote.why, vote)) : null,
    vote.said.length > 0 ? conversation(vote.said, vote) : null,
    vote.instead
      ? el(
          "div",
          {},
          el("p", { class: "below" }, "Another verify that asked the same had an answer first, which counts:"),
          textShown(vote.instead, vote, true),
        )
      : null,
  );
}
