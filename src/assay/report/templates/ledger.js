// Shows the claims of one source, of one verdict, or the stale ones; a link to a claim opens its fold.
(() => {
  const source = document.getElementById("by-source"), verdict = document.getElementById("by-verdict");
  const age = document.getElementById("by-age"), said = document.getElementById("filtered");
  const all = [...document.querySelectorAll("[data-verdict]")];
  const look = () => {
    let rows = 0;
    for (const e of all) {
      const here = (!source.value || e.dataset.source === source.value) && (!verdict.value || e.dataset.verdict === verdict.value) && (!age.checked || e.dataset.stale);
      e.classList.toggle("away", !here);
      if (here && e.tagName === "TR") rows += 1;
    }
    said.textContent = `${rows} of ${all.length / 2} claims`;
  };
  const open = () => {
    const e = document.getElementById(location.hash.slice(1));
    if (!e || e.tagName !== "DETAILS") return;
    if (e.classList.contains("away")) { source.value = verdict.value = ""; age.checked = false; look(); }
    e.open = true;
    e.scrollIntoView();
  };
  document.getElementById("filters").hidden = false;
  for (const e of [source, verdict, age]) e.addEventListener("change", look);
  addEventListener("hashchange", open);
  for (const a of document.querySelectorAll("a[href^='#claim-']")) a.addEventListener("click", () => { if (a.hash === location.hash) open(); });
  look(); open();
})();
