// What pages do beyond forms and links. Everything works without it, but for what is followed live.
(() => {
  // A page that follows what it shows: parts are replaced, lines are added, by server-sent events.
  const replace = (at, html) => {
    const ticked = [...at.querySelectorAll("input:checked[id]")].map(e => e.id), focus = document.activeElement?.id;
    at.innerHTML = html;
    for (const id of ticked) { const e = document.getElementById(id); if (e) e.checked = true; }
    if (focus && at.contains(document.getElementById(focus))) document.getElementById(focus).focus();
  };
  const add = (at, lines) => {
    const low = at.scrollHeight - at.scrollTop - at.clientHeight < 40;
    at.append(lines.join("\n") + "\n");
    if (low) at.scrollTop = at.scrollHeight;
  };
  for (const e of document.querySelectorAll("[data-live]")) {
    const source = new EventSource(e.dataset.live);
    source.addEventListener("part", event => {
      const told = JSON.parse(event.data), at = document.getElementById(told.id);
      if (at) replace(at, told.html);
    });
    source.addEventListener("lines", event => {
      const told = JSON.parse(event.data), at = document.getElementById(told.id);
      if (at) add(at, told.lines);
    });
    source.addEventListener("end", () => source.close());
    addEventListener("pagehide", () => source.close());
  }
  for (const e of document.querySelectorAll(".log")) e.scrollTop = e.scrollHeight;

  // A number and its slider show the same.
  const slide = root => {
    for (const range of root.querySelectorAll("[data-slides]")) {
      const number = document.getElementById(range.dataset.slides);
      range.hidden = false;
      range.addEventListener("input", () => { number.value = range.value; });
      number.addEventListener("input", () => { range.value = number.value; });
      range.addEventListener("change", () => number.dispatchEvent(new Event("change", { bubbles: true })));
    }
  };
  slide(document);

  // What was understood is asked anew when a setting changes; files tell of themselves once they are here.
  const form = document.getElementById("job-form"), understood = document.getElementById("understood");
  if (form && understood) {
    let due, asked;
    const look = async () => {
      asked?.abort();
      const mine = asked = new AbortController(), fields = new FormData(form), waits = document.createElement("p");
      for (const [name, value] of [...fields]) if (value instanceof File) fields.delete(name);
      for (const e of form.querySelectorAll(".files input[type=hidden]")) fields.append(e.name, e.value);
      waits.className = "waits";
      waits.textContent = "Looking at the model and its data …";
      understood.replaceChildren(waits);
      try {
        const answer = await fetch(understood.dataset.look, { method: "POST", body: fields, signal: mine.signal, headers: { "HX-Request": "true" } });
        understood.innerHTML = await answer.text();
      } catch {
        if (asked === mine) understood.textContent = "It could not be looked at: the server does not answer.";
      }
    };
    form.addEventListener("change", event => {
      if (event.target.type === "file" || event.target.name === "title" || event.target.closest("[data-quiet]")) return;
      clearTimeout(due);
      due = setTimeout(look, 400);
    });
    document.body.addEventListener("files", look);
    form.addEventListener("submit", () => { form.querySelector("button.main").disabled = true; });
    addEventListener("pageshow", () => { form.querySelector("button.main").disabled = false; });
    look();
  }

  // Dropping, and how much was sent.
  document.addEventListener("dragover", event => event.target.closest?.(".zone")?.classList.add("over"));
  for (const name of ["dragleave", "drop"]) document.addEventListener(name, event => event.target.closest?.(".zone")?.classList.remove("over"));
  document.addEventListener("htmx:xhr:progress", event => {
    const bar = event.target.closest?.("[data-file]")?.querySelector("progress");
    if (!bar || !event.detail.lengthComputable) return;
    bar.hidden = false;
    bar.value = event.detail.loaded / event.detail.total;
  });

  // Long lists are sifted by what is typed.
  for (const box of document.querySelectorAll("[data-sift]")) {
    box.closest("p").hidden = false;
    const lines = [...document.getElementById(box.dataset.sift).querySelectorAll(".choice")];
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const e of lines) e.classList.toggle("away", !words.every(w => e.textContent.toLowerCase().includes(w)));
    });
    box.addEventListener("keydown", event => { if (event.key === "Enter") event.preventDefault(); });
  }

  // Two are compared.
  for (const pairs of document.querySelectorAll("[data-pairs]")) {
    const said = pairs.querySelector("[data-ticked]"), button = pairs.querySelector("button");
    const count = () => {
      const n = pairs.querySelectorAll("input[name=job]:checked").length;
      said.textContent = n === 2 || n === 0 ? "" : n === 1 ? "tick one more" : `${n} are ticked; two are compared`;
      button.disabled = n !== 2;
    };
    pairs.addEventListener("change", count);
    count();
  }

  // Addresses to hand on.
  for (const button of document.querySelectorAll("[data-copies]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("input").value);
      button.textContent = "Copied";
    });
  }
})();
