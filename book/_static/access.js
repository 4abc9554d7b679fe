// What screen readers need, and neither Sphinx nor the theme writes.
(function () {
  const each = (selector, change) => document.querySelectorAll(selector).forEach(change);
  const landmark = (role, label) => (part) => (part.setAttribute("role", role), part.setAttribute("aria-label", label));

  // The list of chapters and its title are one landmark.
  each(".bd-sidebar-primary", landmark("region", "Book"));

  // What folds a part of the list says which.
  each(".bd-sidebar-primary li.has-children", (part) =>
    part.querySelector("summary")?.setAttribute("aria-label", `Pages of ${part.querySelector("a").textContent.trim()}`));

  // The corner of a table heads nothing.
  each("th", (head) => {
    if (head.textContent.trim() || head.querySelector("img, svg")) return;
    const corner = document.createElement("td");
    corner.className = head.className;
    head.replaceWith(corner);
  });

  // The bibliography is a list, and each entry one of its items.
  each(".citation-list > [role]", (entry) => entry.setAttribute("role", "listitem"));

  // An equation that is wider than a phone scrolls; so the keyboard must reach it.
  const reach = () => each("mjx-container[display]", (box) => (box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1));
  addEventListener("load", () => window.MathJax?.startup?.promise?.then(reach));
  addEventListener("resize", reach);
})();
