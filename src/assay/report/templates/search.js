// Shows the questions that hold every word typed, wherever they stand on the page; on paper all are there.
(() => {
  const box = document.getElementById("search:box"), said = document.getElementById("search:said");
  const units = [...document.querySelectorAll("[data-unit]")].map(e => [e, e.textContent.toLowerCase()]);
  const followers = [...document.querySelectorAll("[data-of]")], groups = document.querySelectorAll("[data-group]");
  const folds = [...document.querySelectorAll("main details")], was = folds.map(d => d.open);
  const away = (e, yes) => e.classList.toggle("away", yes);
  const look = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean), found = new Set();
    for (const [e, text] of units) {
      const here = words.every(w => text.includes(w));
      away(e, !here);
      if (here) found.add(e.id);
    }
    for (const e of followers) away(e, !found.has(e.dataset.of));
    for (const e of groups) away(e, !e.querySelector("[data-unit]:not(.away), [data-of]:not(.away)"));
    folds.forEach((d, i) => { if (d.dataset.fold) d.open = words.length ? true : was[i]; });
    said.textContent = words.length ? `${found.size} of ${units.length} hold ${words.length > 1 ? "these words" : "this word"}` : "";
  };
  document.getElementById("search:field").hidden = false;
  box.addEventListener("input", look);
  if (box.value) look();
})();
