// The report's data: gzip in Base64 in script elements that no browser runs, each read when it is needed.

async function unpacked(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function packedJson(id) {
  const element = byId(id);
  if (element === null) throw new Error(`this file is not whole: ${id} is missing from it`);
  return JSON.parse(await unpacked(element.textContent));
}

/** Once the whole file has been read; until then, a trajectory at its end is not there. */
const whole = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", resolve);
});

const CHUNKS_KEPT = 12;
const chunksRead = new Map();

/** A chunk of trajectories of a run; the last few are kept. */
async function chunk(run, number) {
  const id = `chunk-${run}-${number}`;
  if (byId(id) === null) await whole;
  if (!chunksRead.has(id)) {
    chunksRead.set(id, packedJson(id));
    if (chunksRead.size > CHUNKS_KEPT) chunksRead.delete(chunksRead.keys().next().value);
  }
  return chunksRead.get(id);
}

/** What there is to read of a rollout; null where it had no room in the file. */
async function trajectory(run, row) {
  const columns = rows[run];
  return columns.chunk[row] < 0 ? null : (await chunk(run, columns.chunk[row]))[columns.place[row]];
}

/** The rows of a run whose trajectories hold a text; `told` hears which part has been read, and may say false to end. */
async function rowsWith(run, text, told) {
  await whole;
  const columns = rows[run];
  const inChunk = new Map();
  columns.chunk.forEach((at, row) => {
    if (at >= 0) (inChunk.get(at) ?? inChunk.set(at, []).get(at)).push(row);
  });
  const found = new Set();
  const wanted = text.toLowerCase();
  let done = 0;
  for (const [at, members] of inChunk) {
    const trajectories = await packedJson(`chunk-${run}-${at}`);
    for (const row of members) {
      if (holds(trajectories[columns.place[row]], wanted)) found.add(row);
    }
    if (told(++done / inChunk.size) === false) return null;
  }
  return found;
}

/** Whether a string anywhere in a value holds the text, in whatever case. */
function holds(value, wanted) {
  if (typeof value === "string") return value.toLowerCase().includes(wanted);
  if (value === null || typeof value !== "object") return false;
  return Object.values(value).some((inner) => holds(inner, wanted));
}
