// Theme: the reader's system decides, the button overrides. Charts: say the values under the pointer.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (theme) => {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "light" : "dark";
  };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (event) => set(event.matches ? "dark" : "light"));
  button.addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));

  const tip = document.getElementById("tip");
  for (const svg of document.querySelectorAll("svg[data-points]")) {
    const points = JSON.parse(svg.dataset.points);
    const cursor = svg.querySelector(".cursor");
    if (!points.length) continue;
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const near = points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      cursor.setAttribute("x1", near[0]);
      cursor.setAttribute("x2", near[0]);
      cursor.setAttribute("visibility", "visible");
      tip.textContent = [`step ${near[1]}`, ...Object.entries(near[2]).map(([name, value]) => `${name}  ${value}`)].join("\n");
      tip.style.display = "block";
      const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
      tip.style.left = `${event.clientX + (right ? -16 - tip.offsetWidth : 16)}px`;
      tip.style.top = `${event.clientY + 12}px`;
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      tip.style.display = "none";
    });
  }
})();
