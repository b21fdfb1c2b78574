// What an optimiser does not read is grey. Without this the words beside each say which read it.
(() => {
  const optimiser = document.getElementById("k-optimiser");
  if (!optimiser) return;
  const grey = () => {
    for (const row of document.querySelectorAll("[data-read-by]")) {
      const read = !optimiser.value || row.dataset.readBy.split(" ").includes(optimiser.value);
      row.classList.toggle("unread", !read);
      for (const e of row.querySelectorAll("input, select")) if (e !== optimiser) e.disabled = !read;
    }
  };
  optimiser.addEventListener("change", grey);
  grey();
})();
