// Elements. Text only ever becomes text: nothing in these scripts parses HTML, and the page's policy would not let it.

const byId = (id) => document.getElementById(id);

/** An element with attributes, listeners (`onclick: …`) and children; null and false children are left out. */
function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in SVG. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Put these children in place of what an element has. */
function fill(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

// Characters that would hide or reorder what stands around them, or that are half of one.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const escaped = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");

/** A text as one string in which such characters are escapes. */
const plain = (text) => String(text).replace(UNSEEN, escaped);

/** A text as nodes in which such characters are marked escapes; a line may end with CR LF. */
function shown(text) {
  const nodes = [];
  let from = 0;
  const whole = String(text).replaceAll("\r\n", "\n");
  for (const found of whole.matchAll(UNSEEN)) {
    if (nodes.length > 2000) break; // of what is nothing but such characters, an element each would choke the page
    nodes.push(whole.slice(from, found.index), el("span", { class: "unseen" }, escaped(found[0])));
    from = found.index + found[0].length;
  }
  nodes.push(plain(whole.slice(from)));
  return nodes;
}
