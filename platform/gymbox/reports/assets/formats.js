// How numbers are written. What is unknown is a dash, never 0.

const UNKNOWN = "–";
const known = (value) => value !== null && value !== undefined;

/** Four digits that count. */
function number(value) {
  if (!known(value)) return UNKNOWN;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  if (Math.abs(value) >= 1e6) return short(value);
  return String(Number(value.toPrecision(4)));
}

/** A mean or a reward, with as many digits as its neighbours. */
const mean = (value) => (known(value) ? (Math.abs(value) < 1000 ? value.toFixed(3) : number(value)) : UNKNOWN);

/** Three digits that count. */
const cost = (value) => (known(value) ? String(Number(value.toPrecision(3))) : UNKNOWN);

/** With a sign. */
const signed = (value) => (known(value) ? (value > 0 ? "+" : value < 0 ? "−" : "") + mean(Math.abs(value)) : UNKNOWN);

const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)} %` : UNKNOWN);

/** 12.3k, 4.56M. */
function short(value) {
  if (!known(value)) return UNKNOWN;
  for (const [size, letter] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + letter;
  }
  return String(Number(value.toPrecision(3)));
}

/** 250 ms, 4.2 s, 3 min 20 s, 2 h 5 min. */
function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1) return `${Number((1000 * seconds).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.round(seconds / 60);
  const parts =
    seconds < 3595
      ? [Math.floor(Math.round(seconds) / 60), "min", Math.round(seconds) % 60, "s"]
      : [Math.floor(minutes / 60), "h", minutes % 60, "min"];
  return parts.slice(0, parts[2] === 0 ? 2 : 4).join(" ");
}

/** A p-value. */
const chance = (p) => (known(p) && p < 0.0001 ? "< 0.0001" : number(p));

const interval = (ends) => (ends ? `${mean(ends[0])} to ${mean(ends[1])}` : UNKNOWN);
const level = (part) => `${Number((100 * part).toPrecision(4))} %`;
const words = (name) => String(name).replaceAll("_", " ");
const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** A moment in UTC, to be read. */
function moment(time) {
  const date = typeof time === "number" ? new Date(1000 * time) : new Date(time);
  return Number.isNaN(date.getTime()) ? UNKNOWN : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
