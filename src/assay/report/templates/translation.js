// Flags, in every picture, the pixels whose spread reaches what the slider says, and tells what that means.
(() => {
  const slider = document.getElementById("threshold");
  if (!slider) return;
  const numbers = name => slider.dataset[name] ? slider.dataset[name].split(" ").map(Number) : null;
  const thresholds = numbers("thresholds"), flagged = numbers("flagged"), found = numbers("found"), hits = numbers("hits");
  const widest = Number(slider.dataset.widest), said = document.getElementById("told");
  const percent = share => `${(100 * share).toFixed(1)} %`;
  const rows = [...document.querySelectorAll("[data-row]")].map(row => {
    const from = row.querySelector("[data-spread]"), over = row.querySelector("[data-over]");
    const canvas = document.createElement("canvas");
    canvas.width = from.naturalWidth; canvas.height = from.naturalHeight;
    canvas.className = over.className; canvas.setAttribute("aria-hidden", "true");
    const paper = canvas.getContext("2d", { willReadFrequently: true });
    paper.drawImage(from, 0, 0);
    const spread = paper.getImageData(0, 0, canvas.width, canvas.height).data.slice();
    over.replaceWith(canvas);
    return { paper, canvas, spread, count: row.querySelector("[data-count]") };
  });
  const look = () => {
    const at = Number(slider.value), level = 255 * thresholds[at] / widest;
    for (const { paper, canvas, spread, count } of rows) {
      const marks = paper.createImageData(canvas.width, canvas.height);
      let n = 0;
      for (let i = 0; i < spread.length; i += 4) if (spread[i] >= level) {
        marks.data[i] = 255; marks.data[i + 1] = 140; marks.data[i + 3] = 190; n += 1;
      }
      paper.putImageData(marks, 0, 0);
      count.textContent = `${percent(n / (spread.length / 4))} flagged`;
    }
    let words = `A spread of ${thresholds[at].toPrecision(3)} or more flags ${percent(flagged[at])} of all pixels`;
    if (found) words += `; ${percent(found[at])} of the wrong ones are among them, and ${percent(hits[at])} of what is flagged is wrong`;
    said.textContent = words + ".";
    slider.setAttribute("aria-valuetext", `spread ${thresholds[at].toPrecision(3)}`);
  };
  document.getElementById("slide").hidden = false;
  slider.addEventListener("input", look);
  look();
})();
