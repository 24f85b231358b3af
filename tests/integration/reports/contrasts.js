// Texts in sight whose contrast with what is behind them is less than `least` (WCAG 2.1, 1.4.3), each told once.
(least) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const pixel = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const back = pixel(getComputedStyle(at).backgroundColor);
      if (back[3] > 250) return back;
    }
    return [255, 255, 255, 255];
  };
  const top = document.querySelector("dialog[open]") ?? document.body;
  const bad = new Set();
  for (const element of top.querySelectorAll("*")) {
    const text = [...element.childNodes]
      .filter((node) => node.nodeType === 3)
      .map((node) => node.data.trim())
      .join("");
    if (text === "" || element.closest("script, style, noscript, :disabled, .sr, .skip")) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const front = light(pixel(element instanceof SVGElement ? style.fill : style.color));
    const back = light(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < least)
      bad.add(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute("class")}: ${text.slice(0, 30)}`);
  }
  return [...bad];
};
