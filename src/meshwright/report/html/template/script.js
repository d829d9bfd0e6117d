// What-if sliders choose a row of the table below them, which was computed beforehand; nothing is worked out here.
document.querySelectorAll("[data-slider]").forEach((section) => {
  const rows = section.querySelectorAll("tbody tr");
  const slider = section.querySelector("input");
  const said = section.querySelector("output");
  const cursor = section.querySelector(".cursor");
  const show = () => {
    rows.forEach((row, i) => row.classList.toggle("on", i === Number(slider.value)));
    const row = rows[slider.value];
    said.textContent = row.dataset.said;
    slider.setAttribute("aria-valuetext", row.dataset.value);
    cursor.setAttribute("x1", row.dataset.x);
    cursor.setAttribute("x2", row.dataset.x);
  };
  slider.addEventListener("input", show);
  section.querySelector(".slider").hidden = false;
  show();
});
