// Draws the icons of the theme's buttons. It stands in place of the theme's file of that name, which holds
// two thousand icons in 1.5 MB and was most of what a page had to load. Another icon is drawn by the theme's font.
(function () {
  const FILE = "M6 2h8l5 5v15H6zM14 2v5h5";
  const ICONS = {
    "angle-left": "M15 5l-7 7 7 7",
    "angle-right": "M9 5l7 7-7 7",
    "arrow-up": "M12 21V3M5 10l7-7 7 7",
    bars: "M3 6h18M3 12h18M3 18h18",
    "circle-half-stroke": "M12 3a9 9 0 1 0 0 18M12 3a9 9 0 1 1 0 18zM14 5v14M16 6v12M18 8v8",
    download: "M12 3v12M7 11l5 5 5-5M4 21h16",
    expand: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
    file: FILE,
    "file-pdf": FILE + "M9 13h7M9 17h7",
    list: "M8 6h13M8 12h13M8 18h13M3 6h.01M3 12h.01M3 18h.01",
    "magnifying-glass": "M10 4a6 6 0 1 0 0 12a6 6 0 1 0 0-12M15 15l6 6",
    moon: "M20 14A8.5 8.5 0 1 1 10 4a7 7 0 0 0 10 10z",
    sun: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 1v3M12 20v3M1 12h3M20 12h3M4 4l2 2M18 18l2 2M20 4l-2 2M6 18l-2 2",
  };
  for (const old of document.querySelectorAll(":is(.fa-solid, .fas):not(svg)")) {
    const name = [...old.classList].find((word) => ICONS[word.replace(/^fa-/, "")]);
    if (!name) continue;
    const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const { name: key, value } of old.attributes) icon.setAttribute(key, value);
    icon.classList.add("svg-inline--fa");
    icon.setAttribute("viewBox", "0 0 24 24");
    icon.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", ICONS[name.replace(/^fa-/, "")]);
    icon.append(path);
    old.replaceWith(icon);
  }
})();
