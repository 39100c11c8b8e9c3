(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  // Figures are drawn when they become visible, because those in a closed <details> have no width.
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const style = name => getComputedStyle(root).getPropertyValue(name).trim();
  const themed = layout => {
    const [ink, line, panel] = [style("--ink"), style("--line"), style("--panel")];
    const axis = given => ({automargin: true, ...given, title: {standoff: 8, ...given.title},
      gridcolor: line, zerolinecolor: line, linecolor: line});
    return {hovermode: "closest", showlegend: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      legend: {orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom"}, ...layout,
      margin: {l: 48, r: 8, t: 28, b: 40, ...layout.margin}, dragmode: touch ? false : "zoom", xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
      hoverlabel: {bgcolor: panel, bordercolor: line, font: {color: ink}, align: "left"}};
  };
  const draw = plot => {
    if (!plot.offsetParent) return;
    const spec = JSON.parse(plot.nextElementSibling.textContent);
    Plotly.react(plot, spec.data, themed(spec.layout), {responsive: true, displayModeBar: false});
  };
  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);
  drawAll();
  scheme.addEventListener("change", drawAll);
  document.addEventListener("toggle", event => event.target.querySelectorAll(".plot").forEach(draw), true);

  // A link opens the <details> that contains its target.
  const open = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
  addEventListener("hashchange", open);
  open();

  // Sorting moves whole <tbody>s if there are several (a run and its details), otherwise rows.
  const key = (part, column) => {
    const cell = (part.rows ? part.rows[0] : part).cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const before = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");  // unknown values are last in both directions
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  const sort = (table, head) => {
    const column = [...head.parentElement.cells].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    const place = table.tBodies.length > 1 ? table : table.tBodies[0];
    const parts = [...(table.tBodies.length > 1 ? table.tBodies : place.rows)];
    const keyed = parts.map(part => [key(part, column), part]);
    keyed.sort(([a], [b]) => a === "" || b === "" ? before(a, b) : (down ? -1 : 1) * before(a, b));
    keyed.forEach(([, part]) => place.append(part));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  document.querySelectorAll("table.sortable").forEach(table => {
    for (const head of table.tHead.rows[0].cells) {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sort(table, head));
    }
  });

  // A narrow screen shows one metric of the comparison at a time.
  document.querySelectorAll(".switch").forEach(choice => {
    const table = document.getElementById(choice.dataset.table);
    choice.addEventListener("click", event => {
      if (!event.target.dataset.metric) return;
      table.dataset.shown = event.target.dataset.metric;
      for (const button of choice.children) button.setAttribute("aria-pressed", button === event.target);
    });
  });
})();
